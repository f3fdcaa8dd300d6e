"""Runtime settings: probed in the installed runtime, checked, and within the CPU limit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime import checks
from ortune.backends.runtimes.openvino import native
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.search.recipe.space import SearchTarget

FACTS = Facts({"Cast": 1, "Gelu": 1}, 2, 0, 0, {}, 20, 10, (), ())
EVERY = Cpu(
    threads=2,
    spin=False,
    spin_us=50,
    spin_backoff=8,
    parallel=True,
    inter_threads=1,
    arena_growth="as-requested",
    memory_pattern=False,
    memory_reuse=False,
    prepack=False,
    flush_denormals=True,
    block_base=4,
    fast_gelu=True,
    cast_chains=True,
    nbits_block=-1,
    config=("session.disable_double_qdq_remover=1",),
)
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[4,64] x) => (float[4,64] y) { a = Relu(x)  y = Sigmoid(a) }
"""
OPEN = """
import sys
from pathlib import Path
import numpy as np
from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
for text in sys.argv[2:]:
    with parse_plugin(Backend, text).open(Path(sys.argv[1])) as session:
        out = session.run({"x": np.full((4, 64), 1e-40, np.float32)})
        print(float(np.float32(1e-40) * np.float32(1)))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def opened(model: Path, *spellings: str) -> subprocess.CompletedProcess[str]:
    """Open backends one after another in one process of its own."""
    command = [sys.executable, "-c", OPEN, str(model), *spellings]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# --- the probe ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    sorted({*EVERY.build_config_entries(), *replace(EVERY, affinity="2").build_config_entries()}),
)
def test_the_installed_runtime_has_every_key_that_a_field_sets(key: str) -> None:
    checks.demand_session_keys([key])


@pytest.mark.parametrize("key", ["session.intra_op.spin_durations_us", "session.intra_op"])
def test_an_unknown_key_is_an_error_that_names_the_nearest(key: str) -> None:
    backend = Cpu(config=(f"{key}=1",))
    with pytest.raises(BadSettings, match=f"no session key '{key}'") as caught:
        backend.missing()
    assert "session.intra_op" in caught.value.fix


def test_an_unknown_key_is_refused_when_a_session_opens(model: Path) -> None:
    with (
        pytest.raises(BadSettings, match=r"session\.nonsense"),
        Cpu(config=("session.nonsense=1",)).open(model),
    ):
        pass


def test_defaults_scan_no_library(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr(checks, "list_libraries", lambda: pytest.fail("scanned"))
    with Cpu(threads=1).open(model) as session:
        assert session.placement()


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cpu(spin_us=-1)", "spin_us=-1"),
        ("cpu(spin_backoff=0)", "spin_backoff=0"),
        ("cpu(block_base=-4)", "block_base=-4"),
        ('cpu(affinity="0")', "affinity"),
        ('cpu(affinity="3-2")', "affinity"),
        ('cpu(affinity="a")', "affinity"),
        ('cpu(config=["session.x"])', "cannot read the setting"),
        ('cpu(config=["session.x=1", "session.x=2"])', "given twice"),
        ('cpu(config=["session.enable_mem_pattern=0"])', "has a field of its own"),
        ("openvino(streams=-1)", "streams=-1"),
        ('openvino(config=["NUM_STREAMS=2"])', "has a field of its own"),
    ],
)
def test_wrong_values_are_refused_when_they_are_read(text: str, what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        parse_plugin(Backend, text)


@pytest.mark.parametrize(
    ("backend", "what"),
    [
        (Cpu(inter_threads=2), "inter_threads has no effect"),
        (Cpu(arena=False, arena_growth="as-requested"), "arena_growth has no effect"),
        (Cpu(threads=3, affinity="1"), "binds 1 thread"),
        (Cpu(threads=2, affinity="4096"), "names CPU 4096"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(backend: Cpu, what: str, model: Path) -> None:
    with pytest.raises(BadSettings, match=what), backend.open(model):
        pass


def test_the_spelling_names_only_what_differs() -> None:
    assert str(Cpu()) == "cpu"
    assert str(Cpu(spin=False)) == "cpu(spin=false)"
    assert parse_plugin(Backend, str(EVERY)) == EVERY


def test_settings_written_before_the_fields_existed_still_open() -> None:
    old = {"is": "backends/cpu", "threads": 1, "level": "all", "disable": []}
    assert codec.decode(Backend, old) == Cpu(threads=1)


@pytest.mark.parametrize(
    "change",
    [
        {"flush_denormals": True},
        {"fast_gelu": True},
        {"cast_chains": True},
        {"nbits_block": 64},
        {"config": ("a=b",)},
    ],
)
def test_what_changes_numbers_says_so(change: dict[str, object]) -> None:
    assert replace(Cpu(), **change).lossy
    assert not Cpu(spin=False, arena=False, prepack=False, parallel=True).lossy


def test_a_session_takes_every_setting_at_once(model: Path) -> None:
    done = opened(model, str(EVERY))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0, "denormals are flushed in the thread that opened it"


def test_flushing_that_an_earlier_session_prevents_is_an_error(model: Path) -> None:
    done = opened(model, "cpu", "cpu(flush_denormals=true)")
    assert "an earlier session of this process has fixed it" in done.stderr


@pytest.mark.skipif(not native.is_openvino_installed(), reason="needs openvino")
def test_openvino_is_asked_for_its_properties(model: Path) -> None:
    with pytest.raises(BadSettings, match="no property 'NUM_STREAM'") as caught:
        Openvino(config=("NUM_STREAM=2",)).missing()
    assert "NUM_STREAMS" in caught.value.fix
    every = Openvino(threads=1, hint="throughput", streams=1, pinning="off", hyper_threading="on")
    assert every.missing() is None
    with every.open(model) as session:
        assert session.run({"x": np.ones((4, 64), np.float32)})["y"].shape == (4, 64)


# --- coordinates and the CPU limit ----------------------------------------------------------


def on_cpus(count: int) -> Capabilities:
    return Capabilities(effective_cpus=count, usable_cpus=tuple(range(count)))


@pytest.mark.parametrize("cpus", [1, 2, 3, 8])
@pytest.mark.parametrize("backend", [Cpu(), Cpu(threads=1), Openvino()])
def test_no_candidate_asks_for_more_threads_than_there_are_cpus(
    backend: Backend, cpus: int
) -> None:
    coordinates = backend.coordinates(FACTS, on_cpus(cpus))
    found = [one for values in coordinates.values() for one in values]
    assert all(one.threads <= cpus for one in found)
    assert all(getattr(one, "inter_threads", 0) <= cpus for one in found)
    wanted = {1, cpus} - {backend.threads or cpus}
    offered = [one.threads for one in coordinates["threads"]]
    assert wanted <= {count or cpus for count in offered}
    assert cpus not in offered, "all CPUs are spelled 0, as in the defaults: one plan, not two"


@pytest.mark.parametrize("threads", [1, 2])
def test_no_two_settings_that_are_offered_contradict_each_other(threads: int, model: Path) -> None:
    around = {Cpu(threads=threads)}
    for _ in range(2):
        around |= {
            beside
            for backend in around
            for values in backend.coordinates(FACTS, on_cpus(2)).values()
            for beside in values
        }
    assert Cpu(threads=threads, arena_growth="as-requested", prepack=False) in around
    for backend in around:
        if not backend.flush_denormals and not backend.affinity:  # what only a fresh process takes
            with backend.open(model):
                pass


def test_one_thread_neither_spins_nor_is_pinned() -> None:
    eight = on_cpus(8)
    assert {"spin", "affinity", "block_base"} <= set(Cpu(threads=4).coordinates(FACTS, eight))
    assert not {"spin", "affinity", "block_base"} & set(Cpu(threads=1).coordinates(FACTS, eight))
    bound = Cpu(threads=4, spin=False, affinity="2;3;4", block_base=4)
    assert Cpu(threads=1) in bound.coordinates(FACTS, eight)["threads"]


def test_a_pinned_spin_leaves_the_number_of_threads_to_be_tried() -> None:
    four = on_cpus(4)
    start = Cpu(spin=False)
    found = SearchTarget(start, four, frozenset({"spin"})).list_coordinates(start, FACTS)
    assert found["threads"] == [Cpu(threads=1, spin=False), Cpu(threads=2, spin=False)]
    assert found["spin"] == []
    both = SearchTarget(start, four, frozenset({"spin", "threads"})).list_coordinates(start, FACTS)
    assert both["threads"] == []


def test_denormals_are_offered_first_where_weights_hold_them() -> None:
    seeded = Cpu().coordinates(replace(FACTS, denormals=0.1), on_cpus(2))
    assert next(iter(seeded)) == "flush_denormals"
    assert seeded["flush_denormals"] == [Cpu(flush_denormals=True)]
    assert not Cpu().coordinates(replace(FACTS, denormals=0.0), on_cpus(2)).get("flush_denormals")
    recurrent = replace(FACTS, ops={"LSTM": 1}, denormals=0.0)
    assert list(Cpu().coordinates(recurrent, on_cpus(2)))[-1] == "flush_denormals"


LIMITED = """
from ortune.backends.runtimes.onnxruntime import session
from ortune.backends.cpu import Cpu
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.facts import Facts
from ortune.measurement.process import query_capabilities
facts = Facts({}, 0, 0, 0, {}, 17, 8, (), ())
threads = [one.threads for one in Cpu().coordinates(facts, query_capabilities(Cpu()))["threads"]]
made = session.make_session_options(0, "all", verbose=False)
print(effective_cpus(), made.intra_op_num_threads, max(threads, default=1))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_threads_follow_taskset() -> None:
    one = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(one), sys.executable, "-c", LIMITED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "1"]


