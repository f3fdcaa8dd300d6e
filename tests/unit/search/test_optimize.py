"""The verb's own part: what a run begins with, and what it leaves for the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.hardware.paid import NOTHING, Paid
from ortune.core.study import Study
from ortune.measurement.workloads.latency import Latency
from ortune.search import optimize, warm_start
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.ledger import Ledger, read_header, write_ending, write_header
from ortune.search.recipe.space import SearchTarget
from ortune.search.request import Optimize

OFFERED = Capabilities(versions={"onnxruntime": "1.31.1"}, machine={"cpu": "A CPU"})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """A search of which everything but the verb's own part is scripted."""
    made = studies.study(tmp_path / "made")

    def prepare(asked: Experiment, root: Path, *_: object, **__: object) -> Context:
        if read_header(root) is None:
            write_header(root, replace(made.header, by_operator={"Relu": 1.0}))
        return Context(root, made.job, studies.FACTS, {}, {}, {}, {}, "", 1.0)

    def search(context: Context, *_: object) -> None:
        known.append(context.paid)
        assert context.by_operator == {"Relu": 1.0}
        ledger = Ledger(context.root)
        for trial in made.trials:
            ledger.append(trial)
        write_ending(context.root, replace(made.ending, finished=ends[-1]))

    for name, instead in {"prepare_context": prepare, "run_search": search}.items():
        monkeypatch.setattr(optimize, name, instead)
    monkeypatch.setattr(optimize.golden, "write_golden_samples", lambda study, context: None)
    monkeypatch.setattr(optimize.golden, "write_inputs", lambda context: None)
    monkeypatch.setattr(optimize, "read_targets", lambda on: [SearchTarget(Cpu(), OFFERED)])
    monkeypatch.setattr(warm_start, "query_capabilities", lambda backend: OFFERED)

    def run(out: str, finished: str = "done", **asked: Any) -> Study:
        ends.append(finished)
        return optimize.run(Optimize("toy.onnx", out=tmp_path / out, **asked))

    known.clear()
    return run


known: list[Paid] = []
ends: list[str] = []


def searches() -> list[int]:
    """Return how many searches each tally of the only record is of."""
    (path,) = warm_start.list_record_files()
    kind = warm_start.machine_kind(Cpu(), Latency(), OFFERED)
    record = warm_start.MachineRecord.for_kind(kind)
    assert record is not None and record.path == path
    return [one.searches for one in record.read().tallies]


def test_the_next_search_begins_with_what_paid_in_the_last(run: Callable[..., Study]) -> None:
    run("one")
    assert known == [NOTHING]
    assert set(searches()) == {1}
    study = run("two")
    assert known[1] == study.header.paid != NOTHING
    assert {one.searches for one in study.header.paid.tallies} == {1}
    assert set(searches()) == {2}


def test_a_run_that_goes_on_knows_what_it_knew_and_is_counted_once(
    run: Callable[..., Study],
) -> None:
    run("one", finished="interrupted")
    assert warm_start.list_record_files() == ()
    run("other")
    run("one", finished="time")
    assert known[2] == NOTHING
    assert set(searches()) == {2}
    run("one", finished="done")
    assert set(searches()) == {2}


def test_switched_off_nothing_is_read_or_written(run: Callable[..., Study]) -> None:
    run("one", warm_start=False)
    assert warm_start.list_record_files() == ()
    run("two")
    assert run("three", warm_start=False).header.paid == NOTHING
    assert set(searches()) == {1}


def test_one_option_turns_it_off(run: Callable[..., Study]) -> None:
    run("one", warm_start=False)
    assert not list(warm_start.list_record_files())
    run("two")
    assert searches()
