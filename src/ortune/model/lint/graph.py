"""Rules about what is connected to what, and which operators are there."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ortune.model.graph.edit import attribute, bodies, const_array, every_graph, every_node
from ortune.model.graph.match import RANDOM, label
from ortune.model.graph.uses import is_read
from ortune.model.io.write import NEWEST_IR
from ortune.model.lint.finding import Finding, finding
from ortune.model.parts.extract import upstream

_KNOWN = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_PER_CHANNEL, _FUSED = 13, 11
"""Opsets from which Q/DQ pairs take a scale a channel, and from which runtimes fuse most."""


def findings(model: ir.Model) -> Iterator[Finding | None]:
    """Yield what is odd about the graph."""
    yield finding(
        "no-nodes",
        "warning",
        "no nodes at all",
        () if len(model.graph) else [model.graph.name or "the graph"],
        "the answers are inputs or constants",
        "check what was exported",
    )
    yield from _unused(model)
    yield from _outputs(model)
    yield from _operators(model)
    yield from _training(model)
    yield from _versions(model)


def _unused(model: ir.Model) -> Iterator[Finding | None]:
    graph = model.graph
    needed = upstream(graph.outputs, ())
    yield finding(
        "unused-input",
        "warning",
        "{n} inputs without a way to an output",
        (v.name for v in graph.inputs if v not in needed and not v.is_initializer()),
        "callers must give them for nothing",
        "`ortune extract M -o OUT` leaves them out",
    )
    every = [v for one in (graph, *graph.subgraphs()) for v in one.initializers.values()]
    unread = [v for v in every if not (is_read(v) or v.is_graph_input())]
    size = sum(v.const_value.nbytes for v in unread if v.const_value is not None)
    yield finding(
        "unused-weights",
        "warning",
        "{n} initializers never read",
        (value.name for value in unread),
        f"{size:,} bytes of the file",
        "apply simplify",
    )
    yield finding(
        "dead-nodes",
        "warning",
        "{n} nodes without a way to an output",
        (node.name for node in _dead(model, needed)),
        "runtimes leave most of them out, others run them",
        "apply simplify",
    )
    yield finding(
        "overridable-weights",
        "warning",
        "{n} weights declared as inputs too, for callers to replace",
        (value.name for value in graph.inputs if value.is_initializer()),
        "runtimes may not fold or fuse them",
        "export with keep_initializers_as_inputs=False",
    )


def _dead(model: ir.Model, needed: dict[ir.Value, None]) -> Iterator[ir.Node]:
    """Yield nodes that nothing needs, in bodies by what the body itself gives."""
    for graph in every_graph(model):
        seen = needed if graph is model.graph else upstream(graph.outputs, ())
        for node in graph:
            if not any(value in seen for value in node.outputs):
                yield node


def _outputs(model: ir.Model) -> Iterator[Finding | None]:
    fixed, passed = [], []
    for value in model.graph.outputs:
        behind = upstream([value], ())
        if value.is_graph_input():
            passed.append(value.name)
        elif not any(one.is_graph_input() for one in behind) and not _draws(behind):
            fixed.append(value.name)
    yield finding(
        "constant-output",
        "warning",
        "{n} outputs independent of every input",
        fixed,
        "the same answer every time; was the model traced with its input fixed?",
        "export it again, or leave them out: `ortune extract M --to OUTPUT -o OUT`",
    )
    yield finding(
        "input-as-output",
        "note",
        "{n} outputs handed through from an input",
        passed,
        "a copy in every run; some tools fail on them",
        "`ortune extract M --to OUTPUT -o OUT` with the other outputs",
    )


def _draws(values: dict[ir.Value, None]) -> bool:
    makers = (value.producer() for value in values)
    return any(node is not None and node.op_type in RANDOM for node in makers)


def _operators(model: ir.Model) -> Iterator[Finding | None]:
    nodes = list(every_node(model))
    local = {(function.domain, function.name) for function in model.functions.values()}
    yield finding(
        "deprecated-operator",
        "warning",
        "{n} nodes of operators that newer opsets drop",
        (f"{node.op_type} {node.name}" for node in nodes if _dropped(node)),
        "newer tools and providers do not know them",
        "apply raise-opset",
    )
    yield finding(
        "custom-operator",
        "warning",
        "{n} nodes of operators from no domain known here",
        (
            f"{label(node)} {node.name}"
            for node in nodes
            if node.domain not in _KNOWN and (node.domain, node.op_type) not in local
        ),
        "no runtime loads the model without their library",
        "give it with --custom-ops",
    )
    yield finding(
        "random-operator",
        "note",
        "{n} nodes drawing random numbers",
        (f"{node.op_type} {node.name}" for node in nodes if node.op_type in RANDOM),
        "no two runs agree, so that changes cannot be verified",
        "export with the noise as an input",
    )
    yield finding(
        "no-op-nodes",
        "note",
        "{n} nodes without effect: Identity, Dropout in inference",
        (
            f"{node.op_type} {node.name}"
            for node in nodes
            if not node.domain and node.op_type in ("Identity", "Dropout") and not _trains(node)
        ),
        "runtimes remove most; what remains hides patterns from fusions",
        "apply simplify",
    )


def _dropped(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx.ml") or not onnx.defs.has(node.op_type, node.domain):
        return False
    return bool(onnx.defs.get_schema(node.op_type, node.domain).deprecated)


def _training(model: ir.Model) -> Iterator[Finding | None]:
    nodes = [node for node in every_node(model) if not node.domain and _trains(node)]
    yield finding(
        "training-mode",
        "error",
        "{n} nodes in training mode",
        (f"{node.op_type} {node.name}" for node in nodes),
        "answers depend on the rest of the batch, or on chance",
        "call model.eval() before the export",
    )


def _trains(node: ir.Node) -> bool:
    if node.op_type == "BatchNormalization":
        extra = [value for value in node.outputs[1:] if value.name]
        return bool(attribute(node, "training_mode", 0)) or bool(extra)
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        mode = const_array(node.inputs[2])
        return mode is None or bool(mode.any())
    old = node.op_type in ("BatchNormalization", "Dropout") and "is_test" in node.attributes
    return old and not attribute(node, "is_test", 1)


def _versions(model: ir.Model) -> Iterator[Finding | None]:
    opset = model.opset_imports.get("", _PER_CHANNEL)
    if opset < _PER_CHANNEL:
        old = opset < _FUSED
        yield finding(
            "old-opset",
            "warning" if old else "note",
            f"opset {opset}",
            [f"opset {opset}"],
            f"no Q/DQ with a scale a channel before {_PER_CHANNEL}"
            + (f"; runtimes fuse little before {_FUSED}" if old else ""),
            "apply raise-opset",
        )
    if opset > (newest := onnx.defs.onnx_opset_version()):
        yield finding(
            "unknown-opset",
            "error",
            "an opset that is not known here",
            [f"opset {opset}"],
            f"operators are those of up to opset {newest}; runtimes refuse the file",
            "export with an older opset",
        )
    if model.ir_version > NEWEST_IR:
        yield finding(
            "new-ir",
            "warning",
            "a newer format than onnxruntime reads",
            [f"IR version {model.ir_version}"],
            f"onnxruntime reads up to {NEWEST_IR}",
            "`ortune apply M simplify -o OUT` writes one that it reads",
        )
    loops = [node for node in every_node(model) if any(True for _ in bodies(node))]
    yield finding(
        "control-flow",
        "note",
        "{n} nodes with bodies of their own",
        (f"{node.op_type} {node.name}" for node in loops),
        "bodies are not fused across; few providers but the CPU's take them",
        "export without them where the branch or the number of turns is fixed",
    )
