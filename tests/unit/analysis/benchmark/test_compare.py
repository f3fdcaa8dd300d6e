"""Saved runs against each other: matching, judging, and files that are none."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ortune as ot
from ortune.analysis.benchmark import compare as results_file
from ortune.analysis.benchmark.compare import ComparedRow, CompareResult
from ortune.analysis.benchmark.requests import Thresholds
from ortune.cli.main import main
from ortune.core.errors import OrtuneError

HERE = {"cpu": "A", "effective cpus": "2"}
THERE = {"cpu": "B", "effective cpus": "64"}
ANY_FOLDER = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def row(
    model: str = "m.onnx", backend: str = "cpu", ms: float = 10.0, seed: int = 0, **more: Any
) -> dict[str, Any]:
    """Three sets of six blocks of ten runs, with 0.5 % of noise a run and 0.3 % a process."""
    rng = random.Random(f"{seed} {model} {backend}")
    level = [ms * 1e6 * rng.gauss(1, 0.003) for _ in range(3)]
    turns = [
        [[round(one * rng.gauss(1, 0.005)) for _ in range(10)] for _ in range(6)] for one in level
    ]
    return {
        "model": f"/models/{model}",
        "backend": backend,
        "digest": model,
        "turns": turns,
    } | more


def write(path: Path, rows: Sequence[dict[str, Any]], machine: dict[str, str] = HERE) -> Path:
    path.write_text(json.dumps({"rows": list(rows), "machine": machine, "versions": {"x": "1"}}))
    return path


def only(found: CompareResult, index: int = 0) -> ComparedRow:
    return found.comparisons[0].rows[index]


@pytest.mark.parametrize(
    ("factor", "limit", "regressed"),
    [
        (1.0, 0.0, False),
        (1.1, 0.05, True),
        (1.1, 0.2, False),
        (0.8, 0.05, False),
        (2.0, 0.5, True),
    ],
)
def test_a_slower_run_is_flagged_beyond_threshold_and_noise(
    tmp_path: Path, factor: float, limit: float, regressed: bool
) -> None:
    one = write(tmp_path / "a.json", [row()])
    two = write(tmp_path / "b.json", [row(ms=10 * factor, seed=1)])
    found = ot.compare([one, two], thresholds={"latency": limit})
    assert only(found).latency.value == pytest.approx(factor, rel=0.01)
    assert (only(found).regressions == ("latency",)) is regressed
    assert found.regressions == regressed


@ANY_FOLDER
@given(factor=st.floats(0.5, 2), limit=st.floats(0, 0.5), seed=st.integers(0, 1000))
def test_a_flag_means_over_the_threshold_and_outside_the_noise(
    tmp_path: Path, factor: float, limit: float, seed: int
) -> None:
    one = write(tmp_path / "a.json", [row()])
    two = write(tmp_path / "b.json", [row(ms=10 * factor, seed=seed)])
    found = only(ot.compare([one, two], thresholds={"latency": limit}))
    latency = found.latency
    assert latency.low < latency.value < latency.high
    assert bool(found.regressions) is (latency.low > 1 + limit)
    back = only(ot.compare([two, one])).latency
    assert back.value * latency.value == pytest.approx(1)
    assert back.low * latency.high == pytest.approx(1)


def test_a_wide_interval_is_no_regression_because_its_middle_is_over_the_threshold(
    tmp_path: Path,
) -> None:
    one = write(tmp_path / "a.json", [row()])
    two = write(tmp_path / "b.json", [row(ms=10 * 1.27)])
    compared = only(ot.compare([one, two], thresholds={"latency": 0.25}))
    assert 1 < compared.latency.low < 1.25 < compared.latency.value
    assert not compared.regressions
    assert compared.verdict == "over the threshold, but within noise"


def test_an_occasion_of_a_percent_is_not_called_a_difference(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", [row()])
    for seed in range(20):
        two = write(tmp_path / "b.json", [row(ms=10 * (1 + 0.02 * (seed % 2)), seed=seed)])
        assert only(ot.compare([one, two], thresholds={"latency": 0})).verdict in (
            "no difference",
            "over the threshold, but within noise",
        )


names = st.sampled_from(["a.onnx", "b.onnx", "c.onnx"])
specs = st.lists(
    st.tuples(names, st.sampled_from(["cpu", "openvino"]), st.integers(0, 2)), max_size=8
)


@ANY_FOLDER
@given(mine=specs, theirs=specs, by=st.sets(st.sampled_from(results_file.FIELDS)))
def test_every_row_is_paired_once_or_named_as_left_over(
    tmp_path: Path, mine: Any, theirs: Any, by: set[str]
) -> None:
    def run(name: str, rows: Any) -> results_file.SavedRun:
        made = [{"model": m, "backend": b, "batch": k, "latency_ns": [1, 2]} for m, b, k in rows]
        return results_file.read_run(write(tmp_path / name, [*made, row("z.onnx")]))

    one, two = run("a.json", mine), run("b.json", theirs)
    pairs, only_one, only_two = results_file.match_rows(one, two, sorted(by))
    assert sorted(r.index for r in (*(a for a, _ in pairs), *only_one)) == list(
        range(len(one.rows))
    )
    assert sorted(r.index for r in (*(b for _, b in pairs), *only_two)) == list(
        range(len(two.rows))
    )
    assert all(a.make_key(sorted(by)) == b.make_key(sorted(by)) for a, b in pairs)
    left = {r.make_key(sorted(by)) for r in only_one} & {r.make_key(sorted(by)) for r in only_two}
    assert not left, "what could be paired is paired"
    same, rest, more = results_file.match_rows(one, one, sorted(by))
    assert all(a is b for a, b in same) and not rest and not more


def test_on_another_machine_only_ratios_to_a_common_first_row_are_judged(tmp_path: Path) -> None:
    here = [row("base.onnx"), row("one.onnx", ms=5), row("two.onnx", ms=8)]
    there = [
        row("base.onnx", ms=30, seed=1),
        row("one.onnx", ms=15, seed=1),
        row("two.onnx", ms=24 * 1.2, seed=1),
    ]
    one, two = write(tmp_path / "a.json", here), write(tmp_path / "b.json", there, THERE)
    found = ot.compare([one, two])
    assert not found.comparisons[0].same_machine
    assert [r.field for r in found.comparisons[0].differs] == ["cpu", "effective cpus"]
    rows = found.comparisons[0].rows
    assert [r.judged for r in rows] == [False, True, True]
    assert [r.regressions for r in rows] == [(), (), ("latency",)]
    assert rows[2].latency.value == pytest.approx(1.2, rel=0.01)
    assert rows[0].latency.value == pytest.approx(3, rel=0.01)

    across = ot.compare([one, two], across_machines=True)
    assert [r.regressions for r in across.comparisons[0].rows] == [("latency",)] * 3
    alone = ot.compare([one, write(tmp_path / "c.json", there[1:], THERE)])
    assert [r.judged for r in alone.comparisons[0].rows] == [False, False]
    assert alone.comparisons[0].only_reference == ("base.onnx on cpu",)


def test_percentiles_and_load_times_of_another_machine_are_not_judged(tmp_path: Path) -> None:
    figures = {"p99_ns": 100.0, "load_ns": [100], "peak_rss": 100}
    grown = {"p99_ns": 300.0, "load_ns": [300], "peak_rss": 300}
    one = write(tmp_path / "a.json", [row(**figures)])
    two = write(tmp_path / "b.json", [row(**grown)], THERE)
    limits = {"p99": 0.1, "load": 0.1, "memory": 0.1}
    assert only(ot.compare([one, two], thresholds=limits)).regressions == ("memory",)
    across = ot.compare([one, two], thresholds=limits, across_machines=True)
    assert only(across).regressions == ("p99", "memory", "load")


def test_a_load_time_of_zero_is_no_figure(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", [row(load_ns=[0, 0])])
    two = write(tmp_path / "b.json", [row(load_ns=[100])])
    assert only(ot.compare([one, two], thresholds={"load": 0.1})).load is None


def test_relative_cancels_what_slows_all_rows_alike(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", [row("base.onnx"), row("one.onnx", ms=5)])
    two = write(tmp_path / "b.json", [row("base.onnx", ms=13), row("one.onnx", ms=6.5)])
    assert ot.compare([one, two]).regressions == 2
    found = ot.compare([one, two], relative=True)
    assert found.regressions == 0 and only(found, 1).how == "relative to base.onnx on cpu"
    other = write(tmp_path / "c.json", [row("base.onnx", digest="x"), row("one.onnx", ms=6.5)])
    lone = only(ot.compare([one, other], relative=True), 1)
    assert not lone.judged and lone.verdict == "not judged: no common first row to compare with"


def test_other_metrics_are_judged_only_when_asked(tmp_path: Path) -> None:
    figures = {"p99_ns": 100.0, "peak_rss": 100, "size": 100, "load_ns": [90, 100, 500]}
    grown = {"p99_ns": 150.0, "peak_rss": 120, "size": 104, "load_ns": [10, 200, 210]}
    one = write(tmp_path / "a.json", [row(**figures)])
    two = write(tmp_path / "b.json", [row(seed=1, **grown)])
    found = only(ot.compare([one, two]))
    assert [found.ratio(name) for name in ("p99", "memory", "size", "load")] == [
        1.5,
        1.2,
        1.04,
        2.0,
    ]
    assert found.regressions == ()
    limits = {"p99": 0.2, "memory": 0.5, "size": 0.01, "load": 2.0}
    assert only(ot.compare([one, two], thresholds=limits)).regressions == ("p99", "size")


def test_a_row_that_fails_now_is_a_regression(tmp_path: Path) -> None:
    dead = {"model": "m.onnx", "backend": "cpu", "error": "SIGSEGV", "turns": []}
    one, two = write(tmp_path / "a.json", [row()]), write(tmp_path / "b.json", [dead])
    assert only(ot.compare([one, two])).regressions == ("error",)
    assert ot.compare([two, one]).regressions == 0
    assert only(ot.compare([two, two])).verdict == "failed in both"


def test_names_that_differ_are_matched_by_less_or_by_order(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", [row("old.onnx"), row("again.onnx", again=True)])
    two = write(tmp_path / "b.json", [row("new.onnx", seed=1)])
    several = write(tmp_path / "d.json", [row("older.onnx"), row("oldest.onnx")])
    with pytest.raises(OrtuneError, match=r"(?s)no row of .*fix: .*--by order"):
        ot.compare([several, two])
    for by in (["backend"], [], ["model"]):  # by the last it is the only row of each
        found = only(ot.compare([one, two], by=by))
        assert found.name == "old.onnx on cpu -> new.onnx on cpu" and not found.same_model
    three = write(tmp_path / "c.json", [row("old.onnx", backend="openvino")])
    assert only(ot.compare([one, three], by=["model"])).name == "old.onnx on cpu -> openvino"


def test_no_time_of_a_machine_too_noisy_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "a.json", [row(size=100, p99_ns=1.0)])
    slow = write(tmp_path / "b.json", [row(ms=20, seed=1, size=200, p99_ns=9.0)])
    noisy = json.loads(slow.read_text()) | {"judgement": {"too_noisy": True}}
    slow.write_text(json.dumps(noisy))
    assert main(["compare", str(one), str(slow), "--threshold", "p99=1%"]) == 0
    said = capsys.readouterr().out
    assert "b.json was measured on a machine too noisy" in said
    assert "not judged: the machine was too noisy" in said and "no row was judged" in said
    assert "no regression" not in said
    found = ot.compare([one, slow], thresholds={"size": 0.5})
    assert only(found).regressions == ("size",), "a file's size is no matter of noise"


def test_one_set_without_turns_is_enough_and_wider(tmp_path: Path) -> None:
    full = row()
    flat = [ns for turn in full["turns"] for block in turn for ns in block]
    lone = {"model": "m.onnx", "backend": "cpu", "latency_ns": flat}
    one = write(tmp_path / "a.json", [full])
    two = write(tmp_path / "b.json", [lone])
    wide, tight = (only(ot.compare([one, x])).latency for x in (two, one))
    assert wide.value == pytest.approx(1, abs=0.01)
    assert wide.high / wide.low > tight.high / tight.low


def test_rows_of_one_file_may_differ_in_entries_where_these_are_alike(tmp_path: Path) -> None:
    """Only rows that ran in turns share a base: then the other machine's speed cancels."""

    def run(name: str, slow: float, alike: bool, machine: dict[str, str]) -> Path:
        base = row(ms=10 * slow, alike=alike)
        other = row(backend="openvino", ms=5 * slow, alike=alike)
        other["turns"] = [[block[:7] for block in turn] for turn in other["turns"]]
        return write(tmp_path / name, [base, other], machine)

    for alike, expected in ((True, 1.0), (False, 1.2)):
        found = ot.compare([run("a.json", 1, alike, HERE), run("b.json", 1.2, alike, THERE)])
        assert only(found, 1).latency.value == pytest.approx(expected, abs=0.02)


