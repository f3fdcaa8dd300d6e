"""What is wrong with a model, or may surprise, found without running it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

import onnx
import onnx_ir as ir

from ortune.core.facts import NEWEST_IR, NEWEST_OPSET
from ortune.core.wording import format_count
from ortune.graph.analysis.facts import HALF_MAX, WeightValues, denormal_share
from ortune.graph.io.wellformed import find_faults, is_runtime_operator
from ortune.graph.ir import edit, match, prune
from ortune.graph.parts.extract import find_upstream, list_read_values
from ortune.graph.parts.probed import walk_graph_protos

Severity: TypeAlias = Literal["error", "warning", "note"]

_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """What a rule found."""

    rule: str
    # ``error``: answers are wrong or a runtime refuses the file; ``warning``: it costs time,
    # memory or accuracy; ``note``: good to know.
    severity: Severity
    what: str
    count: int  # places where it is so
    places: tuple[str, ...]  # the first three: names of nodes or tensors
    cost: str
    action: str  # how to fix it, in the words of the command line where a step does


def make_finding(
    rule: str, severity: Severity, summary: str, places: Iterable[object], cost: str, action: str
) -> Finding | None:
    """Return a finding, or None without places.

    ``{n} things`` in `summary` becomes ``3 things``, or ``1 thing``.
    """
    texts = list(dict.fromkeys(str(place) for place in places))
    if not texts:
        return None
    text = re.sub(r"\{n\} (\w+)s\b", r"1 \1", summary) if len(texts) == 1 else summary
    text = text.replace("{n}", str(len(texts)))
    return Finding(rule, severity, text, len(texts), tuple(texts[:_SHOWN]), cost, action)


_ORDER = {"error": 0, "warning": 1, "note": 2}


def lint_model(
    model: ir.Model,
    shaped: ir.Model,
    proto: onnx.ModelProto | None,
    values: Sequence[WeightValues] | None,
) -> tuple[Finding, ...]:
    """Apply every rule; errors come first, then warnings, then notes.

    Args:
        shaped: The same with shapes and without functions; see `ortune.graph.shapes.infer`.
        proto: The file itself, for its names; None where there is none.
        values: Of all weights, for the rules about them; None where they were not read.
    """
    findings: list[Finding | None] = [*_check_faults(model)]
    findings += _names_findings(proto) if proto is not None else []
    findings += _graph_findings(model)
    findings += _types_findings(model, shaped)
    findings += _weights_findings(model, values) if values is not None else []
    return sort_findings([finding for finding in findings if finding is not None])


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return errors first, then warnings, then notes."""
    return tuple(sorted(findings, key=lambda finding: (_ORDER[finding.severity], finding.rule)))


def _check_faults(model: ir.Model) -> Iterator[Finding | None]:
    """Report what onnx's checker and type inference say; they stop at the first of a kind."""
    entries = list(find_faults(model))
    broken = [text for kind, text in entries if kind in ("rules", "types")]
    if broken:
        yield make_finding(
            "invalid",
            "error",
            f"breaks ONNX's rules: {broken[0]}",
            broken,
            "runtimes may refuse it, or each reads it in a way of its own",
            "export it again",
        )
    yield make_finding(
        "declared-shape",
        "warning",
        "{n} values declared with another type or shape than is computed",
        [text for kind, text in entries if kind == "declared"],
        "runtimes warn or refuse; memory is planned for the wrong size",
        "export it again with the dimensions that vary declared dynamic",
    )


_KNOWN = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_PER_CHANNEL, _FUSED = 13, 11
"""Opsets from which Q/DQ pairs take a scale a channel, and from which runtimes fuse most."""


def _graph_findings(model: ir.Model) -> Iterator[Finding | None]:
    yield make_finding(
        "no-nodes",
        "warning",
        "no nodes at all",
        () if len(model.graph) else [model.graph.name or "the graph"],
        "the answers are inputs or constants",
        "check what was exported",
    )
    yield from _find_unused(model)
    yield from _check_outputs(model)
    yield from _check_operators(model)
    nodes = [node for node in edit.walk_nodes(model) if not node.domain and _is_training(node)]
    yield make_finding(
        "training-mode",
        "error",
        "{n} nodes in training mode",
        (f"{node.op_type} {node.name}" for node in nodes),
        "answers depend on the rest of the batch, or on chance",
        "call model.eval() before the export",
    )
    yield from _check_versions(model)


