"""What a run begins with stays what it began with; what it learns is added once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.core.event import Event, Note, ignore_event
from ortune.core.hardware.paid import NOTHING, Paid, PlanTally
from ortune.core.study import Study
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import Ledger, read_header, write_ending, write_header
from ortune.search.warm_start import (
    MachineRecord,
    is_concluded,
    load_warm_start,
    record_study,
)

PAID = Paid((PlanTally(("conv", "small"), {"kind:cpu": 1.0, "clean:": 1.0}, 1, -0.5),))
SHARES = {"Conv": 0.9, "Relu": 0.1}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = studies.study(tmp_path)
    return replace(made, header=replace(made.header, by_operator=SHARES))


@pytest.fixture
def record(tmp_path: Path) -> MachineRecord:
    return MachineRecord(tmp_path / "cache" / "one.json", {"cpu": "A CPU"})


def context(study: Study) -> Context:
    root = Path(study.root)
    return Context(root, study.job, study.header.facts, {}, {}, {}, {}, "", 1.0)


def said(told: list[Event]) -> list[str]:
    return [event.text for event in told if isinstance(event, Note)]


def test_the_record_is_copied_into_the_header_before_the_first_trial(
    study: Study, record: MachineRecord
) -> None:
    told: list[Event] = []
    root = Path(study.root)
    write_header(root, study.header)
    record.add(PAID)
    found = load_warm_start(context(study), record, told.append)
    assert (found.paid, found.by_operator) == (PAID, SHARES)
    (text,) = said(told)
    assert text.startswith("known from earlier searches on this kind of machine: 1 kind of plans")
    assert text.endswith(f"({record.path}; --no-warm-start leaves it out)")
    header = read_header(root)
    assert header is not None
    assert (header.paid, header.by_operator) == (PAID, SHARES)
    record.path.unlink()
    Ledger(root).append(study.baseline)
    again = load_warm_start(context(study), record, told.append)
    assert again.paid == PAID
    assert load_warm_start(context(study), None, told.append).paid == PAID
    assert len(told) == 1


def test_switched_off_nothing_is_known(study: Study, record: MachineRecord) -> None:
    write_header(Path(study.root), study.header)
    record.add(PAID)
    assert load_warm_start(context(study), None, lambda event: None).paid == NOTHING


def test_a_strange_record_is_said_once_and_left_out(study: Study, record: MachineRecord) -> None:
    told: list[Event] = []
    write_header(Path(study.root), study.header)
    record.path.parent.mkdir()
    record.path.write_text("{}")
    assert load_warm_start(context(study), record, told.append).paid == NOTHING
    (text,) = said(told)
    assert text.endswith("one.json: another version wrote it")


def test_a_header_of_before_knows_nothing(study: Study) -> None:
    root = Path(study.root)
    write_header(root, study.header)
    data = json.loads((root / "header.json").read_text())
    del data["paid"], data["by_operator"]
    (root / "header.json").write_text(json.dumps(data))
    header = read_header(root)
    assert header is not None
    assert (header.paid, header.by_operator) == (NOTHING, {})


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_a_run_begun_without_regions_goes_on_without(
    study: Study, began: bool, asked: bool
) -> None:
    write_header(Path(study.root), replace(study.header, by_region=began))
    found = load_warm_start(context(study), None, ignore_event, by_region=asked)
    assert found.by_region is (began and asked)


def test_what_a_search_learnt_is_added(study: Study, record: MachineRecord) -> None:
    record_study(study, record, pytest.fail)
    found = record.read().tallies
    assert found
    assert all(one.searches == 1 for one in found)
    text = record.path.read_text()
    assert "toy" not in text
    assert str(Path(study.root).parent) not in text


def test_a_place_that_cannot_be_written_costs_nothing(study: Study, tmp_path: Path) -> None:
    told: list[Event] = []
    (tmp_path / "file").write_text("")
    record_study(study, MachineRecord(tmp_path / "file" / "one.json", {}), told.append)
    (text,) = said(told)
    assert text.startswith("what paid is not recorded: ")


def test_a_run_that_ended_is_known_to_have_ended(study: Study) -> None:
    root = Path(study.root)
    assert not is_concluded(root)
    write_header(root, study.header)
    Ledger(root).append(study.baseline)
    assert not is_concluded(root)
    write_ending(root, replace(study.ending, finished="interrupted"))
    assert not is_concluded(root)
    write_ending(root, study.ending)
    assert is_concluded(root)
