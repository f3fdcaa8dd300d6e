"""The search's memory survives being killed at any byte."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.studies import job, study

from ortune.backends.cpu import Cpu
from ortune.core.budget import Budget
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.study import Ending
from ortune.core.trial import (
    Block,
    Burst,
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    ScoreChange,
    Status,
    Trial,
    Verdict,
)
from ortune.metrics.cosine import Cosine
from ortune.metrics.function import Function
from ortune.search.experiment.ledger import (
    Ledger,
    disable_imports,
    has_trials,
    is_finished,
    lock_run,
    read_header,
    read_study,
    read_trials,
    write_ending,
    write_header,
)


def trial(key: str, part: str = "search") -> Trial:
    burst = Burst((100, 110), (0.0, -1.0), 3)
    return Trial(
        key,
        Plan(AS_IS, Cpu(threads=2)),
        part,
        Status.OK,
        Interval(0.5, 0.4, 0.6),
        (Score("top1", 0.9, 0.91, 0.88, 0.92, 100, Verdict.LIKELY, 300, "Wilson"),),
        1234,
        Measurement((Pair((Block(burst, burst),)),), 1, 2, 3, {"CPUExecutionProvider": 4}),
        why="text with \n a line break",
    )


def test_trials_come_back_as_they_were(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(trial("a"))
    ledger.append(trial("a", "final"))
    again = Ledger(tmp_path)
    assert again.trials == [trial("a"), trial("a", "final")]
    assert again.find("a", "final") == trial("a", "final")
    assert again.find("b", "search") is None


def test_a_score_that_fell_and_nothing_known_come_back_as_they_were(tmp_path: Path) -> None:
    """A change may be negative, which no latency ratio is."""
    change = ScoreChange(-0.005, -0.014, 0.002)
    score = replace(trial("a").scores[0], verdict=Verdict.UNDECIDED, chance=0.4, change=change)
    ledger = Ledger(tmp_path)
    ledger.append(replace(trial("a"), scores=(score,)))
    write_header(tmp_path, study(tmp_path / "made").header)
    assert Ledger(tmp_path).trials[0].scores == (score,)
    assert read_study(tmp_path).trials[0].scores == (score,)


def test_plans_that_were_looked_at_count_once_if_they_answer_alike(tmp_path: Path) -> None:
    lossy = Plan(Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu())

    def scored(key: str, value: float, **more: object) -> Trial:
        scores = (replace(trial("a").scores[0], value=value),)
        return replace(trial(key), **{"plan": lossy, "scores": scores} | more)

    ledger = Ledger(tmp_path)
    assert ledger.count_looked_at() == 1, "the one that is judged"
    for looked in (
        scored("a", 0.9),
        scored("b", 0.9),
        scored("c", 0.8, status=Status.FAILS),
        scored("d", 0.7, stage="history"),
        scored("e", 0.6, part="final"),
        scored("f", 0.5, scores=()),
        scored("g", 0.4, plan=trial("a").plan),
        scored("h", 0.3),
    ):
        ledger.append(looked)
    assert ledger.count_looked_at() == 3
    ledger.set_aside(lambda each: each.key == "h")
    assert ledger.count_looked_at() == 3, "it was looked at all the same"


def test_a_later_line_replaces_the_former_and_nothing_is_overwritten(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for one in (trial("a"), trial("a", "final"), trial("b", "final")):
        ledger.append(one)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    concluded = replace(trial("a", "final"), ratio=Interval(0.5, 0.3, 0.7))
    ledger.append(concluded)
    expected = [trial("a"), concluded, trial("b", "final")]
    assert ledger.trials == Ledger(tmp_path).trials == expected
    assert (tmp_path / "ledger.jsonl").read_bytes().startswith(before)


@settings(deadline=None)
@given(st.integers(1, 400))
def test_a_torn_line_is_cut_off_and_nothing_else_is_lost(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    ledger = Ledger(folder)
    for key in "abc":
        ledger.append(trial(key))
    path = folder / "ledger.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    again = Ledger(folder)
    assert [t.key for t in again.trials] == ["a", "b"]
    again.append(trial("d"))
    assert [t.key for t in Ledger(folder).trials] == ["a", "b", "d"]


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("{not json}\n")
    with pytest.raises(BadData, match="cannot be read"):
        Ledger(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for root in (tmp_path, str(tmp_path)):
        with pytest.raises(BadData, match="no run in"):
            read_study(root)


def test_a_trial_is_on_disk_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut keeps what was synced: by then the whole line had left Python's buffer."""
    path, synced = tmp_path / "ledger.jsonl", []

    def fsync(handle: int) -> None:
        if os.fstat(handle).st_ino == path.stat().st_ino:
            synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    ledger = Ledger(tmp_path)
    for count in (1, 2):
        ledger.append(trial("abc"[count]))
        assert len(synced) == count
        assert synced[-1] == path.read_bytes()
        assert synced[-1].count(b"\n") == count
    assert ledger.trials == [trial("b"), trial("c")], "known at once, too"


