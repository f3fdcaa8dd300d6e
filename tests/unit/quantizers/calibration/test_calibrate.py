"""Calibration through a real worker: tensors of every body, in parts, in groups, from files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortune.core.errors import BadData
from ortune.core.observer import Probe, Range
from ortune.data import stream
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.graph.parts.probed import open_probe
from ortune.quantizers.calibration import calibrate as calibrating
from ortune.quantizers.calibration.calibrate import (
    Inactive,
    calibrate_groups,
    compute_ranges,
    find_inactive,
    make_activity_probes,
)
from ortune.quantizers.observers.channels import Channels
from ortune.quantizers.observers.entropy import Entropy
from ortune.quantizers.observers.min_max import MinMax
from ortune.quantizers.observers.moments import LayerMoments
from ortune.quantizers.observers.percentile import Percentile

CHAIN = """
<ir_version: 8, opset_import: ["": 17]>
chain (float[N,M] x) => (float[N,M] y)
<float[1] two = {2.0}, float[1] four = {-4.0}> {
  doubled = Mul (x, two)
  moved = Add (doubled, four)
  kept = Relu (moved)
  half = Cast <to = 10> (moved)
  brain = Cast <to = 16> (moved)
  whole = Cast <to = 7> (moved)
  back = Cast <to = 1> (brain)
  y = Neg (kept)
}
"""
BODIES = """
<ir_version: 8, opset_import: ["": 17]>
bodies (float[N] x, bool c, int64 turns) => (float[K] y, float[P] z)
<float[1] one = {1.0}> {
  go = Constant <value = bool {1}> ()
  grown = Loop (turns, go, x) <
    body = step (int64 i, bool on, float[A] v) => (bool out, float[B] w) {
    out = Identity (on)
    part = Add (v, one)
    inner = If (c) <
      then_branch = yes () => (float[C] a) { twice = Add (part, part)
        a = Neg (twice) },
      else_branch = no () => (float[D] b) { b = Abs (part) }
    >
    times = Constant <value = int64 {2}> ()
    deep = Loop (times, on, inner) <
      body = dig (int64 j, bool go_on, float[E] u) => (bool more, float[F] t) {
      more = Identity (go_on)
      dug = Sub (u, one)
      t = Identity (dug)
    }>
    w = Concat <axis = 0> (deep, x)
  }>
  y = Identity (grown)
  rows = Unsqueeze (x, zero)
  zero = Constant <value = int64[1] {0}> ()
  z = Identity (x)
}
"""
SCAN = """
<ir_version: 8, opset_import: ["": 17]>
scans (float[T,2] x) => (float[2] last, float[T,2] all) <float[2] start = {0.0, 0.0}> {
  last, all = Scan <num_scan_inputs = 1, scan_output_directions = [0],
    body = add (float[2] state, float[2] row) => (float[2] next, float[2] out) {
      sum = Add (state, row)
      next = Identity (sum)
      out = Neg (sum)
    }> (start, x)
}
"""


def model(text: str) -> ir.Model:
    """Parse; node lists are put in order."""
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


def feeds(path: Path, samples: Sequence[dict[str, np.ndarray]]) -> Path:
    stream.write_stream(path / "feeds.stream", samples)
    return path / "feeds.stream"


def ramps(path: Path, *lengths: int) -> Path:
    """One sample a length: 0, 1, ... in rows of 2, 3, ... columns: ragged and of many shapes."""
    rows = [np.arange(n, dtype=np.float32).reshape(1, -1) for n in lengths]
    return feeds(path, [{"x": np.repeat(row, 1 + i, 0)} for i, row in enumerate(rows)])


def test_every_kind_of_tensor_over_ragged_samples(tmp_path: Path) -> None:
    names = ["x", "doubled", "moved", "kept", "half", "brain", "whole", "y"]
    source = ramps(tmp_path, 4, 7, 2)
    made = model(CHAIN)
    found = compute_ranges(
        made, [Probe(name, MinMax()) for name in names], source, [0, 1, 2], tmp_path
    )
    assert found == {
        "x": Range(0, 6),
        "doubled": Range(0, 12),
        "moved": Range(-4, 8),
        "kept": Range(0, 8),
        "half": Range(-4, 8),
        "brain": Range(-4, 8),
        "whole": Range(-4, 8),
        "y": Range(-8, 0),
    }
    assert edit.take_notes(made) == ""
    only = compute_ranges(made, [Probe("moved", MinMax())], source, [0], tmp_path)
    assert only["moved"] == Range(-4, 2)


def test_a_little_memory_means_more_parts_and_equal_answers(tmp_path: Path) -> None:
    source = ramps(tmp_path, 64, 128)
    probes = [
        Probe(name, observer, f"{name} {observer}")
        for name in ("x", "doubled", "moved", "kept", "y")
        for observer in (MinMax(), Percentile(99), Entropy())
    ]
    whole = calibrate_groups(model(CHAIN), probes, source, [[0, 1]], tmp_path / "a")
    split = calibrate_groups(
        model(CHAIN), probes, source, [[0, 1]], tmp_path / "b", memory=2 * 4 * 256 + 70_000
    )
    assert whole.parts == 1
    assert split.parts == 5
    assert split.ranges == whole.ranges
    assert whole.peak_rss > 0


def test_a_sixth_of_what_a_worker_may_have_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ramps(tmp_path, 64, 128)
    probes = [Probe(name, MinMax()) for name in ("x", "doubled", "moved", "kept", "y")]
    found = []
    for held in (1, 80_000, 1 << 40):
        monkeypatch.setattr(
            "ortune.quantizers.calibration.calibrate.count_allowed_bytes", lambda _, n=held: 6 * n
        )
        folder = tmp_path / str(held)
        found.append(calibrate_groups(model(CHAIN), probes, source, [[0, 1]], folder))
    assert [one.parts for one in found] == [5, 3, 1]
    assert found[0].ranges == found[1].ranges == found[2].ranges


def test_groups_are_answered_apart_in_one_go(tmp_path: Path) -> None:
    source = ramps(tmp_path, 3, 9, 5, 2)
    probes = [Probe("moved", MinMax()), Probe("moved", Percentile(50), "middle")]
    first, second = (0, 2), (1, 3)
    found = calibrate_groups(
        model(CHAIN), probes, source, [range(4), first, second], tmp_path / "groups"
    )
    assert [ranges["moved"] for ranges in found.ranges] == [
        Range(-4, 12),
        Range(-4, 4),
        Range(-4, 12),
    ]
    for group, answers in zip(([0, 1, 2, 3], first, second), found.ranges, strict=True):
        alone = compute_ranges(model(CHAIN), probes, source, group, tmp_path / "alone")
        assert alone == answers


def test_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ramps(tmp_path, 3, 9)
    probes = [Probe("moved", MinMax()), Probe("kept", Entropy()), Probe("two", MinMax())]
    once = calibrate_groups(model(CHAIN), probes, source, [[0, 1]], tmp_path)
    monkeypatch.setattr(calibrating, "Worker", None)
    again = calibrate_groups(model(CHAIN), probes, source, [[0, 1]], tmp_path)
    assert again.ranges == once.ranges
    assert again.notes == once.notes == ("no range: 'two' is a constant",)
    assert (again.parts, once.parts) == (0, 1)
    assert set(json.loads((tmp_path / "ranges.json").read_text())) == {"answers", "hidden"}


def test_moments_come_through_files(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    source = feeds(tmp_path, [{"x": x[:2]}, {"x": x[2:]}])
    probe = Probe("doubled", LayerMoments(), "moments")
    found = compute_ranges(model(CHAIN), [probe], source, [0, 1], tmp_path)["moments"].moments
    wide = 2 * x.astype(np.float64)
    assert found.count == 5
    assert np.allclose(found.second[0], wide.T @ wide / 5, atol=1e-5)
    assert np.allclose(found.mean[0], wide.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_named(tmp_path: Path, bad: float) -> None:
    source = feeds(tmp_path, [{"x": np.full((1, 2), bad, np.float32)}])
    with pytest.raises(BadData, match=r"tensor 'moved': 2 (NaN|infinite) of 2 values"):
        compute_ranges(model(CHAIN), [Probe("moved", MinMax())], source, [0], tmp_path)


def bodies(path: Path, *taken: bool, turns: int = 3) -> Path:
    x = np.array([1.0, 5.0], np.float32)
    rows = [{"x": x, "c": np.array(c), "turns": np.array(turns)} for c in taken]
    return feeds(path, rows)


def test_tensors_of_nested_bodies_of_changing_size(tmp_path: Path) -> None:
    names = ["v", "part", "twice", "b", "inner", "dug", "w", "deep"]
    made = model(BODIES)
    source = bodies(tmp_path, True, False)
    found = calibrate_groups(
        made, [Probe(n, MinMax()) for n in names], source, [[0], [1]], tmp_path
    )
    for answers, taken in zip(found.ranges, (True, False), strict=True):
        assert answers == _by_hand(taken)
    assert found.notes == ()


def _by_hand(taken: bool) -> dict[str, Range]:
    x = np.array([1.0, 5.0])
    seen: dict[str, list[np.ndarray]] = {}
    v = x
    for _ in range(3):
        part = v + 1
        inner = -2 * part if taken else np.abs(part)
        if taken:
            seen.setdefault("twice", []).append(2 * part)
        else:
            seen.setdefault("b", []).append(inner)
        w = np.concatenate([inner - 2, x])
        for name, value in {"v": v, "part": part, "inner": inner, "w": w}.items():
            seen.setdefault(name, []).append(value)
        seen.setdefault("dug", []).extend([inner - 1, inner - 2])
        seen.setdefault("deep", []).append(inner - 2)
        v = w
    flat = {name: np.concatenate(values) for name, values in seen.items()}
    return {name: Range(values.min(), values.max()) for name, values in flat.items()}


def test_a_branch_that_is_never_taken_has_no_answer(tmp_path: Path) -> None:
    source = bodies(tmp_path, True, True)
    probes = [Probe("twice", MinMax()), Probe("b", Entropy())]
    made = model(BODIES)
    found = compute_ranges(made, probes, source, [0, 1], tmp_path)
    assert list(found) == ["twice"]
    assert edit.take_notes(made) == "no range: 'b' held no value on the samples"


def test_an_if_by_itself_keeps_the_shape(tmp_path: Path) -> None:
    made = model("""
        <ir_version: 8, opset_import: ["": 17]>
        branches (float[N,3] x, bool c) => (float[N,3] y) {
          y = If (c) <
            then_branch = yes () => (float[A,3] a) { twice = Add (x, x)
              a = Neg (twice) },
            else_branch = no () => (float[B,3] b) { b = Abs (x) }
          >
        }
    """)
    x = np.array([[1, 2, 3], [4, -5, 6]], np.float32)
    source = feeds(tmp_path, [{"x": x, "c": np.array(c)} for c in (True, False)])
    found = compute_ranges(made, [Probe("twice", Channels())], source, [0, 1], tmp_path)
    assert found["twice"].channels == ((2, 8), (-10, 4), (6, 12))


def test_turns_of_a_scan_are_told_apart(tmp_path: Path) -> None:
    x = np.array([[1, -1], [2, 5], [3, 0]], np.float32)
    source = feeds(tmp_path, [{"x": x}, {"x": x[:2]}])
    probes = [Probe("sum", MinMax(average=1.0)), Probe("row", MinMax()), Probe("all", MinMax())]
    found = compute_ranges(model(SCAN), probes, source, [0, 1], tmp_path)
    assert found == {"sum": Range(3, 4), "row": Range(-1, 5), "all": Range(-6, 1)}


def test_an_old_loop_stacks_its_turns(tmp_path: Path) -> None:
    made = model("""
        <ir_version: 7, opset_import: ["": 11]>
        old (float[2] x, int64 turns) => (float[2] y) <float[2] one = {1.0, 1.0}> {
          go = Constant <value = bool {1}> ()
          y, all = Loop (turns, go, x) <body = step (int64 i, bool on, float[2] v)
              => (bool out, float[2] w, float[2] kept) {
            out = Identity (on)
            w = Add (v, one)
            kept = Neg (w)
          }>
        }
    """)
    x = np.array([0, 10], np.float32)
    source = feeds(tmp_path, [{"x": x, "turns": np.array(n)} for n in (1, 4, 0)])
    found = compute_ranges(made, [Probe("w", MinMax(average=1.0))], source, [0, 1, 2], tmp_path)
    assert found["w"] == Range(4, 14)


def test_what_cannot_be_handed_out_is_noted_and_no_failure(tmp_path: Path) -> None:
    made = model("""
        <ir_version: 8, opset_import: ["": 17]>
        stuck (float[T,2] x, bool c) => (float[T,2] y) {
          y = Scan <num_scan_inputs = 1, body = each (float[2] row) => (float[2] out) {
            out = If (c) <
              then_branch = yes () => (float[2] a) { a = Neg (row) },
              else_branch = no () => (float[2] b) { b = Abs (row) }
            >
          }> (x)
        }
    """)
    source = feeds(tmp_path, [{"x": np.ones((3, 2), np.float32), "c": np.array(True)}])
    probes = [Probe(name, MinMax()) for name in ("a", "y", "gone")]
    found = compute_ranges(made, probes, source, [0], tmp_path)
    assert found == {"y": Range(-1, -1)}
    notes = edit.take_notes(made)
    assert "'a' is in an If inside a Scan, whose turns must be alike" in notes
    assert "'gone' is not in the model" in notes


@pytest.mark.parametrize("beside", [False, True])
def test_weights_are_linked_not_copied(tmp_path: Path, beside: bool) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        product (float[N,64] x) => (float[N,64] y) { h = MatMul (x, w)
          y = MatMul (h, v) }
    """)
    for name in "wv":
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    onnx.save(proto, path, save_as_external_data=beside, size_threshold=100)
    link.symlink_to(path)
    loaded = file.load(link)
    with open_probe(loaded, tmp_path / "work") as files:
        assert files.written == 0
        links = [p for p in files.folder.iterdir() if p.name.startswith("source")]
        assert [p.stat().st_nlink for p in links] == [2]
    loaded.graph.initializers["v"].const_value = ir.tensor(-weight)
    with open_probe(loaded, tmp_path / "work") as files:
        assert files.written == weight.nbytes
    source = feeds(tmp_path, [{"x": np.eye(64, dtype=np.float32)}])
    probes = [Probe("h", MinMax()), Probe("y", MinMax())]
    found = compute_ranges(loaded, probes, source, [0], tmp_path / "work")
    assert found["h"] == Range(weight.min(), weight.max())
    squared = -weight @ weight
    assert found["y"].high == pytest.approx(squared.max(), rel=1e-5)
    assert not list((tmp_path / "work").glob("watched-*"))


