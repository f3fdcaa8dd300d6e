"""What counts as equal, and what is not compared: no memory for it, no tensors."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.models import write_classifier
from tests.unit.quantizers.calibration.test_reuse import _feeds

from ortune.core.event import Event, Note
from ortune.core.step import Bridge, Recipe
from ortune.data.feeds import Feeds
from ortune.data.stream import write_stream
from ortune.graph.io import file
from ortune.search.recipe import compare
from ortune.search.recipe.build import build
from ortune.transforms.simplify import Simplify


def test_weights_count_twice(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path, samples=4)
    needed = 2 * file.count_file_bytes(model) + (256 << 20)
    assert compare.describe_memory_lack(model, needed) is None
    said = compare.describe_memory_lack(model, needed - 1)
    assert said is not None and "0.3 GB" in said and "outputs are not compared" in said


@pytest.mark.parametrize(("free", "runs"), [(1 << 40, 2), (1 << 20, 0)])
def test_without_memory_the_numeric_check_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, runs: int
) -> None:
    model, data = write_classifier(tmp_path, samples=4)
    feeds: Feeds = _feeds(model, data, tmp_path / "feeds")
    asked: list[object] = []
    events: list[Event] = []

    def ask(job: object, *what: object) -> list[dict[str, list[list[list[float]]]]]:
        asked.append(job)
        return [{"records": [[[1.0, 0.0, 1.0]]]}]

    monkeypatch.setattr(compare, "ask_once", ask)
    monkeypatch.setattr(compare, "compute_outputs", ask)
    monkeypatch.setattr(compare.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(compare.Snr, "aggregate", lambda self, rows: 200.0)
    out = tmp_path / "out.onnx"
    build(model, Recipe("r", (Simplify(),)), out, feeds=feeds, sink=events.append)
    said = [event.text for event in events if isinstance(event, Note) and event.warning]
    assert len(asked) == runs and out.is_file()
    assert len(said) == (0 if runs else 1)


def _parse(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


HEAD = '<ir_version: 10, opset_import: ["": 21]> '


@pytest.mark.parametrize(
    ("body", "least_db"),
    [
        ("m (float[4] x) => (float[4] y) { y = Sqrt(x) }", 90.0),
        ("m (float16[4] x) => (float16[4] y) { y = Sqrt(x) }", 45.0),
        ("m (bfloat16[4] x) => (bfloat16[4] y) { y = Sqrt(x) }", 27.0),
        ("m (float16[4] x) => (float[4] y) { h = Cast<to=1>(x) y = Sqrt(h) }", 90.0),
    ],
)
def test_what_counts_as_equal_depends_on_the_type_that_is_computed_in(
    body: str, least_db: float
) -> None:
    assert compare.find_exact_db(_parse(HEAD + body)) == least_db


def test_an_output_that_is_no_tensor_is_named() -> None:
    model = _parse(f"{HEAD} m (float[4] x) => (seq(float[4]) y) {{ y = SequenceConstruct(x, x) }}")
    said = compare.describe_odd_outputs(model)
    assert said is not None and "'y' is not a tensor" in said
    plain = _parse(f"{HEAD} m (float[4] x) => (float[4] y) {{ y = Sqrt(x) }}")
    assert compare.describe_odd_outputs(plain) is None


def _write_scaled_twice_and_once(folder: Path, factor: float) -> tuple[Path, Path, Path]:
    """Write float16 files that scale by a factor's root twice, and by 0.35 once; and samples."""
    once, twice, samples = folder / "once.onnx", folder / "twice.onnx", folder / "samples.stream"
    text = f"{HEAD} m (float16[64] x) => (float16[64] y)"
    root = f"c = Constant<value_float={factor**0.5:.8f}> () h = Cast<to=10>(c)"
    onnx.save(onnx.parser.parse_model(f"{text} {{ {root} z = Mul(x, h) y = Mul(z, h) }}"), twice)
    whole = "c = Constant<value_float=0.35355338> () h = Cast<to=10>(c)"
    onnx.save(onnx.parser.parse_model(f"{text} {{ {whole} y = Mul(x, h) }}"), once)
    write_stream(samples, [{"x": np.random.default_rng(0).normal(size=64).astype(np.float16)}])
    return twice, once, samples


@pytest.mark.parametrize(("factor", "kept"), [(0.35355338, True), (0.36, False)])
def test_a_rewrite_of_float16_may_round_elsewhere_and_no_more(
    tmp_path: Path, factor: float, kept: bool
) -> None:
    """Twice times the root of a factor is once times the factor, but for where it rounds."""
    twice, once, samples = _write_scaled_twice_and_once(tmp_path, factor)
    least_db = compare.find_exact_db(file.load(twice))
    expected = compare.run_reference(twice, samples, [0], tmp_path, least_db=least_db)
    assert (compare.find_difference(once, expected, tmp_path) is None) == kept


@pytest.mark.parametrize(("factor", "kept"), [(0.35355338, True), (0.36, False)])
def test_so_may_a_step_that_changes_inputs(tmp_path: Path, factor: float, kept: bool) -> None:
    twice, once, _ = _write_scaled_twice_and_once(tmp_path, factor)
    drawn = np.random.default_rng(0).normal(size=64).astype(np.float16)
    np.savez(tmp_path / "sample.npz", x=drawn)
    feeds = _feeds(twice, tmp_path / "sample.npz", tmp_path)
    _, why = compare.compare_across(
        Bridge(), twice, once, feeds, [0], tmp_path,
        least_db=compare.find_exact_db(file.load(twice)),
    )  # fmt: skip
    assert (why is None) == kept
