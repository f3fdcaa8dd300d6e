"""Outputs that the budget does not read are watched, and named where they fall."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import ortune as ot
from ortune.cli.main import main
from ortune.core.budget import Budget
from ortune.core.trial import Verdict
from ortune.core.wording import list_failed_outputs
from ortune.search.experiment import parts

TWO = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] logits, float[N,3,2] hidden, float[N,1] value) {{
  one = Constant<value = float {{1.0}}>()
  logits = Mul(x, one)
  seed = Constant<value = float[4,6] {{{weights}}}>()
  flat = MatMul(x, seed)
  shape = Constant<value = int64[3] {{-1, 3, 2}}>()
  hidden = Reshape(flat, shape)
  axes = Constant<value = int64[1] {{1}}>()
  value = ReduceSum<keepdims = 1>(x, axes)
}}
"""


def written(path: Path, *, noise: float = 0.0) -> Path:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(24)
    weights += noise * rng.standard_normal(24)
    text = TWO.format(weights=", ".join(f"{w:.6f}" for w in weights))
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture
def task(tmp_path: Path) -> tuple[Path, Path, Path]:
    x = np.random.default_rng(1).standard_normal((80, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, label=x.argmax(1))
    one, two = written(tmp_path / "one.onnx"), written(tmp_path / "two.onnx", noise=0.5)
    return one, two, tmp_path / "data.npz"


def test_one_that_falls_is_named_and_does_not_decide(task: tuple[Path, Path, Path]) -> None:
    one, two, data = task
    found = ot.verify(one, two, data=data, budget="top1(output=logits)>=base-0.05")
    assert found.verdict is not Verdict.FAILS
    (said,) = list_failed_outputs(found.scores)
    assert said.startswith("cosine(output=hidden) by group is 0.")
    assert "budget ignores" in said
    watched = [s.metric for s in found.scores if "output=" in s.metric]
    assert watched == [
        "top1(output=logits)",
        'cosine(output=hidden, groups=["2:hidden"])',
        "parity(output=value, groups=[all:value])",
    ]
    assert not list_failed_outputs(
        ot.verify(one, one, data=data, budget="top1(output=logits)>=base").scores
    )


def test_it_can_be_ignored(
    task: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, data = map(str, task)
    args = ["verify", one, two, "--data", data, "--budget", "cosine(output=logits)>=0.9"]
    assert main(args) == 0
    assert "budget ignores" in capsys.readouterr().out
    assert main([*args, "--ignore-output", "hidden", "--ignore-output", "value"]) == 0
    assert "budget ignores" not in capsys.readouterr().out
    assert main([*args, "--ignore-output", "depth"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[0].endswith("--ignore-output depth: the model has no such output")
    assert said[1] == "  fix: use one of: logits, hidden, value"


def decides(expected: object, actual: dict[str, np.ndarray], label: object) -> float:
    return float(actual["logits"].mean() > -9)


OUTPUTS = [
    {
        "logits": np.array([[0.2, 0.8]], np.float32),
        "hidden": np.ones((1, 3, 2), np.float32),
        "value": np.ones((1, 1), np.float32),
        "count": np.array([3]),
    }
]


@pytest.mark.parametrize(
    ("budget", "watched"),
    [
        ("cosine>=0.9", []),
        ("snr>=20", []),
        ("agreement>=0.9", ["value"]),
        ("top1(output=logits)>=base", ["hidden", "value", "count"]),
        ("max-error(output=count)<=1", ["logits", "hidden", "value"]),
        (f"{__name__}:decides>=0.9", ["hidden", "value", "count"]),
    ],
)
def test_what_a_metric_does_not_read(budget: str, watched: list[str]) -> None:
    metric = Budget.parse(budget).metric
    found = parts.make_output_limits(metric, OUTPUTS, [1], ())
    assert [getattr(limit.metric, "output", "") for limit in found] == watched
    some = parts.make_output_limits(metric, OUTPUTS, [1], ("value",))
    assert [getattr(limit.metric, "output", "") for limit in some] == [
        name for name in watched if name != "value"
    ]


def test_top1_reads_the_only_scores_that_fit() -> None:
    outputs = [{name: OUTPUTS[0][name] for name in ("logits", "value", "count")}]
    found = parts.make_output_limits(Budget.parse("top1>=base").metric, outputs, [1], ())
    assert [str(limit) for limit in found] == [
        'parity(output=value, groups=["all%:value"], probabilities=[value])>=30',
        "agreement(output=count, groups=[all:count])>=0.99",
    ]
