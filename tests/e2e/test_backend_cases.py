"""onnx's conformance cases through load, save and simplify: the outputs stay as the standard says.

Each case is run untouched first, on onnxruntime, else on onnx's evaluator. One that gives the
expected outputs on neither cannot be judged; such cases are listed here by name, so that none can
be added to them in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import backend_cases as backend
from tests.backend_cases import Case

from ortune.core.errors import BadModel, OrtuneError
from ortune.core.step import Transform
from ortune.graph.io import file
from ortune.graph.io.check import check_model, describe_signature
from ortune.transforms.raise_opset import RaiseOpset
from ortune.transforms.simplify import Simplify

RANDOM = {
    "test_bernoulli",
    "test_bernoulli_double",
    "test_bernoulli_double_expanded",
    "test_bernoulli_expanded",
    "test_bernoulli_seed",
    "test_bernoulli_seed_expanded",
}
"""Outputs are drawn anew in each run, and sometimes are the expected ones by chance."""
NOT_RUNNABLE = {
    *RANDOM,
    # a sequence as input that the comparison of onnx cannot take
    "test_loop16_seq_none",
    # opset 27 is beyond onnxruntime, and the evaluator answers with another shape
    "test_range_bfloat16_type_positive_delta_expanded",
    "test_range_float16_type_positive_delta_expanded",
    "test_range_float_type_positive_delta_expanded",
    "test_range_int32_type_negative_delta_expanded",
}


LARGE = ("alexnet", "vgg19", "zfnet512")
"""Old classifiers whose weights are hundreds of megabytes each, once they are constants."""


@dataclass
class Tally:
    """What became of a set of cases."""

    run: int = 0
    edited: int = 0
    not_runnable: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


pytestmark = pytest.mark.usefixtures("quiet")


def examine(
    cases: Iterable[Case], steps: Sequence[Transform], folder: Path, *, raised: bool = False
) -> Tally:
    """Run every case untouched, loaded and saved, and after the steps.

    Args:
        raised: The edited model may need another runner: each knows other versions of operators.
            The cases are those of other tests, so they are not run loaded and saved once more.
    """
    tally = Tally()
    for case in cases:
        source = folder / "source.onnx"
        source.write_bytes(case.model.SerializeToString())
        drawn = case.name.removesuffix(" frozen") in RANDOM
        runner = None if drawn else backend.runs_on(case, source)
        if runner is None:
            tally.not_runnable.add(case.name)
            continue
        tally.run += 1
        model = file.load(source)
        before = describe_signature(model)
        saved = file.save(model, folder / "saved.onnx")
        if not raised:
            _compare(case, runner, saved, "saved", tally)
        try:
            for step in steps:
                tally.edited += step.apply(model) > 0
                check_model(model, before, step.name())
        except BadModel as error:
            tally.refused[case.name] = error.what  # a recipe rolls the step back
            continue
        edited = file.save(model, folder / "edited.onnx")
        if not raised and edited.read_bytes() == saved.read_bytes():
            continue
        runner = backend.runs_on(case, edited) or runner if raised else runner
        _compare(case, runner, edited, "edited", tally)
    return tally


def _compare(case: Case, runner: str, path: Path, what: str, tally: Tally) -> None:
    try:
        found = backend.difference(case, backend.RUNNERS[runner](case, path))
    except OrtuneError:
        raise
    except Exception as error:  # whatever the runtime raises on a broken model
        found = f"does not run: {str(error)[:200]}"
    if found is not None:
        tally.wrong[f"{case.name}, {what}"] = found


EVERY = [2, pytest.param(1, marks=pytest.mark.long)]
"""In the short run each case is tried in one of two ways: as it is, or its inputs constants."""


@pytest.mark.parametrize("every", EVERY)
def test_node_cases(tmp_path: Path, every: int) -> None:
    tally = examine(backend.node_cases()[::every], [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {}
    assert tally.not_runnable <= NOT_RUNNABLE
    assert tally.run >= {1: 1873, 2: 930}[every] and tally.edited >= {1: 360, 2: 170}[every]


@pytest.mark.parametrize("every", EVERY)
def test_node_cases_with_their_inputs_as_constants(tmp_path: Path, every: int) -> None:
    """Everything that can be folded is: the folder's results against the standard's."""
    chosen = backend.node_cases()[every - 1 :: every]
    cases = [frozen for case in chosen if (frozen := backend.frozen(case))]
    tally = examine(cases, [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {}
    assert {name.removesuffix(" frozen") for name in tally.not_runnable} <= NOT_RUNNABLE
    assert tally.run >= {1: 1767, 2: 880}[every] and tally.edited >= {1: 460, 2: 175}[every]


@pytest.mark.parametrize("leaving", [LARGE, pytest.param((), marks=pytest.mark.long)])
def test_light_models(tmp_path: Path, leaving: tuple[str, ...]) -> None:
    tally = examine(backend.light_cases(leaving), [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {} and tally.not_runnable == set()
    assert tally.run == tally.edited == 9 - len(leaving)


def test_models_of_old_exporters(tmp_path: Path) -> None:
    tally = examine(backend.exported_cases(), [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {}
    assert tally.run >= 138 and tally.edited >= 17


@pytest.mark.parametrize(
    "to", [17, *(pytest.param(to, marks=pytest.mark.long) for to in (13, 20, 23))]
)
def test_raising_the_opset(tmp_path: Path, to: int) -> None:
    """Also of 120 models that old exporters wrote in opset 6 to 12."""
    cases = [*backend.node_cases(), *backend.exported_cases()]
    older = [case for case in cases if 0 < _opset(case) < to]
    tally = examine(older, [RaiseOpset(to=to)], tmp_path, raised=True)
    assert tally.wrong == {}
    assert set(tally.refused) <= {"test_scan_sum"}  # opset 8 gave Scan a batch axis
    assert tally.edited == tally.run - len(tally.refused)
    assert tally.run >= {13: 213, 17: 647, 20: 961, 23: 1243}[to]


def _opset(case: Case) -> int:
    return next((o.version for o in case.model.opset_import if not o.domain), 0)
