"""A profile: what is read from a trace, what is taken off, what it says and writes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.rewriting import model_of

from ortune.analysis.profiling import files
from ortune.analysis.profiling import profile as kernels
from ortune.analysis.profiling.files import build_trace
from ortune.analysis.profiling.profile import (
    explain_runs,
    fill_operands,
    infer_operands,
    profile,
    require_placement,
)
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime import trace as ort_trace
from ortune.backends.runtimes.onnxruntime.session import OrtSession
from ortune.backends.runtimes.onnxruntime.trace import with_parts
from ortune.cli.main import main
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadData, OrtuneError
from ortune.core.profile import Profile
from ortune.core.session import Executed, Operand, Recorded, Slice
from ortune.data import stream
from ortune.graph.analysis.dataflow import Origin
from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.measurement.timing.operators import Runs, middle_mean, run_count

MODEL = """
<ir_version: 9, opset_import: ["": 17]>
m (float[4,4] x, bool go) => (float[4,4] y) {
  a = MatMul(x, x)
  b = If (go) <
    then_branch = t () => (float[4,4] ty) { tm = MatMul(a, x) ty = Relu(tm) },
    else_branch = e () => (float[4,4] ey) { ey = Neg(a) }
  >
  y = Tanh(b)
}
"""
CPU = "CPUExecutionProvider"


def event(name: str, op: str, ts: int, dur: int, index: int = 0, tid: int = 1) -> dict[str, Any]:
    said = {
        "op_name": op,
        "node_index": str(index),
        "provider": CPU,
        "input_type_shape": [{"float": [2, 3]}],
        "output_type_shape": [{"uint8": [2, 3]}],
    }
    return {
        "cat": "Node",
        "name": f"{name}_kernel_time",
        "ph": "X",
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": said,
    }


def run(ts: int, dur: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "tid": 1, "args": {}}


def read(
    folder: Path, events: list[dict[str, Any]], walls: list[float], graph: Any = None
) -> Recorded:
    (folder / "trace.json").write_text(json.dumps(events))
    return ort_trace.read_trace(folder / "trace.json", graph, np.asarray(walls), None)


def test_spans_go_to_the_next_start_and_bodies_are_taken_off(tmp_path: Path) -> None:
    events = [
        event("folded at load", "Add", 1, 1),
        event("a", "MatMul", 102, 10),
        event("inner", "Relu", 122, 20),
        event("last", "Relu", 145, 5),
        event("hold", "If", 120, 40),
        event("z", "Tanh", 170, 10),
        run(100, 100),
    ]
    found = read(tmp_path, events, [120_000.0])
    spans = {node.name: node.span_ns / 1e3 for node in found.nodes}
    assert spans == {"a": 18, "hold": 50 - 38, "inner": 23, "last": 15, "z": 30}
    assert sum(spans.values()) == 200 - 102
    assert {node.name: node.kernel_ns / 1e3 for node in found.nodes}["hold"] == 40 - 38
    assert found.run_ns == 100_000
    assert [found.nodes[one.index].name for one in found.timeline] == [
        "a",
        "hold",
        "inner",
        "last",
        "z",
    ]
    operand = found.nodes[0].inputs[0]
    assert (operand.dtype, operand.shape, operand.size) == ("float32", (2, 3), 24)
    assert found.nodes[0].outputs[0].size == 6


def test_the_middle_half_of_the_last_runs_counts(tmp_path: Path) -> None:
    events = []
    for index, dur in enumerate([5000, 10, 20, 30, 900]):
        events += [event("a", "Add", 10_000 * index, dur), run(10_000 * index, dur)]
    found = read(tmp_path, events, [10.0, 20.0, 30.0, 900.0])
    assert found.runs == 2
    assert found.nodes[0].span_ns == pytest.approx(25e3)
    assert found.wall_ns == pytest.approx(25.0)
    assert middle_mean([10, 20, 30, 900]) == 25


def test_nodes_side_by_side_keep_their_own_times(tmp_path: Path) -> None:
    events = [event("a", "Add", 0, 50), event("b", "Add", 10, 50, 1, tid=2), run(0, 70)]
    found = read(tmp_path, events, [80.0])
    assert found.parallel
    assert [node.span_ns for node in found.nodes] == [50e3, 50e3]


def test_loops_count_calls_and_same_names_are_told_apart(tmp_path: Path) -> None:
    nodes = (Executed("n", "Add", writes=("p",)), Executed("n", "Add", writes=("q",)))
    graph = ort_trace.Graph(nodes, frozenset())
    events = [event("n", "Add", 10 * i, 5, index=7 if i else 3) for i in range(4)]
    found = read(tmp_path, [*events, run(0, 40)], [40.0], graph)
    assert [(node.writes, node.calls) for node in found.nodes] == [(("p",), 1), (("q",), 3)]


def test_placement_comes_from_the_profile_where_there_is_no_record(tmp_path: Path) -> None:
    class Old:
        run = None

        def get_outputs(self) -> list[Any]:
            return []

        get_inputs = get_outputs

    assert OrtSession(Old()).placement() == {}
    found = read(tmp_path, [event("a", "Add", 0, 5), run(0, 9)], [9.0])
    assert found.placement == {CPU: ("a",)}
    assert "no record" in found.notes[0]


def test_a_model_that_is_all_constant_is_a_profile_of_nothing(tmp_path: Path) -> None:
    ones = ", ".join(["1"] * 16)
    text = CHAIN.replace("float[4,4] x", "float[4,4] unused")
    text = text.replace("{ a =", f"<float[4,4] x = {{{ones}}}> {{ a =")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    found = profile(tmp_path / "m.onnx", ceilings=False, runs=4)
    assert (found.kernels, found.placement, len(found.folded)) == ((), {}, 3)
    assert not any("keeps no record" in note for note in found.notes)
    assert files.write_profile(found, tmp_path / "out")


def test_a_compiling_provider_stands_for_its_parts() -> None:
    nodes = (
        Executed("EP_0", "EP_0", provider="EP"),
        Executed("left", "Add", provider=CPU),
        Executed("EP_1", "EP_1", provider="EP"),
    )
    parts = [("EP", ("a", "b")), ("EP", ("c",))]
    assert [n.known for n in with_parts(nodes, parts)] == [("a", "b"), ("left",), ("c",)]
    assert with_parts(nodes, parts[:1])[2].known == ("a", "b")


def test_the_profilers_cost_is_taken_off_but_never_noise() -> None:
    nodes = tuple(
        Executed(str(i), "Add", calls=1, span_ns=span, kernel_ns=span - 4000)
        for i, span in enumerate((6000.0, 7000.0, 50_000.0))
    )
    recorded = Recorded(nodes, 1, wall_ns=70_000, run_ns=65_000)
    gaps, inside = 3 * 3800, 1400
    plain = 70_000 - gaps - 3 * inside
    taken = kernels.estimate_node_times(recorded, plain_ns=plain)
    assert taken == pytest.approx((800, 1800, 44_800), abs=1)
    assert sum(taken) == pytest.approx(plain - 7_000), "the call itself takes 7 us"
    slower = kernels.estimate_node_times(recorded, plain_ns=(plain - 7_000) / 2 + 7_000)
    shares = [one / sum(slower) for one in slower]
    whole = [one / sum(taken) for one in taken]
    assert shares == pytest.approx(whole, rel=0.05), "a slow spell slows all"
    far = kernels.estimate_node_times(recorded, plain_ns=1e9)
    assert sum(far) == pytest.approx(2 * (63_000 - gaps)), "scaled up by 2 at most"
    for plain in (20_000, 8_000, 3_000):
        assert 0 < sum(kernels.estimate_node_times(recorded, plain_ns=plain)) <= plain, (
            "parts of the run"
        )


CHAIN = """
<ir_version: 9, opset_import: ["": 17]>
m (float[4,4] x) => (float[4,4] y) { a = MatMul(x, x) b = MatMul(a, x) y = Tanh(b) }
"""


@pytest.mark.parametrize(
    ("slow_ns", "nodes", "wanted"),
    [
        (1_000_000, 100, 200),  # 20,000 events
        (100_000_000, 5, 25),  # what fits the time
        (10_000_000, 0, 12),  # nodes not told: at most 5,000 fit, so the fewest runs
        (1_000, 0, 400),
    ],
)
def test_as_many_runs_as_fit_the_time_and_a_readable_trace(
    slow_ns: int, nodes: int, wanted: int
) -> None:
    assert run_count(slow_ns, nodes, 5.0) == wanted


def made(
    backend: Backend, *nodes: Executed, text: str = MODEL, plain_ns: float = 20_000
) -> Profile:
    model = edit.ir.serde.deserialize_model(onnx.parser.parse_model(text))
    names.make_names_unique(model)
    recorded = Recorded(nodes, 1, 20_000, 20_000)
    return explain_runs(Path("m.onnx"), model, backend, Runs(recorded, plain_ns, 1), None, [])


def test_fall_backs_are_listed_with_what_the_placement_shows() -> None:
    def node(name: str, op: str, provider: str) -> Executed:
        return Executed(name, op, provider=provider, known=(name,), calls=1, span_ns=1.0)

    nodes = (
        node("MatMul_0", "MatMul", Openvino.provider),
        node("MatMul_1", "MatMul", CPU),
        node("Tanh_2", "Tanh", CPU),
        Executed("added", "Cast", provider=CPU, calls=1, span_ns=1.0),
    )
    assert made(Openvino(), *nodes, text=CHAIN).fallbacks == {
        "MatMul_1": "the provider claimed other nodes of MatMul: types, shapes or attributes "
        "differ",
        "Tanh_2": "the provider claimed no Tanh",
        "added": "added by the runtime: the next kernel wants another type",
    }
    assert made(Cpu(), *nodes, text=CHAIN).fallbacks == {}


def test_a_provider_that_ran_nothing_is_refused_without_a_record_too() -> None:
    nodes = tuple(Executed(name, "Add", provider=CPU, calls=1) for name in "ab")
    recorded = Recorded(nodes, 1, 1.0, 1.0)
    with pytest.raises(BackendMissing, match="took none of 2 nodes"):
        require_placement(Path("m.onnx"), Openvino(), recorded)
    require_placement(Path("m.onnx"), Cpu(), recorded)
    part = replace(recorded, nodes=(nodes[0], replace(nodes[1], provider=Openvino.provider)))
    require_placement(Path("m.onnx"), Openvino(), part)


def test_flops_come_from_the_shapes_of_the_run() -> None:
    square = Operand("float32", (4, 4), 64)
    node = Executed(
        "MatMul_0", "MatMul", calls=3, span_ns=9.0, inputs=(square, square), outputs=(square,)
    )
    found = made(Cpu(), node)
    assert found.kernels[0].flops == 3 * 2 * 4 * 4 * 4
    tall, wide = Operand("float32", (8, 2), 64), Operand("float32", (8, 5), 160)
    out = Operand("float32", (2, 5), 40)
    turned = replace(node, op_type="FusedMatMul", calls=1, inputs=(tall, wide), outputs=(out,))
    assert made(Cpu(), turned).kernels[0].flops == 2 * 2 * 8 * 5, "its left side is transposed"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    folder = tmp_path_factory.mktemp("profile")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "m.onnx")
    np.savez(folder / "s.npz", x=np.ones((4, 4), np.float32), go=np.array(True))
    return folder, profile(folder / "m.onnx", data=folder, ceilings=False, time=0.1)


def test_a_real_profile_sums_up_and_names_its_sources(real: tuple[Path, Profile]) -> None:
    _, found = real
    assert [kernel.op_type for kernel in found.kernels] == [
        "MatMul",
        "If",
        "MatMul",
        "Relu",
        "Tanh",
    ]
    assert found.mapped == 1
    assert 0 < found.inside <= found.coverage <= 1.02 and found.coverage >= 0.9
    assert [kernel.kind for kernel in found.kernels].count("control") == 1
    assert sum(found.placement.values()) >= 5
    assert len(found.folded) == 1, "the branch that was not taken"
    assert sum(one.share for one in found.by("op_type").values()) == pytest.approx(1)
    assert any("a name of its own" in note for note in found.notes)


def test_files_hold_every_kernel_and_a_valid_trace(
    real: tuple[Path, Profile], tmp_path: Path
) -> None:
    _, found = real
    written, table, whole, laid = files.write_profile(found, tmp_path / "out")
    rows = list(csv.DictReader(table.open()))
    assert [row["name"] for row in rows] == [kernel.name for kernel in found.kernels]
    assert json.loads(whole.read_text())["coverage"] == found.coverage
    valid(json.loads(written.read_text()), {1, 2})
    ((graph, laid_over),) = json.loads(laid.read_text()).items()
    assert graph == found.graph != ""
    named = {name for kernel in found.kernels for name in kernel.sources}
    assert set(laid_over["results"]) <= named
    total_ms = sum(kernel.time_ns for kernel in found.kernels if kernel.sources) / 1e6
    assert sum(one["value"] for one in laid_over["results"].values()) == pytest.approx(total_ms)


def test_nodes_side_by_side_have_tracks_of_their_own(real: tuple[Path, Profile]) -> None:
    _, found = real
    beside = tuple(Slice(at, 10_000.0 * at, 25_000.0) for at in range(4))
    made = build_trace(replace(found, timeline=beside, parallel=True))
    valid(made, {2, 3, 4})


def test_a_body_that_the_clock_ends_late_is_cut_to_what_holds_it(
    real: tuple[Path, Profile],
) -> None:
    _, found = real
    lines = (Slice(1, 0.0, 10_000.0), Slice(2, 5_000.0, 6_000.0), Slice(4, 10_000.0, 1_000.0))
    valid(build_trace(replace(found, timeline=lines)), {1, 2})


def valid(trace: dict[str, Any], wanted: set[int]) -> None:
    """Check complete events: on one track they nest or follow each other."""
    tracks: dict[int, list[tuple[float, float]]] = {}
    for one in trace["traceEvents"]:
        assert one["ph"] in ("X", "M")
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], int)
        if one["ph"] == "X":
            assert one["dur"] >= 0
            tracks.setdefault(one["tid"], []).append((one["ts"], one["ts"] + one["dur"]))
    assert set(tracks) == wanted
    for slices in tracks.values():
        open_ends: list[float] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while open_ends and start >= open_ends[-1]:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], "two slices overlap"
            open_ends.append(end)


def test_the_command_says_it_in_words_and_in_json(
    real: tuple[Path, Profile], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = real
    words = ["profile", str(folder / "m.onnx"), "--data", str(folder), "--no-ceilings"]
    words += ["--runs", "8", "--json", str(folder / "p.json")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "of the profiled run" in said
    assert "placement: CPUExecutionProvider" in said
    answer = json.loads((folder / "p.json").read_text())
    assert answer["mapped"] == 1
    assert {"kernels", "regions", "by_kind", "overhead", "folded", "timeline"} <= set(answer)


def test_a_backend_without_a_profiler_is_refused(real: tuple[Path, Profile]) -> None:
    folder, _ = real
    with pytest.raises(BackendMissing, match="does not record a profile"):
        profile(folder / "m.onnx", on="reference", data=folder, ceilings=False)
    other = profile(
        folder / "m.onnx", on="reference", data=folder, ceilings=False, allow_fallback=True, runs=4
    )
    assert other.backend == "cpu"
    assert any("profiled on cpu instead" in note for note in other.notes)


def test_a_place_that_cannot_be_written_is_found_before_the_time_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        assert main(["profile", str(tmp_path / "none.onnx"), "-o", str(place)]) == 2
        said = capsys.readouterr().err.splitlines()
        assert "file" in said[0] and "none.onnx" not in said[0] and "fix:" in said[1]


def test_a_batch_that_the_model_does_not_take_is_refused_before_a_run(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(CHAIN), tmp_path / "m.onnx")
    with pytest.raises(BadData, match="the batch of input 'x' is fixed"):
        profile(tmp_path / "m.onnx", batch=8, ceilings=False)


def test_two_backends_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match="one backend"):
        profile(tmp_path / "m.onnx", on="cpu,openvino")


def test_a_profiler_that_costs_more_than_the_run_is_told() -> None:
    node = Executed("Tanh_2", "Tanh", calls=1, span_ns=9_000.0, kernel_ns=9_000.0)
    found = made(Cpu(), node, text=CHAIN, plain_ns=4_000)
    assert any("takes 5.0 times a plain one" in note for note in found.notes)
    assert any("55% of the profiled run is in no node" in note for note in found.notes)
    assert found.attributed <= 1


# Sizes from a sample, and kernels whose runtime told none.


TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n,4] x) => (float[n,2] y) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
  a = MatMul (x, w)
  b = Relu (a)
  y = Neg (b)
}"""
X, W = Operand("float32", (6, 4), 96), Operand("float32", (4, 2), 32, constant=True)
Y = Operand("float32", (6, 2), 48)


