"""Money: a worked example by hand, what must hold for any numbers, and where they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.studies import study, write_run

from ortune.analysis.costs import cost
from ortune.analysis.costs import cost as pricing
from ortune.analysis.costs import requests as terms
from ortune.analysis.costs.cost import PricedSource, ServingOption, compute_figures, tabulate_costs
from ortune.analysis.costs.requests import Terms, format_money_amount
from ortune.cli.main import main
from ortune.core.errors import BadSettings
from ortune.core.study import Ending
from ortune.core.trial import Interval, Status, Trial
from ortune.search.experiment.ledger import Ledger, write_ending

ONE = Interval(1.0, 1.0, 1.0)
WORKED = Terms(price_per_hour=2.50, overhead_s=0.020, processes=6, effort_cost=320.0)
NOW = ServingOption("now", 0.020, ONE)
TUNED = ServingOption("tuned", 0.012, Interval(0.6, 0.55, 0.65))


def bench_file(folder: Path, *, ratio: Interval = TUNED.ratio or ONE, batch: int = 0) -> Path:
    def row(backend: str, ns: int) -> dict[str, Any]:
        return {"model": "/m/net.onnx", "backend": backend, "p50_ns": ns, "batch": batch}

    path = folder / "bench.json"
    failed = {"model": "/m/net.onnx", "backend": "cpu(threads=9)", "error": "died"}
    rows = [row("torch(source=net:make)", 20_000_000), failed, row("cpu", 13_000_000)]
    path.write_text(json.dumps({"rows": rows, "ratios": [vars(ONE), None, vars(ratio)]}))
    return path


def test_the_worked_example() -> None:
    found = tabulate_costs([NOW, TUNED], WORKED)
    now, tuned = found.rows
    assert now.figures.fps_process == pytest.approx(25)
    assert now.figures.fps_machine == pytest.approx(150)
    assert now.figures.cost_per_1000_fps_hours == pytest.approx(16.67, abs=0.005)
    assert now.figures.cost_per_million == pytest.approx(2.5 / 3600 / 150 * 1e6)
    assert tuned.figures.total_s == pytest.approx(0.032)
    assert tuned.figures.fps_machine == pytest.approx(187.5)
    assert tuned.figures.cost_per_1000_fps_hours == pytest.approx(13.33, abs=0.005)
    # 729.6 hours a month at 2.50 are 1824.00; the same work takes 150 / 187.5 = 0.8 machines.
    assert now.figures.cost_per_month == pytest.approx(1824.00)
    assert tuned.figures.cost_per_month == pytest.approx(1459.20)
    assert tuned.saving_per_month.value == pytest.approx(364.80)
    assert tuned.months.value == pytest.approx(320 / 364.80)
    # At the ratio's ends a run takes 31 and 33 ms: 0.775 and 0.825 machines.
    assert tuned.saving_per_month.low == pytest.approx(1824 * 0.175)
    assert tuned.saving_per_month.high == pytest.approx(1824 * 0.225)
    assert tuned.months.high == pytest.approx(320 / (1824 * 0.175))
    # 320 / (4.6296 - 3.7037) money a million.
    assert tuned.inferences == pytest.approx(320 / (2.5 / 3600 * (1 / 150 - 1 / 187.5)))
    assert (found.verdict.answer, found.verdict.option) == ("do it", "tuned")


def test_the_worked_example_on_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--price", "2.50 EUR/h", "--overhead", "20ms", "--processes", "6", "--json"]
    assert main(["cost", str(bench_file(tmp_path)), "--effort", "4h@80/h", *words]) == 0
    answer = json.loads(capfd.readouterr().out)
    first, second = answer["rows"]
    assert first["name"] == "net.onnx @ torch(source=net:make)"
    assert first["fps_machine"] == pytest.approx(150)
    assert second["fps_machine"] == pytest.approx(187.5)
    assert second["cost_per_1000_fps_hours"] == pytest.approx(13.33, abs=0.005)
    assert second["break_even_months"]["value"] == pytest.approx(0.8772, abs=1e-4)
    assert answer["verdict"]["answer"] == "do it"
    assert any("6 processes at once are assumed" in text for text in answer["assumptions"])
    again = pricing.cost(bench_file(tmp_path), "2.50/h", overhead="20ms", processes=6)
    assert again.rows[1].figures.fps_machine == pytest.approx(187.5)
    assert main(["cost", str(bench_file(tmp_path)), *words[:-1], "--gpus", "1-3"]) == 0
    shown = capfd.readouterr().out
    assert "EUR per 1,000 FPS-h" in shown and "16.67" in shown and "13.33" in shown
    assert "1 to 3 GPUs: linear scaling is assumed" in shown and "562.5" in shown


@pytest.mark.parametrize("load", [None, 1000.0])
@pytest.mark.parametrize("low", [0.0, 0.3])
def test_a_plan_of_one_block_has_a_price_and_no_interval(low: float, load: float | None) -> None:
    lone = ServingOption("screened", 0.008, Interval(0.4, low, math.inf))
    found = tabulate_costs([NOW, TUNED, lone], replace(WORKED, overhead_s=0.0, load_per_s=load))
    row = found.rows[2]
    assert row.saving_per_month.value > 0
    assert math.isnan(row.saving_per_month.low) and math.isnan(row.saving_per_month.high)
    assert math.isnan(row.months.high)
    assert found.verdict.option == "tuned"


def test_a_run_with_plans_of_one_block_is_priced_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_run(made := study(tmp_path))
    *search, final = made.trials
    lone = replace(search[1], key="0dd" * 5 + "0", ratio=Interval(0.2, 0.0, math.inf))
    rewritten(root, [*search, lone, final])
    assert main(["cost", str(root), "--price", "2.50/h"]) == 0
    assert made.label(final.plan) in capsys.readouterr().out


def test_a_load_is_served_by_whole_machines() -> None:
    at = replace(WORKED, load_per_s=400.0)
    now, tuned = tabulate_costs([NOW, TUNED], at).rows
    assert (now.figures.machines, tuned.figures.machines) == (3, 3)
    assert (now.figures.processes, tuned.figures.processes) == (16, 13)
    assert now.figures.utilisation == pytest.approx(400 / 450)
    assert tuned.figures.fps_all == pytest.approx(3 * 187.5)
    found = tabulate_costs([NOW, TUNED], at).verdict
    assert found.answer == "stay" and "as many machines" in found.why
    more = tabulate_costs([NOW, TUNED], replace(at, load_per_s=900.0)).rows
    assert [r.figures.machines for r in more] == [6, 5]
    assert more[1].saving_per_month.value == pytest.approx(1824)


def test_the_smallest_load_takes_a_machine() -> None:
    got = compute_figures(NOW, WORKED, 1e-12, whole=True)
    assert (got.machines, got.processes) == (1, 1)
    assert 0 < got.utilisation < 1e-12


def test_batches_count() -> None:
    batched = replace(TUNED, samples=8)
    got = compute_figures(batched, WORKED, 100.0, whole=False)
    assert got.total_s == pytest.approx(0.032)
    assert got.fps_process == pytest.approx(8 / 0.032)


@pytest.mark.parametrize(
    ("ratio", "effort", "answer"),
    [
        (Interval(0.6, 0.55, 0.65), 320.0, "do it"),
        (Interval(0.6, 0.55, 0.65), 4000.0, "consider"),  # 12.5 months at worst
        (Interval(0.6, 0.55, 0.65), 40000.0, "stay"),
        (Interval(0.99, 0.97, 1.01), 0.0, "stay"),
        (Interval(1.5, 1.4, 1.6), 0.0, "stay"),
        (Interval(0.6, 0.55, 0.65), 0.0, "do it"),
    ],
)
def test_the_verdict_follows_its_rule(ratio: Interval, effort: float, answer: str) -> None:
    option = ServingOption("tuned", 0.020 * ratio.value, ratio)
    found = tabulate_costs([NOW, option], replace(WORKED, effort_cost=effort))
    assert found.verdict.answer == answer, found.verdict


def test_a_likely_accuracy_is_said() -> None:
    found = tabulate_costs([NOW, replace(TUNED, accuracy="likely")], WORKED)
    assert "accuracy not proved" in found.verdict.why


positive = st.floats(1e-5, 10)


@given(positive, positive, st.floats(0.05, 3), st.floats(1, 1.5), st.integers(1, 64))
def test_intervals_hold_their_estimates(
    base_s: float, overhead_s: float, ratio: float, spread: float, processes: int
) -> None:
    asked = Terms(3.0, overhead_s=overhead_s, processes=processes, effort_cost=100.0)
    held = Interval(ratio, ratio / spread, ratio * spread)
    row = tabulate_costs(
        [ServingOption("now", base_s, ONE), ServingOption("new", base_s * ratio, held)], asked
    ).rows[1]
    saved, back = row.saving_per_month, row.months
    close = 1e-9 * asked.price_per_hour * asked.month_hours
    assert saved.low <= saved.value + close and saved.value <= saved.high + close
    assert back.low <= back.value * (1 + 1e-6) and back.value <= back.high * (1 + 1e-6)
    if saved.value > close:
        assert back.value * saved.value == pytest.approx(100.0)
        # What is saved until break-even pays what was spent: the same sum from two sides.
        served = row.inferences / row.figures.fps_machine / 3600
        assert served / asked.month_hours * row.figures.fps_machine == pytest.approx(
            back.value
            * tabulate_costs([ServingOption("now", base_s, ONE)], asked)
            .rows[0]
            .figures.fps_machine
        )


@given(positive, st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_more_load_never_costs_less(inference_s: float, one: float, two: float) -> None:
    option = ServingOption("x", inference_s, ONE)
    low, high = sorted((one, two))
    paid = [compute_figures(option, WORKED, load, whole=True) for load in (low, high)]
    assert paid[0].cost_per_month <= paid[1].cost_per_month
    assert all(0 < got.utilisation <= 1 + 1e-6 for got in paid)


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [("2.50/h", 2.5, ""), ("2.50 EUR/h", 2.5, "EUR"), ("$3/hour", 3.0, "$"), ("4€ / h", 4, "€")],
)
def test_prices_keep_their_unit(text: str, amount: float, currency: str) -> None:
    assert terms.read_price(text) == (amount, currency)


@pytest.mark.parametrize(
    "words",
    [
        ["--price", "2,5"],
        ["--price", "2,50/h"],
        ["--price", "-2.50/h"],
        ["--price", "0/h"],
        ["--price", "9" * 400 + "/h"],
        ["--price", "$2 EUR/h"],
        ["--price", "1/h", "--effort", "4h@"],
        ["--price", "1/h", "--effort", "-4h@80/h"],
        ["--price", "1/h", "--load", "150"],
        ["--price", "1/h", "--load", "0/s"],
        ["--price", "1/h", "--overhead", "20"],
        ["--price", "1/h", "--gpus", "8-1"],
        ["--price", "1/h", "--gpus", "0"],
        ["--price", "1/h", "--processes", "0"],
        ["--price", "1/h", "--processes", "six"],
        ["--price", "1/h", "--hours-per-day", "25"],
        ["--price", "1/h", "--within", "0"],
        ["--price", "1/h", "--within", "nan"],
        ["--price", "1/h", "--measure"],
        [],
    ],
)
def test_bad_words_are_two_lines(
    tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", str(bench_file(tmp_path)), *words]) == 2
    said = capfd.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 2 and "\n  fix: " in said.err


def test_units_of_load_and_overhead() -> None:
    assert terms.read_load("9000/min") == pytest.approx(150)
    assert terms.read_load("86400/day") == pytest.approx(1)
    assert terms.read_overhead("800us") == pytest.approx(0.0008)
    assert terms.read_devices("2-4") == (2, 3, 4)
    with pytest.raises(BadSettings):
        terms.read_devices("1-900")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "no json",
        '{"rows": []}',
        '{"rows": [1]}',
        '{"rows": [{"error": "died"}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "latency_ns": []}]}',
        '{"rows": [{"model": "m", "backend": "cpu", "latency_ns": [0]}]}',
    ],
)
def test_what_is_no_bench_is_refused(
    tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert main(["cost", str(path), "--price", "1/h"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_a_run_offers_its_front_and_the_time_it_took(tmp_path: Path) -> None:
    root = write_run(made := study(tmp_path))
    found = cost.read_priced_source(root)
    best = made.best
    assert best.ratio is not None and best.key != made.baseline.key
    assert found.options[0].name == made.label(made.baseline.plan)
    assert found.options[0].inference_s == pytest.approx(0.001)
    named = {option.name: option for option in found.options}
    assert named[made.label(best.plan)].ratio == best.ratio
    assert named[made.label(best.plan)].inference_s == pytest.approx(0.001 * best.ratio.value)
    assert not any("fp16" in name for name in named), "it leaves the budget"
    priced = pricing.price_sources(root, Terms(3.6))
    assert priced.verdict.option == made.label(best.plan)
    assert priced.tuning_s == pytest.approx(sum(t.seconds for t in made.trials))
    assert priced.one_time_cost == pytest.approx(priced.tuning_s / 1000)


def rewritten(root: Path, trials: Sequence[Trial], **ending: Any) -> PricedSource:
    (root / "ledger.jsonl").unlink()
    for trial in trials:
        Ledger(root).append(trial)
    write_ending(root, Ending(**{"finished": "done", **ending}))
    return cost.read_priced_source(root)


def test_a_run_without_a_winner_does_not_sell_what_its_search_once_measured(
    tmp_path: Path,
) -> None:
    root = write_run(made := study(tmp_path))
    *search, final = made.trials
    slow = replace(final, ratio=Interval(1.0, 0.97, 1.03))
    other = replace(search[1], key="0dd" * 5 + "0")
    found = tabulate_costs(rewritten(root, [*search, other, slow]).options, WORKED)
    assert any(r.option.ratio and r.option.ratio.high < 1 for r in found.rows), "it is shown"
    assert (found.verdict.answer, found.verdict.option) == ("stay", "")


def test_a_finalist_that_failed_is_not_priced_by_its_search(tmp_path: Path) -> None:
    root = write_run(made := study(tmp_path))
    *search, final = made.trials
    names = [
        o.name for o in rewritten(root, [*search, replace(final, status=Status.FAILS)]).options
    ]
    assert str(final.plan) not in names


def test_figures_of_a_noisy_machine_are_not_claimed(tmp_path: Path) -> None:
    root = write_run(made := study(tmp_path))
    rewritten(root, made.trials, too_noisy=True)
    sold = pricing.price_sources(root, WORKED).verdict.answer
    assert sold == "consider", "a finalist's interval without 1 is never too noisy"
    *search, final = made.trials
    level = replace(final, ratio=Interval(0.8, 0.6, 1.07))
    rewritten(root, [*search, level], too_noisy=True)
    found = pricing.price_sources(root, WORKED)
    assert found.verdict.answer == "stay"
    assert "too noisy" in found.assumptions[0]
    path = bench_file(tmp_path)
    noisy = json.loads(path.read_text()) | {"judgement": {"too_noisy": True}}
    path.write_text(json.dumps(noisy))
    assert pricing.price_sources(path, WORKED).verdict.answer == "stay"


def test_a_bench_beside_a_run_keeps_its_ratios_where_both_start_alike(tmp_path: Path) -> None:
    root = write_run(study(tmp_path))

    def bench(first: str) -> Path:
        rows = [
            {"model": "/m/toy.onnx", "backend": first, "p50_ns": 2_000_000},
            {"model": "/m/toy.onnx", "backend": "torch(source=a:b)", "p50_ns": 9_000_000},
        ]
        ratios = [vars(ONE), vars(Interval(4.0, 3.9, 4.1))]
        path = tmp_path / "b.json"
        path.write_text(json.dumps({"rows": rows, "ratios": ratios}))
        return path

    alike = pricing.price_sources([root, bench("cpu")], Terms(1.0)).rows
    assert alike[-1].option.name == "toy.onnx @ torch(source=a:b)"
    assert alike[-1].option.inference_s == pytest.approx(0.001 * 4)
    assert alike[-1].option.ratio == Interval(4.0, 3.9, 4.1)
    other = pricing.price_sources([root, bench("cpu(threads=1)")], Terms(1.0))
    assert other.rows[-1].option.ratio is None
    assert math.isnan(other.rows[-1].saving_per_month.low)
    assert any("another run" in text for text in other.assumptions)


def test_the_currency_may_be_named_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["cost", str(bench_file(tmp_path)), "--price", "2.50/h", "--currency", "CHF"]
    assert main(words) == 0
    assert "CHF per million" in capfd.readouterr().out


def test_large_amounts_have_no_decimals() -> None:
    amounts = {1824.0: "1,824", 99.5: "99.50", 1.5: "1.50", 0.01234: "0.0123", 0.0: "0.00"}
    assert {amount: format_money_amount(amount) for amount in amounts} == amounts