def test_a_full_disk_is_told_in_two_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(OrtuneError, match=r"cannot write .*ledger\.jsonl") as caught:
        ledger.append(trial("a"))
    assert "free space" in caught.value.fix
    assert ledger.trials == [], "what is not on disk is not known either"


def test_a_folder_holds_one_search_at_a_time(tmp_path: Path) -> None:
    with (
        lock_run(tmp_path),
        pytest.raises(BadData, match="another search is running"),
        lock_run(tmp_path),
    ):
        raise AssertionError("two at once")
    with lock_run(tmp_path):
        pass


def test_a_line_that_another_process_is_writing_is_left_out_and_kept(tmp_path: Path) -> None:
    made = study(tmp_path)
    root = Path(made.root)
    write_header(root, made.header)
    ledger = Ledger(root)
    ledger.append(made.trials[0])
    path = root / "ledger.jsonl"
    with path.open("ab") as file:
        file.write(b'{"key": "half')
    torn = path.read_bytes()
    assert read_study(root).trials == (made.trials[0],)
    assert path.read_bytes() == torn, "reading changes nothing"


def test_a_study_comes_back_with_its_ending_and_without_plans_that_change_nothing(
    tmp_path: Path,
) -> None:
    made = study(tmp_path)
    root = Path(made.root)
    assert read_header(root) is None
    write_header(root, made.header)
    assert read_header(root) == made.header
    with pytest.raises(BadData, match="no run in"):
        read_study(root)
    ledger = Ledger(root)
    unchanged = replace(made.trials[1], key="0" * 16, status=Status.UNCHANGED)
    for one in (*made.trials, unchanged):
        ledger.append(one)
    assert read_study(root).ending == Ending()
    write_ending(root, made.ending)
    assert read_study(root) == made
    (root / "ending.json").write_text("{")
    with pytest.raises(BadData, match=r"ending\.json cannot be read"):
        read_study(root)


def test_a_run_without_a_header_is_none(tmp_path: Path) -> None:
    Ledger(tmp_path).append(trial("a"))
    with pytest.raises(BadData, match="no run in"):
        read_study(tmp_path)


def stored(**fields: object) -> str:
    return json.dumps({**codec.encode(trial("a")), **fields}) + "\n"


def test_a_trial_of_before_the_parts_were_called_so_is_read(tmp_path: Path) -> None:
    old = json.loads(stored(phase="final"))
    del old["part"]
    (tmp_path / "ledger.jsonl").write_text(json.dumps(old) + "\n")
    assert Ledger(tmp_path).trials == [trial("a", "final")]


def test_a_header_with_the_record_of_a_machine_is_read(tmp_path: Path) -> None:
    made = study(tmp_path)
    root = Path(made.root)
    write_header(root, made.header)
    path, before = root / "header.json", read_header(root)
    content = json.loads(path.read_text())
    tally = {"model": ["conv", "small"], "features": {"hint:cpu": 1.0}, "mean": 1.9}
    path.write_text(json.dumps({**content, "paid": {"tallies": [tally]}}))
    assert read_header(root) == before
    path.write_text(json.dumps({**content, "": 1}))
    with pytest.raises(BadData, match="has no field"):
        read_header(root)