def _find_unused(model: ir.Model) -> Iterator[Finding | None]:
    graph = model.graph
    needed = find_upstream(graph.outputs, ())
    yield make_finding(
        "unused-input",
        "warning",
        "{n} inputs without a way to an output",
        (v.name for v in graph.inputs if v not in needed and not v.is_initializer()),
        "callers must give them without effect",
        "`ortune extract M -o OUT` leaves them out",
    )
    values = [v for body in (graph, *graph.subgraphs()) for v in body.initializers.values()]
    unread = [v for v in values if not (edit.is_read(v) or v.is_graph_input())]
    size = sum(v.const_value.nbytes for v in unread if v.const_value is not None)
    yield make_finding(
        "unused-weights",
        "warning",
        "{n} initializers never read",
        (value.name for value in unread),
        f"{size:,} bytes of the file",
        "apply simplify",
    )
    yield make_finding(
        "dead-nodes",
        "warning",
        "{n} nodes without a way to an output",
        (node.name for node in _list_dead_nodes(model, needed)),
        "runtimes leave most of them out, others run them",
        "apply simplify",
    )
    yield make_finding(
        "overridable-weights",
        "warning",
        "{n} weights declared as inputs too, for callers to replace",
        (value.name for value in graph.inputs if value.is_initializer()),
        "runtimes may not fold or fuse them",
        "export with keep_initializers_as_inputs=False",
    )


def _list_dead_nodes(model: ir.Model, needed: dict[ir.Value, None]) -> Iterator[ir.Node]:
    """Yield nodes that nothing needs, in bodies by what the body itself gives."""
    for graph in edit.walk_graphs(model):
        inside = graph.graph if isinstance(graph, ir.Function) else graph
        seen = needed if graph is model.graph else find_upstream(graph.outputs, (), within=inside)
        for node in graph:
            if not any(value in seen for value in node.outputs):
                yield node


def _check_outputs(model: ir.Model) -> Iterator[Finding | None]:
    varying = set(model.graph.inputs)
    for node in model.graph:  # in the order of execution, as every model is loaded
        if node.op_type in match.RANDOM or not varying.isdisjoint(list_read_values(node)):
            varying.update(node.outputs)
    passed = [value.name for value in model.graph.outputs if value.is_graph_input()]
    fixed = [value.name for value in model.graph.outputs if value not in varying]
    yield make_finding(
        "constant-output",
        "warning",
        "{n} outputs independent of every input",
        fixed,
        "the same answer every time; was the model traced with its input fixed?",
        "export it again, or leave them out: `ortune extract M --to OUTPUT -o OUT`",
    )
    yield make_finding(
        "input-as-output",
        "note",
        "{n} outputs handed through from an input",
        passed,
        "a copy in every run; some tools fail on them",
        "`ortune extract M --to OUTPUT -o OUT` with the other outputs",
    )


def _check_operators(model: ir.Model) -> Iterator[Finding | None]:
    nodes = list(edit.walk_nodes(model))
    opset = model.opset_imports.get("", _PER_CHANNEL)
    local = {(function.domain, function.name) for function in model.functions.values()}
    foreign = [n for n in nodes if n.domain not in _KNOWN and (n.domain, n.op_type) not in local]
    added = [n for n in nodes if is_runtime_operator(n.op_type, n.domain, opset)]
    idle = [n for n in nodes if not n.domain and n.op_type in ("Identity", "Dropout")]
    yield make_finding(
        "deprecated-operator",
        "warning",
        "{n} nodes of operators that newer opsets drop",
        (f"{node.op_type} {node.name}" for node in nodes if _is_deprecated(node)),
        "newer tools and providers do not know them",
        "apply raise-opset",
    )
    yield make_finding(
        "custom-operator",
        "warning",
        "{n} nodes of operators from no domain known here",
        (f"{match.qualify_operator(node)} {node.name}" for node in foreign),
        "no runtime loads the model without their library",
        "give it with --custom-ops",
    )
    yield make_finding(
        "runtime-operator",
        "note",
        "{n} nodes of operators that onnxruntime has added to ONNX's own",
        (f"{node.op_type} {node.name}" for node in added),
        "other runtimes do not know them",
        "keep the file from before onnxruntime's optimizer for those",
    )
    yield make_finding(
        "random-operator",
        "note",
        "{n} nodes drawing random numbers",
        (f"{node.op_type} {node.name}" for node in nodes if node.op_type in match.RANDOM),
        "no two runs agree, so that changes cannot be verified",
        "export with the noise as an input",
    )
    yield make_finding(
        "no-op-nodes",
        "note",
        "{n} nodes without effect: Identity, Dropout in inference",
        (f"{node.op_type} {node.name}" for node in idle if not _is_training(node)),
        "runtimes remove most; what remains hides patterns from fusions",
        "apply simplify",
    )


def _is_deprecated(node: ir.Node) -> bool:
    """Say so of the default domain's alone: nothing raises the version of another.

    Trees of ai.onnx.ml before version 5 are read by every runtime, and by some no newer ones.
    """
    if node.domain or not onnx.defs.has(node.op_type):
        return False
    return bool(onnx.defs.get_schema(node.op_type).deprecated)


