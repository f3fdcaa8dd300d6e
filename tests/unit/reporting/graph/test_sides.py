"""Original and winner side by side: what became of each node, what it takes, what reads what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from tests.unit import studies
from tests.unit.studies import study, write_model

from ortune.core.section import Bars, Chart, GraphPair, Heading, Text
from ortune.core.session import Executed, Operand, Recorded
from ortune.core.study import Study
from ortune.graph.diff.compare import diff_models
from ortune.reporting.beside import build_report_parts
from ortune.reporting.graph.blocks import draw_graphs
from ortune.reporting.graph.sides import NodeTimes, Sides, compare_sides, join_sides, time_nodes
from ortune.reporting.html import render_html
from ortune.search.experiment.ledger import ORIGINAL, write_kernels

CHAIN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,8] x) => (float[N,8] y) <float[8,8] w = {WEIGHT}> {
  a = MatMul(x, w)
  b = Relu(a)
  y = Add(b, x)
}
"""
QUANTIZED = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,8] x) => (float[N,8] y)
<int8[8,8] w = {QUANTIZED}, float s = {0.03}, int8 z = {0}> {
  xq = QuantizeLinear(x, s, z)
  xd = DequantizeLinear(xq, s, z)
  wd = DequantizeLinear(w, s, z)
  a = MatMul(xd, wd)
  aq = QuantizeLinear(a, s, z)
  ad = DequantizeLinear(aq, s, z)
  b = Relu(ad)
  y = Add(b, x)
}
"""


def parse(text: str) -> ir.Model:
    weights = [n % 7 - 3 for n in range(64)]
    text = text.replace("WEIGHT", ",".join(str(0.03 * w) for w in weights))
    text = text.replace("{QUANTIZED}", "{" + ",".join(map(str, weights)) + "}")
    model = onnx.parser.parse_model(text)
    for place, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{place}"
    return ir.serde.deserialize_model(model)


def sides(a: str = CHAIN, b: str = QUANTIZED, *times: NodeTimes | None) -> Sides:
    models = (parse(a), parse(b))
    return join_sides(diff_models(*models), models, times or (None, None))


def kernels(*times: tuple[str, str, float], dtype: str = "float32") -> Recorded:
    made = [
        Executed(
            name, kernel, known=(name,), calls=1, kernel_ns=ns, outputs=(Operand(dtype, (), 0),)
        )
        for name, kernel, ns in times
    ]
    return Recorded(tuple(made), 8, 1.0, 1.0)


def test_what_quantizes_a_layer_belongs_to_it_and_is_read_through() -> None:
    steps = sides().steps
    assert [step.original.operators for step in steps] == [("MatMul",), ("Relu",), ("Add",)]
    first, relu, add = (step.winner for step in steps)
    assert (first.operators, first.conversions, first.precision) == (("MatMul",), 3, "int8")
    assert relu.conversions == 2 and relu.reads == (0,) and add.reads == (1,)
    assert steps[0].original.precision == "float32" and not sides().is_timed


def test_a_kernel_stands_at_the_node_that_it_is_named_for() -> None:
    model = parse(CHAIN)
    recorded = kernels(("MatMul_0", "FusedMatMul", 3.0), ("Add_2", "Add", 1.0), dtype="bfloat16")
    found = time_nodes(model, recorded, 8.0)
    assert found.ms == {"MatMul_0": 6.0, "Add_2": 2.0} and found.added_ms == 0
    other = kernels(("Reorder_9", "ReorderInput", 1.0), ("Add_2", "Add", 1.0))
    assert time_nodes(model, other, 8.0).added_ms == 4.0
    both = sides(CHAIN, CHAIN, time_nodes(model, kernels(("Add_2", "Add", 1.0)), 1.0), found)
    assert both.is_timed and both.steps[0].winner.precision == "bfloat16"
    assert {row[-1] for row in draw_graphs(both).table.rows} == {"1 to bfloat16"}


def timed(folder: Path) -> Study:
    """A run whose original and winner were recorded."""
    made = study(folder)
    for key, add_ns in ((ORIGINAL, 3.0), (made.best.key, 1.0)):
        add = Executed("a", "Add", reads=("x", "w"), writes=("a",), calls=1, kernel_ns=add_ns)
        relu = Executed("y", "Relu", reads=("a",), writes=("y",), calls=1, kernel_ns=1.0)
        write_kernels(Path(made.root), key, Recorded((add, relu), 8, 1.0, 1.0))
    return made


def test_a_report_draws_both_graphs_and_the_layers_that_changed(tmp_path: Path) -> None:
    made = timed(tmp_path)
    found = compare_sides(made)[""]
    assert [step.kind for step in found.steps].count("matched") == 2
    parts = {part.name: part.blocks for part in build_report_parts(made)}
    (graphs,) = (block for block in parts["graph"] if isinstance(block, GraphPair))
    assert "removed" in graphs.shown["words"] or "fused" in graphs.shown["words"]
    assert any(
        isinstance(b, Text) and "netron" in b.text and b.tone == "code" for b in parts["graph"]
    )
    bars = next(block for block in parts["operators"] if isinstance(block, Bars))
    assert [bar.parts for bar in bars.bars] == [
        (pytest.approx(0.75), pytest.approx(0.26)),
        (pytest.approx(0.25), pytest.approx(0.26)),
    ]
    assert '<div class="graph">' in render_html(made)


def test_without_a_second_model_there_is_no_graph(tmp_path: Path) -> None:
    made = study(tmp_path)
    Path(made.models[""]).unlink()
    assert compare_sides(made) == {}
    kept = replace(made, trials=made.trials[:1])
    assert compare_sides(kept) == {}
    names = [part.name for part in build_report_parts(kept)]
    assert "graph" not in names


def test_a_record_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    made = timed(tmp_path)
    (Path(made.root) / "kernels" / f"{ORIGINAL}.json").write_text("{}")
    (part,) = (part for part in build_report_parts(made) if part.name == "graph")
    assert isinstance(part.blocks[0], Text) and part.blocks[0].text.startswith("The graph is left")


def test_repeated_layers_are_one_region_and_what_is_read_is_kept() -> None:
    shape = replace(sides(), added_ms=(0.0, 0.0))
    steps = tuple(
        replace(step, region="encoder.layer.*.mlp", member=f"encoder.layer.{n}.mlp")
        for n in range(3)
        for step in shape.steps
    )
    drawn = draw_graphs(replace(shape, steps=steps))
    ((name, members),) = drawn.shown["regions"]
    assert name == "encoder.layer.*"
    assert [member for member, _ in members] == [f"encoder.layer.{n}" for n in range(3)]
    assert [places for _, places in members] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert drawn.table.rows[0][:3] == ("encoder.layer.*", "9", "24")


def test_layers_that_changed_most_come_first(tmp_path: Path) -> None:
    parts = {part.name: part.blocks for part in build_report_parts(timed(tmp_path))}
    chart = next(block for block in parts["operators"] if isinstance(block, Chart))
    changes = [abs(float(before) - float(after)) for _, before, after in chart.table.rows]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0


def test_a_job_of_several_models_has_a_graph_of_each(tmp_path: Path) -> None:
    made = study(tmp_path)
    encoder = Path(made.models[""])
    decoder = write_model(encoder.with_name("decoder.onnx"), studies.MODEL)
    made = studies.changed(made, models={"encoder": str(encoder), "decoder": str(decoder)})
    assert list(compare_sides(made)) == ["encoder", "decoder"]
    parts = {part.name: part.blocks for part in build_report_parts(made)}
    titles = [parts[name][0] for name in ("graph", "graph-2")]
    assert [title.text for title in titles if isinstance(title, Heading)] == [
        "The graph of encoder: original and winner",
        "The graph of decoder: original and winner",
    ]
    assert any(isinstance(b, Text) and "none changed" in b.text for b in parts["graph-2"]), (
        "what a recipe found nothing to do in is as it came"
    )