def test_inactive_tensors_and_channels(tmp_path: Path) -> None:
    made = model("""
        <ir_version: 8, opset_import: ["": 17]>
        sleepy (float[N,3,4,4] x, float[N,5] v) => (float[N,2,4,4] y, float[N,5] u, float[N,5] t)
        <float[2,3,1,1] w = {1.0,1.0,1.0, -1.0,-1.0,-1.0}, float[1] low = {-9.0}> {
          c = Conv (x, w)
          y = Relu (c)
          far = Add (v, low)
          u = Relu (far)
          t = Relu (v)
        }
    """)
    x = np.ones((2, 3, 4, 4), np.float32)
    v = np.array([[1, -1, 0, 2, 0], [0, -2, 0, 1, 3]], np.float32)
    source = feeds(tmp_path, [{"x": x, "v": v}])
    names = ["x", "c", "y", "u", "t", "gone"]
    probes = make_activity_probes(made, names)
    answers = compute_ranges(made, probes, source, [0], tmp_path)
    assert find_inactive(made, answers, names) == [
        Inactive("x", "", 1.0, of=3),
        Inactive("y", "Relu", None, (1,), 2),
        Inactive("u", "Relu", 0.0, of=5),
        Inactive("t", "Relu", None, (1, 2), 5),
        Inactive("gone", "", None, seen=False),
    ]