def test_a_step_that_is_gone_is_read_as_it_was_stored(tmp_path: Path) -> None:
    gone = {"name": "clean", "steps": [{"is": "transforms/merge-convs", "separate": True}]}
    plan = {**codec.encode(trial("a").plan), "recipe": gone}
    (tmp_path / "ledger.jsonl").write_text(stored(plan=plan))
    ledger = Ledger(tmp_path)
    assert str(ledger.trials[0].plan.recipe.steps[0]) == "merge-convs(separate=true)"
    ledger.append(ledger.trials[0])
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == json.loads(lines[1])


def test_a_plan_of_a_backend_that_is_gone_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    plan = {**codec.encode(trial("a").plan), "backend": {"is": "backends/tpu"}}
    (tmp_path / "ledger.jsonl").write_text(stored(plan=plan))
    header = {"job": {"versions": {"ortune": "0.1.0"}}}
    (tmp_path / "header.json").write_text(json.dumps(header))
    with pytest.raises(BadData, match="tpu") as caught:
        Ledger(tmp_path)
    assert "written by ortune 0.1.0" in caught.value.what
    assert "read it with ortune 0.1.0" in caught.value.fix
    (tmp_path / "header.json").unlink()
    with pytest.raises(BadData, match="written by ortune of an unknown version"):
        Ledger(tmp_path)


def test_the_folder_is_synced_once_when_the_ledger_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("ortune.core.atomic_write.sync_folder", synced.append)
    ledger = Ledger(tmp_path)
    ledger.append(trial("a"))
    ledger.append(trial("b"))
    Ledger(tmp_path).append(trial("c"))
    assert synced == [tmp_path]