def known(folder: Path, batch: int) -> tuple[Origin, dict[str, Operand]]:
    model = model_of(TEXT)
    for node, name in zip(model.graph, ("mul", "relu", "neg"), strict=True):
        node.name = name
    path = folder / "s"
    stream.write_stream(path, [{"x": np.zeros((3, 4), np.float32)}])
    found = infer_operands(model, path, batch)
    assert str(model.graph.inputs[0].shape) == "[n,4]", "the model is left alone"
    return Origin(model), found


def test_sizes_follow_from_the_first_sample_and_the_batch(tmp_path: Path) -> None:
    _, found = known(tmp_path, 2)
    assert (found["x"], found["w"], found["y"]) == (X, W, Y)


def test_a_fused_kernel_reads_and_writes_what_crosses_its_border(tmp_path: Path) -> None:
    origin, found = known(tmp_path, 2)
    node = fill_operands(Executed("k", "FullyConnected"), ("mul", "relu"), origin, found)
    assert (node.inputs, node.outputs) == ((X, W), (Y,))


def test_what_the_runtime_told_is_kept_and_nothing_is_made_up(tmp_path: Path) -> None:
    origin, found = known(tmp_path, 0)
    told = Executed("k", "MatMul", inputs=(W,), outputs=(Y,))
    assert fill_operands(told, ("mul",), origin, found) == told
    bare = Executed("k", "MatMul")
    assert fill_operands(bare, (), origin, found) == bare
    del found["w"]
    assert fill_operands(bare, ("mul",), origin, found) == bare


def test_text_has_no_size(tmp_path: Path) -> None:
    model = model_of("""<ir_version: 9, opset_import: ["" : 20]>
    g (string[2] x) => (string[2] y) { y = StringConcat (x, x) }""")
    stream.write_stream(tmp_path / "s", [{"x": np.array(["a", "b"])}])
    found = infer_operands(model, tmp_path / "s", 0)
    assert found["x"] == Operand("str", (2,), 0)
