"""Cut a part of a model out between named tensors."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import common

from ortune.core.errors import BadModel, find_nearest
from ortune.core.wording import join_names
from ortune.graph.ir.edit import const_tensor, is_read, list_bodies
from ortune.graph.shapes.infer import Runtime, infer_shapes

NODE = "node:"
"""In front of a name: the node, where a tensor has the same name."""

_LISTED = 5
_Values: TypeAlias = Mapping[str, Sequence[ir.Value]]


def extract(
    model: ir.Model,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    *,
    runtime: Runtime | None = None,
) -> ir.Model:
    """Return the part of a model that makes `outputs` from `inputs`; `model` is left as it is.

    The part has the initializers, functions, opsets and metadata that it needs, and shares its
    weights with `model`. Paths that go round `inputs` are kept up to the model's own inputs, which
    then follow `inputs`. Bodies of If, Loop and Scan stay whole with their node and with what they
    capture. Where `outputs` are inside a body, the nodes before them are taken out of it: what
    the body itself is given (the state of a Loop) becomes an input.

    Args:
        model: Names of values and nodes are unique, as `ortune.graph.io.file.load` makes them.
        inputs: Tensors, or nodes, which stand for what they read; none: the model's own inputs.
        outputs: Tensors, or nodes, which stand for what they make; none: those outputs of the
            model that depend on `inputs`.
        runtime: See `ortune.graph.shapes.infer.infer_shapes`; asked where types are missing.

    Raises:
        BadModel: There is no such tensor, it is constant, or of unknown type; the outputs do not
            depend on one of `inputs`.
    """
    copy = model.clone()
    infer_shapes(copy, runtime=runtime)
    names = _Names(copy)
    starts = {name: names.find_starts(name) for name in dict.fromkeys(inputs)}
    stops = dict.fromkeys(value for values in starts.values() for value in values)
    ends = list(dict.fromkeys(end for name in outputs for end in names.find_ends(name)))
    ends = ends or _list_dependent_outputs(copy, stops)
    met = find_upstream(ends, stops)
    for name, values in starts.items():
        if any(value in ends for value in values):
            raise BadModel(
                f"the piece begins and ends at '{name}'",
                fix=f"write {NODE}NAME to begin with all that a node reads",
            )
        if not any(value in met for value in values):
            other = [str(value.name) for value in met if _is_model_input(value)]
            other += [n for n, tensors in starts.items() if any(v in met for v in tensors)]
            raise BadModel(
                f"what the piece ends at does not depend on '{name}'",
                fix="leave it out; it depends on "
                f"{join_names(other, _LISTED) or 'constants alone'}",
            )
    order = {node: place for place, node in enumerate(copy.graph.all_nodes())}
    nodes = {v.producer() for v in met if v not in stops}
    candidates = dict.fromkeys((*copy.graph.inputs, *met))
    graph = copy.graph
    around = [v for v in candidates if v in met and _is_model_input(v) and v not in stops]
    view = ir.GraphView(
        _check_types([*stops, *around]),
        ends,
        nodes=sorted((node for node in nodes if node is not None), key=order.__getitem__),
        initializers=[v for v in met if v.is_initializer()],
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    piece = ir.Model(
        view.clone(),
        ir_version=copy.ir_version,
        producer_name=copy.producer_name,
        producer_version=copy.producer_version,
        domain=copy.domain,
        model_version=copy.model_version,
        doc_string=copy.doc_string,
        functions=list(copy.functions.values()),
        metadata_props=dict(copy.metadata_props),
    )
    common.RemoveUnusedFunctionsPass()(piece)  # type: ignore[no-untyped-call]
    common.RemoveUnusedOpsetsPass()(piece)
    piece.graph.meta.update(model.graph.meta)
    return piece


def list_start_names(model: ir.Model, inputs: Sequence[str]) -> set[str]:
    """Return the names of the tensors that `inputs` of `extract` stand for."""
    names = _Names(model)
    return {str(value.name) for name in inputs for value in names.find_starts(name)}


def list_read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, and those that the bodies in it capture."""
    yield from (value for value in node.inputs if value is not None)
    for body in list_bodies(node):
        inner = {body, *body.subgraphs()}
        for graph in inner:
            values = [*(v for n in graph for v in n.inputs), *graph.outputs]
            yield from (v for v in values if v is not None and v.graph not in inner)


