"""onnx's conformance cases through load, save and transforms: outputs stay as the standard says.

Each case is run untouched first, on onnxruntime, else on onnx's evaluator. One that gives the
expected outputs on neither cannot be judged; such cases are listed here by name, so that none can
be added to them in silence.

`examine` takes cases through steps on the runner that was right before. `sweep` takes them through
every transform in several orders: each alone, all in order, shuffled in each stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import onnx_ir as ir
import pytest
from tests import backend_cases as backend
from tests import sweeps
from tests.backend_cases import Case

from ortune.core.errors import BadModel, OrtuneError
from ortune.core.step import Transform
from ortune.graph.io import file
from ortune.graph.io.wellformed import check_model, describe_signature
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

NO_WAY_UP = {"test_scan_sum"}
"""Opset 8 gave Scan a batch axis."""


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


ALL = [False, pytest.param(True, marks=pytest.mark.long)]
"""The short run takes one case of each set of operators and attributes."""


def _pick(cases: list[Case], every: bool) -> list[Case]:
    return cases if every else backend.pick_distinct(cases)


@pytest.mark.parametrize("every", ALL)
def test_node_cases(tmp_path: Path, every: bool) -> None:
    tally = examine(_pick(backend.node_cases(), every), [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {}
    assert tally.not_runnable <= NOT_RUNNABLE
    assert tally.run >= (1873 if every else 460) and tally.edited >= (360 if every else 80)


@pytest.mark.parametrize("every", ALL)
def test_node_cases_with_their_inputs_as_constants(tmp_path: Path, every: bool) -> None:
    """Everything that can be folded is: the folder's results against the standard's."""
    chosen = _pick(backend.node_cases(), every)
    cases = [frozen for case in chosen if (frozen := backend.frozen(case))]
    tally = examine(cases, [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {}
    assert {name.removesuffix(" frozen") for name in tally.not_runnable} <= NOT_RUNNABLE
    assert tally.run >= (1767 if every else 420) and tally.edited >= (460 if every else 85)


@pytest.mark.parametrize(
    ("names", "count"), [(backend.QUICK, 3), pytest.param(("",), 9, marks=pytest.mark.long)]
)
def test_light_models(tmp_path: Path, names: tuple[str, ...], count: int) -> None:
    tally = examine(backend.light_cases(names), [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {} and tally.not_runnable == set()
    assert tally.run == tally.edited == count


def test_models_of_old_exporters(tmp_path: Path) -> None:
    tally = examine(backend.exported_cases(), [Simplify()], tmp_path)
    assert tally.wrong == {} and tally.refused == {}
    assert tally.run >= 138 and tally.edited >= 17


@pytest.mark.parametrize(
    ("to", "every"),
    [(17, False), *(pytest.param(to, True, marks=pytest.mark.long) for to in (13, 17, 20, 23))],
)
def test_raising_the_opset(tmp_path: Path, to: int, every: bool) -> None:
    """Also of 120 models that old exporters wrote in opset 6 to 12."""
    cases = [*backend.node_cases(), *backend.exported_cases()]
    older = _pick([case for case in cases if 0 < _opset(case) < to], every)
    tally = examine(older, [RaiseOpset(to=to)], tmp_path, raised=True)
    assert tally.wrong == {}
    assert set(tally.refused) <= NO_WAY_UP
    assert tally.edited == tally.run - len(tally.refused)
    assert tally.run >= ({13: 213, 17: 647, 20: 961, 23: 1243}[to] if every else 160)


def _opset(case: Case) -> int:
    return next((o.version for o in case.model.opset_import if not o.domain), 0)


def sweep(
    cases: Iterable[Case], orders: Sequence[tuple[str, Sequence[Transform]]], folder: Path
) -> Tally:
    """Apply every order of steps to every case that can be judged."""
    tally = Tally()
    for case in cases:
        source = folder / "source.onnx"
        source.write_bytes(case.model.SerializeToString())
        runner: str | None = None
        model = file.load(source)
        for name, steps in orders:
            edited = model.clone()
            try:
                count = _apply(edited, steps)
            except Exception as error:  # a recipe rolls the step back
                tally.refused[f"{case.name} by {name}"] = f"{type(error).__name__}: {error}"[:300]
                continue
            if not count:
                continue
            runner = runner or backend.runs_on(case, source)
            if runner is None:
                break
            tally.edited += 1
            path = file.save(edited, folder / "edited.onnx")
            if found := _difference_on(case, path, runner):
                tally.wrong[f"{case.name} by {name}"] = found
        tally.run += 1
    return tally


def _apply(model: ir.Model, steps: Sequence[Transform]) -> int:
    before, counts = describe_signature(model), []
    for step in steps:
        counts.append(step.apply(model))
        if counts[-1]:
            check_model(model, before, step.name())
    return sweeps.edits(steps, counts)


def _difference_on(case: Case, path: Path, runner: str) -> str | None:
    """Compare on the runner that was right before; the evaluator lacks foreign operators."""
    found = "does not run"
    for name in dict.fromkeys((runner, "onnxruntime")):
        try:
            text = backend.difference(case, backend.RUNNERS[name](case, path))
        except Exception as error:  # whatever the runtime raises on a broken model
            text = f"does not run: {str(error)[:300]}"
        if text is None:
            return None
        found = text
    return found


def _all_cases(light: tuple[str, ...] = ("",)) -> Iterator[Case]:
    return chain(backend.node_cases(), backend.light_cases(light), backend.exported_cases())


def test_cases_through_all_transforms_in_order(tmp_path: Path) -> None:
    """One case of each set of operators and attributes; the long tests take all."""
    orders = [(name, steps) for name, steps in sweeps.orders(0) if name == "all in order"]
    tally = sweep(backend.pick_distinct(_all_cases(backend.QUICK)), orders, tmp_path)
    assert tally.wrong == {} and _names(tally.refused) <= NO_WAY_UP
    assert tally.run >= 510 and tally.edited >= 110


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_cases_through_every_transform_and_twenty_orders(tmp_path: Path) -> None:
    orders = list(sweeps.orders(20))
    tally = sweep(_all_cases(), orders, tmp_path)
    assert tally.wrong == {} and _names(tally.refused) <= NO_WAY_UP


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_frozen_cases_through_every_transform_and_five_orders(tmp_path: Path) -> None:
    """All inputs are constants: whatever can be folded is."""
    cases = (frozen for case in backend.node_cases() if (frozen := backend.frozen(case)))
    tally = sweep(cases, list(sweeps.orders(5)), tmp_path)
    assert tally.wrong == {} and _names(tally.refused) <= NO_WAY_UP


def _names(found: Iterable[str]) -> set[str]:
    return {name.partition(" ")[0] for name in found}
