"""bench and compare together, on the packaged model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ortune as ot
from ortune.cli.main import main
from ortune.core.plugins import codec
from ortune.data.zoo import digit_cnn

MODEL = Path(digit_cnn.__file__).parent / "digit_cnn.onnx"


def test_a_saved_run_compares_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.json")
    words = ["--levels", "basic,all", "--threads", "1", "--wide"]
    assert main(["bench", str(MODEL), *words, "--sets=1", "--time=0.5", "--json", out]) == 0
    said = capsys.readouterr().out
    for heading in ("cpu(threads=1, level=basic)", "p99.9", "memory"):
        assert heading in said
    assert main(["compare", out, out]) == 0
    assert "1.000 [" in capsys.readouterr().out


@pytest.mark.long
def test_a_twin_slower_by_a_tenth_is_flagged_and_the_same_again_is_not(tmp_path: Path) -> None:
    """Needs a machine that is otherwise idle: the times are real."""
    for name, on in (("a", "cpu"), ("b", "cpu"), ("slow", "slowed")):
        spec = f"{on}(threads=1{', by=0.1' if on == 'slowed' else ''})"
        found = json.dumps(codec.encode(ot.bench(MODEL, on=spec, time=5)), default=float)
        (tmp_path / f"{name}.json").write_text(found)
    files = {name: tmp_path / f"{name}.json" for name in ("a", "b", "slow")}
    assert ot.compare([files["a"], files["b"]]).regressions == 0
    assert ot.compare([files["a"], files["slow"]], by=["model"]).regressions == 1