def test_threads_follow_a_quota_of_one_cpu() -> None:
    with quota() as join:
        command = ["sh", "-c", f'{join} && exec "$0" "$@"', sys.executable, "-c", LIMITED]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["1", "1", "1"]


@contextmanager
def quota() -> Iterator[str]:
    """Make a cgroup of one CPU; yields the shell command that joins it. Skips where it cannot."""
    for top, files in (
        (
            Path("/sys/fs/cgroup/cpu"),
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"},
        ),
        (Path("/sys/fs/cgroup"), {"cpu.max": "100000 100000"}),
    ):
        group = top / f"ortune-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, value in files.items():
                (group / name).write_text(value)
            yield f'echo $$ > "{group}/cgroup.procs"'
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no cgroup of this machine can be written")


def test_graph_optimizers_are_left_out_one_by_one_on_top_of_each_other() -> None:
    ops = {"LayerNormalization": 2, "Softmax": 1, "MatMul": 4}
    facts = Facts(ops, 7, 0, 0, {}, 20, 10, (), ())
    found = Cpu().coordinates(facts, on_cpus(2))
    assert [c.disable for c in found["without SkipLayerNormFusion"]] == [("SkipLayerNormFusion",)]
    assert found["without BiasGeluFusion"] == []
    after = found["without SkipLayerNormFusion"][0].coordinates(facts, on_cpus(2))
    assert after["without SkipLayerNormFusion"] == []
    assert [c.disable for c in after["without MatMulScaleFusion"]] == [
        ("SkipLayerNormFusion", "MatMulScaleFusion")
    ]


def test_both_words_for_no_rewriting_are_one() -> None:
    assert (
        Cpu(level="disable")
        == Cpu(level="disabled")
        == parse_plugin(Backend, "cpu(level=disable)")
    )
    assert str(Cpu(level="disable")) == "cpu(level=disabled)"
    assert codec.encode(replace(Cpu(), level="disable"))["level"] == "disabled"
