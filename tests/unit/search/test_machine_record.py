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
from ortune.core.facts import Facts
from ortune.core.hardware.paid import NOTHING, Paid, PlanTally
from ortune.measurement.workloads.latency import Latency
from ortune.search import warm_start
from ortune.search.expectation.priors import transfer_observations
from ortune.search.warm_start import MachineRecord, format_record, machine_kind, parse_record

OFFERED = Capabilities(
    versions={"onnxruntime": "1.31.1", "numpy": "2.3.1", "openvino": "2026.2.0-1-abc"},
    machine={"cpu": "A CPU", "instruction sets": "avx2"},
)
FACTS = Facts({"Conv": 9}, 9, 1, 1, {}, 17, 8, (), ())
TALLY = PlanTally(("conv", "small"), {"kind:cpu": 0.35, "family:int8-static": 1.0}, 1, -0.7)


@pytest.fixture
def record(cache_home: Path) -> MachineRecord:
    found = MachineRecord.for_kind(machine_kind(Cpu(), Latency(), OFFERED))
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
        "baseline": "kind:cpu hint:cpu set:cpu.threads=1",
        "workload": "latency latency.batch=4",
    }
    assert machine_kind(Slowed(), Latency(), OFFERED) is None


def test_what_is_added_is_read_again_and_joined(record: MachineRecord) -> None:
    assert record.read() == NOTHING
    record.add(NOTHING)
    assert warm_start.list_record_files() == ()
    record.add(Paid((TALLY,)))
    assert record.read() == Paid((TALLY,))
    record.add(Paid((replace(TALLY, mean=-0.9),)))
    (found,) = record.read().tallies
    assert (found.searches, found.mean) == (2, pytest.approx(-0.8))
    assert warm_start.list_record_files() == (record.path,)
    assert record.path.stat().st_size < 1000


def test_the_largest_record_can_be_read(record: MachineRecord) -> None:
    said = [f"set:{'x' * (warm_start.LONGEST - 14)}={n}" for n in range(warm_start.FEATURES)]
    every = [
        PlanTally(
            ("attention", "medium"), {f"{one}{k:05}": 0.12345 for one in said}, 30, -1.2345, 9.8765
        )
        for k in range(warm_start.MOST)
    ]
    record.add(Paid(tuple(every)))
    assert len(record.read().tallies) == warm_start.MOST


def test_a_record_of_another_kind_is_another_file(record: MachineRecord) -> None:
    other = MachineRecord.for_kind(machine_kind(Cpu(threads=2), Latency(), OFFERED))
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
        one = MachineRecord.for_kind(machine_kind(Cpu(threads=n), Latency(), OFFERED))
        assert one is not None
        one.add(Paid((TALLY,)))
        os.utime(one.path, (n, n))
    names = sorted(path.name for path in record.path.parent.iterdir())
    assert len([name for name in names if name.endswith(".json")]) == 16
    assert len(names) == 17, "and the lock"
    assert one.read() == Paid((TALLY,))


BAD: list[tuple[str, Any]] = [
    ("format", 2),
    ("kind", {}),
    ("kind", []),
    ("tallies", {}),
    ("tallies", None),
    ("tallies", [1]),
    ("tallies", [{}]),
    ("model", ["conv"]),
    ("model", "ab"),
    ("model", [1, 2]),
    ("model", ["conv", "/etc/passwd"]),
    ("features", {}),
    ("features", ["kind:cpu"]),
    ("features", {"set:" + "x" * 77: 1.0}),
    ("features", dict.fromkeys(map("set:{}".format, range(25)), 1.0)),
    ("features", {"\x1b[31m": 1.0}),
    ("features", {"set:a=/etc/passwd": 1.0}),
    ("features", {"set:/etc/passwd": 1.0}),
    ("features", {"set:a\n": 1.0}),
    ("features", {"kind:cpu": 1.5}),
    ("features", {"kind:cpu": None}),
    ("mean", float("nan")),
    ("mean", float("inf")),
    ("mean", 1e9),
    ("mean", 10**400),
    ("mean", "0"),
    ("mean", None),
    ("squares", -1.0),
    ("searches", 1.0),
    ("searches", True),
    ("searches", 0),
    ("searches", -1),
    ("searches", 1001),
    ("more", 1),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_strange_content_is_refused(name: str, value: Any, record: MachineRecord) -> None:
    told = json.loads(format_record(Paid((TALLY,)), record.kind))
    (told if name in told else told["tallies"][0])[name] = value
    with pytest.raises(ValueError, match=r"\w"):
        parse_record(json.dumps(told).encode(), record.kind)


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
NAMES = st.sampled_from(["a:b", "c", "d:=[1]"])
ROWS = st.fixed_dictionaries(
    dict.fromkeys(warm_start.BOUNDS, NUMBERS | JSON)
    | {
        "model": st.lists(NAMES, max_size=3) | JSON,
        "features": st.dictionaries(NAMES, st.floats(0, 1) | NUMBERS, max_size=3) | JSON,
    }
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | JSON.map(lambda told: json.dumps(told).encode()))
def test_anything_is_a_record_or_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_record(data, {"cpu": "x"})


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, max_size=3))
def test_any_rows_are_sound_or_refused(rows: list[Any]) -> None:
    told = {"format": 1, "kind": {}, "tallies": rows}
    try:
        found = parse_record(json.dumps(told).encode(), {})
    except ValueError:
        return
    assert parse_record(format_record(found, {}).encode(), {}) is not None
    assert len(list(transfer_observations(found, FACTS))) == len(found.tallies)
    warm_start.merge_records(found, found)


FEATURES = st.from_regex(warm_start.FEATURE, fullmatch=True).filter(lambda one: len(one) <= 80)
TALLIES = st.builds(
    PlanTally,
    st.tuples(FEATURES, FEATURES),
    st.dictionaries(FEATURES, st.floats(0, 1), min_size=1, max_size=24),
    st.integers(1, 9),
    st.integers(-5, 5).map(float),
    st.integers(0, 5).map(float),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(TALLIES, max_size=5, unique_by=lambda one: one.key))
def test_what_is_written_is_read(found: list[PlanTally]) -> None:
    paid = Paid(tuple(found))
    assert parse_record(format_record(paid, {"cpu": "x"}).encode(), {"cpu": "x"}) == paid


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
    monkeypatch.setattr(warm_start, "WAIT_S", 0.1)
    record.path.parent.mkdir(parents=True)
    with record.path.with_name("lock").open("w") as file:
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
    assert warm_start.records_folder() is not None
    monkeypatch.setattr(Path, "home", homeless)
    assert warm_start.records_folder() is None
    assert MachineRecord.for_kind({"cpu": "x"}) is None
    assert warm_start.list_record_files() == ()
