"""The journal of regions comes back as it was written, and says what it cannot read."""

import json
import math
from pathlib import Path

import pytest

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadData
from ortune.core.step import Recipe
from ortune.core.trial import Interval, Plan
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.search.experiment.surveys import NAME, RegionJournal, read_journal
from ortune.search.mixed_precision.survey import MixtureOutcome, RegionCost, Survey

PLAN = Plan(Recipe("int8-dynamic", (Int8Dynamic(exclude=('a "b", [c]',)),)), Cpu(threads=1))
COST = RegionCost(
    *("a", ("a", "a, (act)"), "p", ("MatMul",), Interval(0.1, 0.0, 0.2)),
    Interval(-0.05, -0.1, 0.0),
    layers=("a",),
)
SURVEY = Survey("key", PLAN, (COST,), 0.1, "share", 5.0)
TRIED = MixtureOutcome(
    *("key", "trial", PLAN, ("a",), 3, 0.4, 0.8, Interval(0.5, 0.4, 0.6), 0.7, True),
    why="the best so far",
)


def test_it_comes_back_in_order(tmp_path: Path) -> None:
    first = RegionJournal(tmp_path)
    first.add(SURVEY)
    first.add(TRIED)
    again = RegionJournal(tmp_path)
    assert (again.surveys, again.mixtures) == ([SURVEY], [TRIED])
    assert read_journal(tmp_path) == [SURVEY, TRIED]


def test_what_is_not_known_comes_back_too(tmp_path: Path) -> None:
    nothing = Interval(math.nan, math.nan, math.nan)
    broken = RegionCost("b", ("b",), "q", ("Conv",), nothing, nothing, error="no time was left")
    RegionJournal(tmp_path).add(Survey("key", PLAN, (broken,), math.nan, error="it died"))
    (found,) = read_journal(tmp_path)
    assert isinstance(found, Survey)
    assert math.isnan(found.regions[0].accuracy_cost.value)
    assert found.error == "it died"


def test_a_line_of_an_older_version_is_read(tmp_path: Path) -> None:
    RegionJournal(tmp_path).add(TRIED)
    path = tmp_path / NAME
    line = json.loads(path.read_text())
    line["mixture"] |= {"correction": 1.6, "stored": ["b"]}
    path.write_text(json.dumps(line) + "\n")
    assert read_journal(tmp_path) == [TRIED]


def test_no_journal_is_empty(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == []
    assert RegionJournal(tmp_path).surveys == []
    assert not (tmp_path / NAME).exists()


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    RegionJournal(tmp_path).add(SURVEY)
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole + whole[:50])
    assert read_journal(tmp_path) == [SURVEY]
    RegionJournal(tmp_path).add(TRIED)
    assert read_journal(tmp_path) == [SURVEY, TRIED]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"other": {}}',
        b'{"survey": {"key": 1}}',
        b'{"survey": {}, "mixture": {}}',
        json.dumps({"survey": {"low": 2, "value": 1, "high": 0}}).encode(),
        json.dumps({"survey": {"is": "backends/cpu", "config": [["x.y", "/etc"]]}}).encode(),
    ],
)
def test_what_cannot_be_read_is_said(line: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(line + b"\n")
    with pytest.raises(BadData) as caught:
        read_journal(tmp_path)
    assert NAME in caught.value.what
    assert caught.value.fix