def test_a_model_of_more_than_two_gigabytes_is_not_copied(tmp_path: Path) -> None:
    rows = 530_000
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        table (int64[N] x) => (float[N,1024] y) <float[{rows},1024] w = {{}}> {{
          found = Gather (w, x)
          y = Neg (found)
        }}
    """)
    proto.graph.initializer[0].Clear()
    held = proto.graph.initializer[0]
    held.name, held.data_type, held.data_location = "w", 1, onnx.TensorProto.EXTERNAL
    held.dims.extend([rows, 1024])
    held.external_data.add(key="location", value="big.data")
    onnx.save(proto, tmp_path / "big.onnx")
    with (tmp_path / "big.data").open("wb") as data:  # all holes but the last row
        data.truncate(rows * 4096)
        data.seek((rows - 1) * 4096)
        data.write(np.full(1024, 3, np.float32).tobytes())
    loaded = file.load(tmp_path / "big.onnx")
    with open_probe(loaded, tmp_path / "work") as files:
        assert files.written == 0
    source = feeds(tmp_path, [{"x": np.array([0, rows - 1])}])
    found = compute_ranges(loaded, [Probe("found", MinMax())], source, [0], tmp_path / "work")
    assert found == {"found": Range(0, 3)}


@pytest.mark.long
def test_memory_does_not_depend_on_the_samples(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, np.ndarray]]:
        draw = np.random.default_rng(0)
        for _ in range(600):
            yield {"x": draw.normal(size=(16, int(draw.integers(4_000, 16_384)))).astype("f4")}

    stream.write_stream(tmp_path / "feeds.stream", rows())
    assert (tmp_path / "feeds.stream").stat().st_size > 300 * 2**20
    probes = [Probe(name, Entropy()) for name in ("x", "doubled", "moved", "kept", "y")]
    few, many = (
        calibrate_groups(
            model(CHAIN), probes, tmp_path / "feeds.stream", [range(n)], tmp_path / str(n)
        )
        for n in (20, 600)
    )
    assert many.peak_rss < few.peak_rss + 100 * 2**20