def _is_training(node: ir.Node) -> bool:
    if node.op_type == "BatchNormalization":
        extra = [value for value in node.outputs[1:] if value.name]
        return bool(edit.read_attribute(node, "training_mode", 0)) or bool(extra)
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        mode = edit.const_array(node.inputs[2])
        return mode is None or bool(mode.any())
    old = node.op_type in ("BatchNormalization", "Dropout") and "is_test" in node.attributes
    return old and not edit.read_attribute(node, "is_test", 1)


_LOWER = f'`ortune apply M "lower-opset(to={NEWEST_OPSET})" -o OUT` writes one that it reads'


def _check_versions(model: ir.Model) -> Iterator[Finding | None]:
    opset = model.opset_imports.get("", _PER_CHANNEL)
    nodes = chain(model.graph.all_nodes(), *(f.all_nodes() for f in model.functions.values()))
    if opset < _PER_CHANNEL and any(not node.domain for node in nodes):
        old = opset < _FUSED
        yield make_finding(
            "old-opset",
            "warning" if old else "note",
            f"opset {opset}",
            [f"opset {opset}"],
            f"no per-channel Q/DQ before {_PER_CHANNEL}"
            + (f"; runtimes fuse little before {_FUSED}" if old else ""),
            "apply raise-opset",
        )
    if opset > (newest := onnx.defs.onnx_opset_version()):
        yield make_finding(
            "unknown-opset",
            "error",
            "an opset that is not known here",
            [f"opset {opset}"],
            f"operators are those of up to opset {newest}; runtimes refuse the file",
            "export with an older opset",
        )
    elif opset > NEWEST_OPSET:
        yield make_finding(
            "new-opset",
            "error",
            "a newer opset than onnxruntime reads",
            [f"opset {opset}"],
            f"onnxruntime reads up to {NEWEST_OPSET}, and refuses the file",
            _LOWER,
        )
    if model.ir_version > NEWEST_IR:
        yield make_finding(
            "new-ir",
            "warning",
            "a newer format than onnxruntime reads",
            [f"IR version {model.ir_version}"],
            f"onnxruntime reads up to {NEWEST_IR}",
            _LOWER
            if opset > NEWEST_OPSET
            else "`ortune apply M simplify -o OUT` writes one that it reads",
        )
    loops = [node for node in edit.walk_nodes(model) if any(True for _ in edit.list_bodies(node))]
    yield make_finding(
        "control-flow",
        "note",
        "{n} nodes with bodies of their own",
        (f"{node.op_type} {node.name}" for node in loops),
        "bodies are not fused across; few providers but the CPU's take them",
        "export without them where the branch or the number of turns is fixed",
    )


_PLAIN = re.compile(r"[!-~]+")
_QUOTES = frozenset("\"'`,;\\")


def _names_findings(proto: onnx.ModelProto) -> Iterator[Finding | None]:
    nodes = [node for graph in walk_graph_protos(proto.graph) for node in graph.node]
    named = Counter(node.name for node in nodes if node.name)
    yield make_finding(
        "unnamed-nodes",
        "note",
        "{n} nodes without a name",
        (f"{node.op_type} -> {next(iter(node.output), '')}" for node in nodes if not node.name),
        "profiles and options cannot point at them; tools name them each in its own way",
        "`ortune apply` writes a name for every node, the same each time",
    )
    yield make_finding(
        "duplicate-names",
        "warning",
        "{n} names shared by several nodes",
        (f"{name} x{count}" for name, count in named.items() if count > 1),
        "leaving nodes out by name takes none of them, or all",
        "`ortune apply` numbers them",
    )
    graph = proto.graph
    values = [value.name for value in (*graph.input, *graph.output)]
    odd = [n for n in (*values, *named) if n and (not _PLAIN.fullmatch(n) or _QUOTES & set(n))]
    yield make_finding(
        "odd-names",
        "note",
        "{n} names with blanks, quotes, commas or letters beyond ASCII",
        (repr(name) for name in odd),
        "shells, servers and lists of names trip over them",
        "export with plain names",
    )


_LARGE = 1 << 20
"""Bytes from which integers of 64 bits are worth a word."""


