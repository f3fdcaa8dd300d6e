"""The record's file: bounded, checked before it is used, and harmless where it cannot be."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortune_toys.backends.slowed import Slowed

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData, OrtuneError
from ortune.core.hardware.paid import NOTHING, Paid, PlanTally
from ortune.search.earlier import machine_record, tallies
from ortune.search.earlier.machine_record import MachineRecord, machine_kind, parsed, written
from ortune.workloads.latency import Latency

OFFERED = Capabilities(
    versions={"onnxruntime": "1.31.1", "numpy": "2.3.1", "openvino": "2026.2.0-1-abc"},
    machine={"cpu": "A CPU", "instruction sets": "avx2"},
)
TALLY = PlanTally(("model=conv", "backend=cpu", "recipe=int8-static"), 1, 0, 1, -0.7, 0.0, 1, 1)


@pytest.fixture
def record(cache_home: Path) -> MachineRecord:
    found = MachineRecord.of(machine_kind(Cpu(), Latency(), OFFERED))
    assert found is not None
    assert found.path.is_relative_to(cache_home / "ortune" / "paid")
    return found


def test_it_is_of_the_cpu_the_runtimes_the_original_and_the_workload() -> None:
    found = machine_kind(Cpu(threads=1, custom_ops=("/my/lib.so",)), Latency(batch=4), OFFERED)
    assert found == {
        "cpu": "A CPU",
        "instruction sets": "avx2",
        "onnxruntime": "1.31",
        "openvino": "2026.2",
        "baseline": "backend=cpu cpu.threads=1",
        "workload": "latency latency.batch=4",
    }
    assert machine_kind(Slowed(), Latency(), OFFERED) is None


def test_what_is_added_is_read_again_and_joined(record: MachineRecord) -> None:
    assert record.read() == NOTHING
    record.add(NOTHING)
    assert machine_record.kept() == ()
    record.add(Paid((TALLY,)))
    assert record.read() == Paid((TALLY,))
    record.add(Paid((replace(TALLY, mean=-0.9),)))
    (found,) = record.read().tallies
    assert (found.measured, found.mean) == (2, pytest.approx(-0.8))
    assert machine_record.kept() == (record.path,)
    assert record.path.stat().st_size < 1000


def test_the_largest_record_can_be_read(record: MachineRecord) -> None:
    said = [f"cpu.{'x' * (tallies.LONGEST - 14)}={n}" for n in range(tallies.WORDS)]
    every = [
        PlanTally(tuple(f"{word}{k:05}" for word in said), 30, 1, 29, -1.23456, 9.87654, 28, 27)
        for k in range(tallies.MOST)
    ]
    record.add(Paid(tuple(every)))
    assert len(record.read().tallies) == tallies.MOST


def test_a_record_of_another_kind_is_another_file(record: MachineRecord) -> None:
    other = MachineRecord.of(machine_kind(Cpu(threads=2), Latency(), OFFERED))
    assert other is not None
    assert other.path != record.path
    record.add(Paid((TALLY,)))
    other.path.write_bytes(record.path.read_bytes())
    with pytest.raises(BadData, match="another machine"):
        other.read()
    other.add(Paid((TALLY,)))
    assert other.read() == Paid((TALLY,))


def test_the_files_are_few(record: MachineRecord) -> None:
    for n in range(20):
        one = MachineRecord.of(machine_kind(Cpu(threads=n), Latency(), OFFERED))
        assert one is not None
        one.add(Paid((TALLY,)))
        os.utime(one.path, (n, n))
    names = sorted(path.name for path in record.path.parent.iterdir())
    assert len([name for name in names if name.endswith(".json")]) == 16
    assert len(names) == 32
    assert one.read() == Paid((TALLY,))


BAD: list[tuple[str, Any]] = [
    ("format", 2),
    ("kind", {}),
    ("kind", []),
    ("tallies", {}),
    ("tallies", None),
    ("tallies", [1]),
    ("tallies", [{}]),
    ("words", []),
    ("words", "model=conv"),
    ("words", [1]),
    ("words", ["x" * 81]),
    ("words", ["a=b"] * 17),
    ("words", ["\x1b[31m"]),
    ("words", ["a=/etc/passwd"]),
    ("words", ["a\n"]),
    ("mean", float("nan")),
    ("mean", float("inf")),
    ("mean", 1e9),
    ("mean", 10**400),
    ("mean", "0"),
    ("mean", None),
    ("squares", -1.0),
    ("measured", 1.0),
    ("measured", True),
    ("measured", 2),
    ("tried", -1),
    ("tried", 1001),
    ("kept", 2),
    ("load_s", -0.1),
    ("more", 1),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_strange_content_is_refused(name: str, value: Any, record: MachineRecord) -> None:
    told = json.loads(written(Paid((TALLY,)), record.kind))
    (told if name in told else told["tallies"][0])[name] = value
    with pytest.raises(ValueError, match=r"\w"):
        parsed(json.dumps(told).encode(), record.kind)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b" " * 600_000,
        b'{"format":' + b"9" * 9999,
    ],
)
def test_what_is_no_record_is_refused(data: bytes, record: MachineRecord) -> None:
    record.path.parent.mkdir(parents=True)
    record.path.write_bytes(data)
    with pytest.raises(BadData) as caught:
        record.read()
    assert str(record.path) in caught.value.what
    record.add(Paid((TALLY,)))
    assert record.read() == Paid((TALLY,))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
NUMBERS = st.integers(-2, 1002) | st.floats() | st.booleans()
ROWS = st.fixed_dictionaries(
    dict.fromkeys(machine_record.BOUNDS, NUMBERS | JSON)
    | {"words": st.lists(st.sampled_from(["a=b", "c", "d=[1]"]), max_size=3) | JSON}
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | JSON.map(lambda told: json.dumps(told).encode()))
def test_anything_is_a_record_or_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parsed(data, {"cpu": "x"})


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, max_size=3))
def test_any_rows_are_sound_or_refused(rows: list[Any]) -> None:
    told = {"format": 1, "kind": {}, "tallies": rows}
    try:
        found = parsed(json.dumps(told).encode(), {})
    except ValueError:
        return
    assert parsed(written(found, {}).encode(), {}) is not None
    for one in found.tallies:
        assert max(one.failed, one.measured, one.scored) <= one.tried
        tallies.prior(found, one.words)
    tallies.joined(found, found)


WORDS = st.from_regex(tallies.WORD, fullmatch=True).filter(lambda word: len(word) <= 80)
TALLIES = st.builds(
    PlanTally,
    st.lists(WORDS, min_size=1, max_size=16, unique=True).map(tuple),
    st.just(9),
    *[st.integers(0, 9), st.integers(0, 9), st.integers(-5, 5).map(float)],
    st.integers(0, 5).map(float),
    st.just(9),
    *[st.integers(0, 9), st.just(0.5), st.just(0.25)],
)


@settings(max_examples=100, deadline=None)
@given(st.lists(TALLIES, max_size=5, unique_by=lambda one: one.words))
def test_what_is_written_is_read(found: list[PlanTally]) -> None:
    paid = Paid(tuple(found))
    assert parsed(written(paid, {"cpu": "x"}).encode(), {"cpu": "x"}) == paid


def test_where_nothing_can_be_written_it_says_so(record: MachineRecord) -> None:
    record.path.parent.parent.mkdir(parents=True)
    record.path.parent.write_text("a file")
    assert record.read() == NOTHING
    with pytest.raises(OrtuneError, match="cannot write"):
        record.add(Paid((TALLY,)))


def test_a_lock_that_is_held_is_not_waited_for_long(
    record: MachineRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(machine_record, "WAIT_S", 0.1)
    record.path.parent.mkdir(parents=True)
    with record.path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OrtuneError, match="another process holds"):
            record.add(Paid((TALLY,)))
    record.add(Paid((TALLY,)))
    assert record.read() == Paid((TALLY,))


def test_without_a_home_there_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert machine_record.folder() is not None
    monkeypatch.setattr(Path, "home", homeless)
    assert machine_record.folder() is None
    assert MachineRecord.of({"cpu": "x"}) is None
    assert machine_record.kept() == ()
