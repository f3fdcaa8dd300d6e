"""`verify --bisect` names the step and the node that were broken on purpose."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.models import write_classifier

from ortune.cli.main import main
from ortune.search.recipe.built import STEPS


def _run(*words: object) -> tuple[int, str]:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main([str(word) for word in words])
    return code, said.getvalue()


@pytest.fixture
def job(tmp_path: Path) -> tuple[Path, Path]:
    return write_classifier(tmp_path, samples=40)


def test_a_broken_weight_is_named_and_a_small_model_shows_it(
    job: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = job
    proto = onnx.load(model)
    held = next(t for t in proto.graph.initializer if t.name == "b1")
    broken = numpy_helper.to_array(held).copy()
    broken[3] += 50
    held.CopyFrom(numpy_helper.from_array(broken, "b1"))
    bad = tmp_path / "bad.onnx"
    onnx.save(proto, bad)
    why = tmp_path / "why"
    code, text = _run(
        "verify",
        model,
        bad,
        "--data",
        data,
        "--budget",
        "snr>=60",
        "--bisect",
        "-o",
        why,
        "--json",
    )
    assert code == 1, text
    found = json.loads(text)["bisection"]
    assert found["tensor"] == "h1" and len(found["nodes"]) == len(found["replaced"]) == 1
    assert found["fails_alone"] and found["alone"] < 60 <= found["without"]
    assert found["step"] == "" and "does not say which steps" in found["note"]
    small = onnx.load(why / "other.onnx")
    assert [node.op_type for node in small.graph.node] == ["Add"]
    with np.load(why / "samples" / "000.npz") as sample:
        assert set(sample) == {value.name for value in small.graph.input}
    code, text = _run(
        "verify", why / "reference.onnx", why / "other.onnx", "--data", why / "samples",
        "--budget", "snr>=60",
    )  # fmt: skip
    assert code == 1, text


def test_the_step_is_named_where_the_file_says_what_made_it(
    job: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = job
    bad = tmp_path / "bad.onnx"
    step = "int8-static(observer=percentile(p=60))"
    code, text = _run("apply", model, "simplify", step, "--data", data, "-o", bad)
    assert code == 0, text
    assert STEPS in {entry.key for entry in onnx.load(bad).metadata_props}
    budget = ("--budget", "agreement>=0.98")
    why = tmp_path / "why"
    words = ("verify", model, bad, "--data", data, *budget, "--bisect", "-o", why)
    code, text = _run(*words, "--json")
    assert code == 1, text
    found = json.loads(text)["bisection"]
    assert found["step"].startswith("int8-static(observer=percentile(p=60")
    assert found["before"] == 1 and found["tensor"]
    code, text = _run(*words)
    assert code == 2 and text.count("\n") == 2 and "exists" in text and "fix:" in text
    code, text = _run("verify", model, bad, "--data", data, "-o", why)
    assert code == 2 and "--bisect" in text


def test_nothing_is_looked_for_where_nothing_fails(job: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = job
    why = tmp_path / "why"
    code, text = _run("verify", model, model, "--data", data, "--bisect", "-o", why, "--json")
    assert code == 0, text
    assert json.loads(text)["bisection"] is None and not why.exists()
