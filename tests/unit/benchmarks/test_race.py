"""The race of the main job: who races, for how long, and what is kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from benchmarks.speed.fresh import Kept, logs, pair_of
from benchmarks.speed.race import (
    MOST,
    NARROW,
    PAIR_S,
    Pilot,
    direct,
    finalists,
    pair_seconds,
    ratio,
)

from ortune.core.trial import Interval


def pilot(value: float, error: float = 0.004, seconds: float = 1.0) -> Pilot:
    return Pilot(Interval(value, value * 0.9, value * 1.1), error, seconds, 2.0)


def row(name: str, backend: str = "cpu(threads=1)", holds: bool = True) -> dict[str, Any]:
    return {"name": name, "backend": backend, "holds": ["snr>=30"] * holds}


def test_who_cannot_win_does_not_race() -> None:
    rows = [
        row("original"), row("close"), row("far"), row("wrong", holds=False), row("died"),
        row("elsewhere", "openvino(threads=1)"), row("ortune, cpu: int8"),
    ]  # fmt: skip
    values = {"original": 1.0, "close": 0.52, "far": 0.7, "wrong": 0.1, "elsewhere": 0.5}
    values["ortune, cpu: int8"] = 0.9
    pilots = {name: pilot(value) for name, value in values.items()}
    assert finalists(rows, pilots) == ["close", "elsewhere", "ortune, cpu: int8"]


def test_the_best_on_the_cpu_provider_races_too_however_far_behind() -> None:
    rows = [row("original"), row("slow"), row("fast", "openvino(threads=1)")]
    pilots = {"original": pilot(1.0), "slow": pilot(0.8), "fast": pilot(0.2)}
    assert finalists(rows, pilots) == ["slow", "fast"]


def test_the_race_is_bounded_however_many_are_close() -> None:
    rows = [row(f"{k}") for k in range(20)]
    assert len(finalists(rows, {one["name"]: pilot(0.5) for one in rows})) == MOST


def test_the_seconds_come_from_the_pilot_within_their_bounds() -> None:
    assert pair_seconds([pilot(0.5, error=NARROW, seconds=3.0)]) == pytest.approx(3.0)
    assert pair_seconds([pilot(0.5, error=NARROW / 10)]) == PAIR_S[0]
    assert pair_seconds([pilot(0.5, error=math.inf)]) == PAIR_S[1]
    assert pair_seconds([pilot(0.5, error=math.inf)] * 50) == PAIR_S[0]


def test_kept_blocks_give_the_ratio_that_the_pairs_gave() -> None:
    blocks = [[-0.7, -0.69, -0.71], [-0.72, -0.7, -0.7]]
    assert [logs(pair_of(one)) for one in blocks] == blocks
    found = ratio(blocks)
    assert found.value == pytest.approx(math.exp(-0.703), rel=0.01)


def test_one_racer_is_compared_with_another_turn_by_turn() -> None:
    one = [[-0.7 + 0.1 * turn] for turn in range(5)]
    two = [[-0.8 + 0.1 * turn] for turn in range(5)]
    found = direct(one, two)
    assert found.value == pytest.approx(math.exp(0.1), rel=1e-3)
    assert found.high / found.low < ratio(one).high / ratio(one).low


def test_a_row_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "deep" / "rows.jsonl")
    kept.add({"a": 1})
    with (tmp_path / "deep" / "rows.jsonl").open("a") as file:
        file.write('{"a": ')
    assert kept.rows() == [{"a": 1}]
    assert Kept(tmp_path / "deep" / "rows.jsonl", fresh=True).rows() == []