def test_a_run_has_begun_with_its_first_trial_or_while_a_search_is_at_work(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert not has_trials(root) and not root.exists(), "asking makes nothing"
    root.mkdir()
    assert not has_trials(root)
    (root / "ledger.jsonl").touch()
    assert not has_trials(root)
    with lock_run(root):
        assert has_trials(root)
    assert not has_trials(root)
    Ledger(root).append(trial("a"))
    assert has_trials(root)


def test_trials_are_read_and_a_torn_line_is_kept_for_who_writes_it(tmp_path: Path) -> None:
    assert read_trials(tmp_path) == []
    Ledger(tmp_path).append(trial("a"))
    path = tmp_path / "ledger.jsonl"
    torn = path.read_bytes() + b"{"
    path.write_bytes(torn)
    assert read_trials(tmp_path) == [trial("a")]
    assert path.read_bytes() == torn


def test_a_run_came_to_its_end_unless_it_was_killed_or_interrupted(tmp_path: Path) -> None:
    assert not is_finished(tmp_path)
    for finished, came in (("done", True), ("time", True), ("interrupted", False)):
        write_ending(tmp_path, Ending(finished=finished))
        assert is_finished(tmp_path) is came
    (tmp_path / "ending.json").write_text("[]")
    assert not is_finished(tmp_path)


def test_trials_at_other_batches_are_read_by_their_number(tmp_path: Path) -> None:
    made = study(tmp_path)
    root = Path(made.root)
    write_header(root, made.header)
    Ledger(root).append(made.trials[0])
    for name in ("16", "2", "own"):
        folder = root / "batches" / name
        folder.mkdir(parents=True)
        Ledger(folder).append(trial(name))
    (root / "batches" / "4").mkdir()
    (root / "batches" / "4" / "ledger.jsonl").touch()
    assert list(read_study(root).batches.items()) == [(2, (trial("2"),)), (16, (trial("16"),))]


@pytest.mark.parametrize(
    ("ends", "budget", "lower"),
    [
        ([(-math.inf, 0.5)], ("", 0.5), True),
        ([(-math.inf, math.inf), (-math.inf, 0.5)], ("", 0.5), True),
        ([(-math.inf, math.inf)], ("", 0.5), False),
        ([(0.2, math.inf)], ("", 0.5), False),
        ([(0.2, 0.5)], ("", 0.5), False),
        ([], ("", 0.5), False),
        ([], ("base", 0.01), True),
        ([], ("base", 0.0), False),
        ([], ("base", -0.01), False),
        ([(0.2, math.inf)], ("base", -0.01), False),
        ([(-math.inf, 0.5)], ("base", -0.01), True),
    ],
)
def test_the_direction_of_a_function_that_is_not_imported_is_read_off_scores_and_budget(
    ends: list[tuple[float, float]], budget: tuple[str, float], lower: bool
) -> None:
    relative, limit = budget[0] == "base", budget[1]
    asked = replace(job(names=()), budget=Budget(Function("gone:fn"), limit, relative))
    scores = [Score("function", 0.4, 0.4, low, high, 9) for low, high in ends]
    trials = [replace(trial("a"), scores=(one,)) for one in scores]
    found = disable_imports(asked, [replace(trial("b"), scores=()), *trials])
    assert found.budget.metric.higher_is_better is not lower
    assert replace(found, budget=asked.budget) == asked, "nothing else changes"
    assert (found.budget.limit, found.budget.relative) == (limit, relative)


def test_a_study_is_read_without_the_function_that_scored_it(tmp_path: Path) -> None:
    made = study(tmp_path)
    root, budget = Path(made.root), Budget(Function("gone:fn"), 0.5)
    write_header(root, replace(made.header, job=replace(made.job, budget=budget)))
    Ledger(root).append(made.trials[0])
    assert read_study(root).budget.metric.higher_is_better
    assert str(read_study(root).budget) == "gone:fn>=0.5"


def test_a_metric_of_ortunes_own_stays_as_it_is() -> None:
    asked = replace(job(names=()), budget=Budget(Cosine(), 0.99))
    assert disable_imports(asked, []) is asked


@pytest.mark.parametrize("name", ["header.json", "workers"])
def test_a_link_out_of_the_folder_is_refused_before_anything_is_read(
    tmp_path: Path, name: str
) -> None:
    root, mine = tmp_path / "run", tmp_path / "mine"
    (root / "sub").mkdir(parents=True)
    mine.write_text("{}")
    (root / "again").symlink_to(root / "sub")
    assert read_header(root) is None, "a link within it is none"
    (root / name).symlink_to(mine)
    for refuses in (read_header, lock_run):
        with pytest.raises(BadData, match=f"{name}' links out of the run's folder") as caught:
            refuses(root)
        assert caught.value.fix.startswith("do not trust this file, or put")
    assert has_trials(root), "no other search may begin there"


@pytest.mark.parametrize("name", ["../x", "/x", "..", "C:\\x", "\\x", "a/../../x", "a\0b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    for field in ("key", "artefact"):
        (tmp_path / "ledger.jsonl").write_text(stored(**{field: name}))
        with pytest.raises(BadData, match="leads out of the run's folder") as caught:
            read_trials(tmp_path)
        assert caught.value.fix == "do not trust this file"
    write_header(tmp_path, replace(study(tmp_path / "made").header, models={name: "/x.onnx"}))
    with pytest.raises(BadData, match=r"header\.json: .* leads out of the run's folder"):
        read_header(tmp_path)


def test_settings_that_a_file_may_not_make_are_refused(tmp_path: Path) -> None:
    backend = {"is": "backends/cpu", "config": ["session.enable_profiling=1"]}
    plan = {**codec.encode(trial("a").plan), "backend": backend}
    (tmp_path / "ledger.jsonl").write_text(stored(plan=plan))
    with pytest.raises(BadData, match="a setting that a file") as caught:
        read_trials(tmp_path)
    assert caught.value.fix.endswith("search again without that setting")