def _types_findings(model: ir.Model, shaped: ir.Model) -> Iterator[Finding | None]:
    weights = list(edit.list_named_weights(model))
    nodes = list(edit.walk_nodes(shaped))
    # Thresholds of ai.onnx.ml are the model's: in float32 a sample may fall elsewhere.
    able = [n for n in nodes if n.op_type not in ("Cast", "Constant") and n.domain != "ai.onnx.ml"]
    makers = [n for n in able if any(v.dtype == ir.DataType.DOUBLE for v in n.outputs if v.type)]
    double = [name for name, tensor in weights if tensor.dtype == ir.DataType.DOUBLE]
    yield make_finding(
        "double",
        "warning",
        f"float64 in {format_count(len(makers), 'node')} and "
        f"{format_count(len(double), 'weight')}",
        [*(f"{node.op_type} {node.name}" for node in makers), *double],
        "half the speed and twice the memory of float32, where there is a kernel at all",
        "export in float32",
    )
    wide = [(n, t) for n, t in weights if t.dtype == ir.DataType.INT64 and t.nbytes >= _LARGE]
    yield make_finding(
        "int64-weights",
        "note",
        "{n} weights of int64 above 1 MB",
        (name for name, _ in wide),
        f"{sum(tensor.nbytes for _, tensor in wide):,} bytes; most values fit int32",
        "export with int32 where the operator takes it",
    )
    half = [t.nbytes for _, t in weights if t.dtype == ir.DataType.FLOAT16]
    if half and 2 * sum(half) > sum(t.nbytes for _, t in weights):
        yield make_finding(
            "half-on-cpu",
            "note",
            "weights are float16",
            ["weights"],
            "onnxruntime's CPU provider computes float32 between casts of its own",
            'compare: `ortune bench M --on "cpu,openvino"`',
        )
    values = dict.fromkeys(v for node in nodes for v in (*node.inputs, *node.outputs) if v)
    odd = (ir.SequenceType, ir.OptionalType)
    yield make_finding(
        "sequences",
        "note",
        "{n} values of sequence or optional type",
        (value.name for value in values if isinstance(value.type, odd)),
        "few providers take them; they are left in float",
        "export with plain tensors",
    )
    tensors = [v for v in shaped.graph.inputs if isinstance(v.type, ir.TensorType)]
    yield make_finding(
        "unknown-rank",
        "warning",
        "{n} inputs without a declared rank",
        (value.name for value in tensors if value.shape is None),
        "no shape behind them is known before a run",
        "export with declared dimensions, dynamic ones by name",
    )


_SHARE = 0.05
"""Share of a tensor's weights from which what float16 rounds coarsely is worth a word."""

_MANY = 0.01
"""Share of all weights from which that is so."""
_WASTE = 1 << 16
"""Bytes of copies from which they are worth a word."""


def _weights_findings(model: ir.Model, values: Sequence[WeightValues]) -> Iterator[Finding | None]:
    """Yield what is odd about the values of weights, which were counted before."""
    small = [w for w in values if w.elements > 1 and w.small > _SHARE * w.elements]
    elements = sum(weight.elements for weight in values)
    yield make_finding(
        "nan-weights",
        "error",
        "{n} weights with NaN",
        [weight.name for weight in values if weight.nan],
        "every answer that they touch is NaN",
        "train or export again",
    )
    yield make_finding(
        "infinite-weights",
        "warning",
        "{n} weights with infinity beside finite numbers",
        [v.name for v in values if v.infinite and v.elements > v.nan + v.infinite],
        "infinity minus infinity is NaN; ranges for integers cannot hold it",
        "export masks with a finite number such as -1e4",
    )
    yield make_finding(
        "denormal-weights",
        "warning",
        f"{{n}} weights with denormals, {denormal_share(values):.2%} of all values",
        [weight.name for weight in values if weight.denormal],
        "many CPUs compute up to a hundred times slower with them",
        'run with --on "cpu(flush_denormals=true)"; `ortune tune` measures it',
    )
    yield make_finding(
        "fp16-overflow",
        "warning",
        f"{{n}} weights beyond {HALF_MAX:.0f}, the largest of float16",
        [weight.name for weight in values if weight.over],
        "in float16 they become infinity",
        "the step fp16 keeps what reads them in float32",
    )
    yield make_finding(
        "fp16-masks",
        "note",
        "{n} constants beyond float16, standing for infinity",
        [weight.name for weight in values if weight.masks],
        "in float16 they become infinity, and NaN where two of them meet",
        "the step fp16 clips them",
    )
    yield make_finding(
        "fp16-small",
        "note",
        f"{{n}} weights with over {_SHARE:.0%} of their values below 6.1e-5",
        [v.name for v in small] if sum(v.small for v in values) > _MANY * elements else (),
        "float16 rounds them coarsely, and to 0 below 3e-8",
        "the step fp16 with --data measures what that does",
    )
    twin = model.clone()
    prune.share_weights(twin)
    kept = twin.graph.initializers
    gone = {n: v for n, v in model.graph.initializers.items() if n not in kept}
    size = sum(v.const_value.nbytes for v in gone.values() if v.const_value is not None)
    yield make_finding(
        "equal-weights",
        "warning",
        "{n} weights equal to another",
        gone if size >= _WASTE else (),
        f"{size:,} bytes of the file and of memory",
        "apply simplify",
    )