def test_a_few_samples_prove_nothing(tmp_path: Path) -> None:
    """Without the samples' own spread the median of three is as good as that of thousands."""

    def lone(name: str, *ms: float) -> Path:
        times = [round(1e6 * one) for one in ms]
        return write(tmp_path / name, [{"model": "m", "backend": "cpu", "latency_ns": times}])

    three = ot.compare([lone("a.json", 10, 14, 9), lone("b.json", 13, 11, 16)])
    assert only(three).latency.low < 1 < only(three).latency.value
    one = only(ot.compare([lone("a.json", 10), lone("b.json", 30)]))
    assert one.latency.value == pytest.approx(3) and not one.regressions
    assert one.latency.low == 0
    assert one.verdict == "not known: too few undisturbed runs for an interval"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"rows": []}',
        '{"rows": [1]}',
        '{"rows": [{"model": "m", "backend": 1}]}',
        '{"rows": [{"model": "m", "backend": "cpu"}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "latency_ns": ["a"]}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "latency_ns": [-1]}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "latency_ns": [NaN]}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "turns": [[[1]]], "waited": [[[0, 0]]]}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "turns": [[[1]]], "runs_each": [1, 1]}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "turns": [[]]}]}',
    ],
)
def test_a_file_that_is_no_saved_run_is_two_lines(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write(tmp_path / "a.json", [row()]), tmp_path / "bad.json"
    bad.write_text(text)
    assert main(["compare", str(good), str(bad)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 2
    assert "bad.json" in said.err and "  fix: " in said.err and "unexpected" not in said.err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--threshold", "fast"],
        ["--threshold", "p98=1%"],
        ["--threshold", "-1%"],
        ["--threshold", "latency=nan"],
        ["--by", "colour"],
        ["nothing-here.json"],
    ],
)
def test_wrong_words_are_two_lines(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(write(tmp_path / "a.json", [row()]))
    second = [] if not words else [good]
    assert main(["compare", good, *second, *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_command_line_says_what_ci_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "a.json", [row(), row("gone.onnx"), row("gone.onnx", backend="x|y")])
    two = write(tmp_path / "b.json", [row(ms=12, seed=1), row("gone.onnx", backend="x|y", seed=2)])
    comment = tmp_path / "comment.md"
    words = ["compare", str(one), str(two), "--threshold", "10%", "--markdown", str(comment)]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "the same machine" in said and "regression: latency" in said
    assert "only in the reference: gone.onnx on cpu" in said
    assert "1 of 2 rows regressed (threshold: latency 10 %)" in said
    text = comment.read_text()
    assert "| m.onnx on cpu | 1.2" in text and "x\\|y" in text
    assert main([*words[:3], "--threshold", "30%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["thresholds"] == {"latency": 0.3}


@pytest.mark.parametrize("text", ["10", "p99=2", "1.5"])
def test_a_threshold_above_one_needs_its_sign(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "a.json", [row()])
    slow = write(tmp_path / "b.json", [row(ms=36, seed=1)])
    assert main(["compare", str(one), str(slow), "--threshold", text]) == 2
    error = capsys.readouterr().err
    assert "above 1 it needs its % sign" in error
    assert f"write {text}%, or" in error
    assert main(["compare", str(one), str(slow), "--threshold", "10%"]) == 1


def test_thresholds_above_one_are_written_as_they_are_read() -> None:
    field = Thresholds(())
    assert field.read(["1000%"]) == {"latency": 10.0}
    assert field.read(field.spell({"latency": 10.0, "p99": 0.5})) == {"latency": 10.0, "p99": 0.5}