class _Names:
    """The values that a user's words stand for."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._values: dict[str, ir.Value] = {}
        self._nodes: dict[str, ir.Node] = {}
        for graph in (model.graph, *model.graph.subgraphs()):
            outputs = (value for node in graph for value in node.outputs)
            values = (*outputs, *graph.inputs, *graph.initializers.values())
            self._values |= {value.name: value for value in values if value.name}
            self._nodes |= {node.name: node for node in graph if node.name}

    def find_starts(self, name: str) -> list[ir.Value]:
        """Return the tensor, or all that the node reads and that is not constant."""
        match = self._find_item(name)
        if isinstance(match, ir.Value):
            if const_tensor(match) is not None and not match.is_graph_input():
                raise BadModel(f"'{name}' is a constant", fix="cut at a tensor that is computed")
            return [match]
        values = [v for v in dict.fromkeys(list_read_values(match)) if const_tensor(v) is None]
        if not values:
            raise BadModel(
                f"the node '{name}' reads constants alone", fix="cut at a tensor that is computed"
            )
        return values

    def find_ends(self, name: str) -> list[ir.Value]:
        """Return the tensor, or all that the node makes and something reads."""
        match = self._find_item(name)
        if isinstance(match, ir.Node):
            outputs = [value for value in match.outputs if value.name]
            return [v for v in outputs if is_read(v)] or outputs
        if match.producer() is None:
            kind = "an input" if match.is_graph_input() else "a constant"
            raise BadModel(
                f"'{name}' is {kind}: nothing computes it", fix="end at a tensor that a node makes"
            )
        return [match]

    def _find_item(self, name: str) -> ir.Value | ir.Node:
        if (value := self._values.get(name)) is not None:
            return value
        if (node := self._nodes.get(name.removeprefix(NODE))) is not None:
            return node
        near = find_nearest(name, [*self._values, *self._nodes], _LISTED)
        suggestions = near or [str(v.name) for v in (*self._graph.inputs, *self._graph.outputs)]
        raise BadModel(
            f"the model has no tensor or node '{name}'",
            fix=f"use one of its names, such as {join_names(suggestions, _LISTED)}; "
            "`ortune inspect MODEL --list nodes` lists all",
        )


def find_upstream(
    ends: Iterable[ir.Value], stops: Collection[ir.Value], *, within: ir.Graph | None = None
) -> dict[ir.Value, None]:
    """Return all values that `find_ends` depend on, `find_ends` among them; `stops` end the way.

    In order of distance, the nearest first.

    Args:
        within: Nodes of other graphs end the way too.
    """
    seen = dict.fromkeys(ends)
    pending = list(seen)
    for value in pending:
        node = value.producer()
        if value in stops or node is None or within not in (None, node.graph):
            continue
        for earlier in list_read_values(node):
            if earlier not in seen:
                seen[earlier] = None
                pending.append(earlier)
    return seen


def _is_model_input(value: ir.Value) -> bool:
    return value.producer() is None and (value.is_graph_input() or not value.is_initializer())


def _list_dependent_outputs(model: ir.Model, starts: Collection[ir.Value]) -> list[ir.Value]:
    """Return the model's outputs that depend on any of `find_starts`; all of them without any."""
    outputs = [value for value in model.graph.outputs if value not in starts]
    reached = [v for v in outputs if not starts or set(starts) & find_upstream([v], ()).keys()]
    if not reached and not starts:
        raise BadModel("the model has no outputs", fix="name the tensors to end at")
    if not reached:
        raise BadModel(
            "no output of the model depends on "
            f"{join_names([str(v.name) for v in starts], _LISTED)}",
            fix="begin at another tensor, or name the tensors to end at",
        )
    return reached


def _check_types(values: Sequence[ir.Value]) -> Sequence[ir.Value]:
    for value in values:
        if value.type is None:
            raise BadModel(
                f"the type of '{value.name}' is not known",
                fix="cut at another tensor, or give --data: types are then read off a run",
            )
    return values


def find_crossings(piece: ir.Model, named: Collection[str]) -> list[str]:
    """Return the tensors that would have to be inputs too, so that no way goes round `named`.

    Nodes that depend on an input of `named` read them; they depend on the other inputs alone.
    """
    inside = {value for value in piece.graph.inputs if value.name in named}
    inputs = [value for value in piece.graph.inputs if not value.is_initializer()]
    outside = {value for value in inputs if value not in inside}
    crossings: dict[str, None] = {}
    for node in piece.graph:
        read = list(list_read_values(node))
        if not inside.isdisjoint(read):
            inside.update(node.outputs)
            crossings |= dict.fromkeys(str(value.name) for value in read if value in outside)
        elif not outside.isdisjoint(read):
            outside.update(node.outputs)
    ends = (str(value.name) for value in piece.graph.outputs if value in outside)
    return [name for name in crossings if name not in set(ends)]
