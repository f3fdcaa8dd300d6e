"""Fold constants, drop what does nothing, store equal weights once."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import onnx_ir as ir
from onnx_ir.passes import common

from ortune.core.plugins.bounds import Bounds
from ortune.core.step import Stage, Transform
from ortune.graph.analysis.facts import bound_weight_bytes, count_weight_bytes
from ortune.graph.io import names
from ortune.graph.ir import edit, prune
from ortune.graph.shapes.infer import infer_graph
from ortune.graph.shapes.known_values import SymbolicValues
from ortune.transforms.common.simplify import clamps, constants, identities, masks, reshapes


@dataclass(frozen=True)
class Simplify(Transform):
    """Leave out all that is the same in every run or does nothing: smaller graph, same function.

    Local functions are inlined unless they are to be kept; weights that an exporter listed as
    inputs become constants; then, until nothing changes: shapes are inferred, what is the same in
    every run is computed, an If with a known condition gives way to its branch, nodes that
    forward their input are taken out, those that reshape, cast or limit in a row are joined, equal
    nodes and zero states go, masks that are gathered number by number become the input itself,
    and what nothing reads is dropped. At last equal weights are stored once. Names of inputs,
    outputs and all nodes that stay are kept. Each rule says what it leaves alone where it lives,
    in `rewrites.simplify`; docs/rewriting.md has the list.

    Exact up to the order of float operations on constants, and to the sign of zero (x + 0).

    Attributes:
        rounds: How often the rules may run at most; they stop at a fixed point.
        functions: Whether local functions are put in place of their calls, or stay as they are
            with their bodies left alone.
    """

    stage: ClassVar[Stage] = Stage.FOLD

    rounds: Annotated[int, Bounds(high=1000)] = 8
    functions: Literal["inline", "keep"] = "inline"

    def apply(self, model: ir.Model) -> int:
        inlined = edit.inline_functions(model) if self.functions == "inline" else 0
        count = inlined + _weights_as_inputs(model)
        names.make_names_unique(model)
        most_bytes = bound_weight_bytes(count_weight_bytes(model))
        for _ in range(self.rounds):
            inferred = SymbolicValues()
            infer_graph(model.graph, model.opset_imports, inferred)
            edits = constants.fold_constants(model, inferred, most_bytes)
            edits += constants.take_branches(model, inferred)
            edits += constants.settle_targets(model, inferred)
            edits += masks.settle_lengths(model, inferred)
            edits += _drop_identities(model, inferred) + masks.settle_masks(model, inferred)
            edits += reshapes.merge_pairs(model, inferred) + identities.merge_casts(model)
            edits += clamps.merge_limits(model) + identities.drop_zero_states(model)
            edits += identities.share_nodes(model) + prune.drop_dead(model)
            count += edits
            if not edits:
                break
        return count + prune.share_weights(model)


def _drop_identities(model: ir.Model, inferred: SymbolicValues) -> int:
    opset = model.opset_imports.get("", 0)
    count = 0
    for graph in list(edit.walk_graphs(model)):
        obsolete = []
        for node in list(graph):
            source = identities.find_equal_input(node, inferred, opset)
            if source is not None and edit.redirect_uses(node.outputs[0], source):
                obsolete.append(edit.detach_node(node))
        graph.remove(obsolete, safe=True)
        count += len(obsolete)
    return count


def _weights_as_inputs(model: ir.Model) -> int:
    """Take initializers out of the inputs where an exporter listed them all.

    A caller could override them, but weights are not passed; the runtime may not fold what can be
    overridden. A few among many are meant as defaults of inputs and stay.
    """
    graph = model.graph
    listed = [value for value in graph.inputs if value.is_initializer()]
    if len(listed) * 2 < len(graph.initializers):
        return 0
    common.RemoveInitializersFromInputsPass()(model)
    return len(listed)
