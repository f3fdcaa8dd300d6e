"""Embeddings looked up, added and normalized become one operator of onnxruntime's own."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit, match, prune
from ortune.transforms.common.formulas import formula


@dataclass(frozen=True)
class FuseEmbedLayerNorm(Transform):
    """Join looked-up embeddings and their norm: com.microsoft EmbedLayerNormalization.

    ::

        LayerNormalization(words[ids] + segments[types] + positions[places])

    in any order, the segments optional; indices are cast to int32. `places` may be one row for
    all: a row of unknown length is taken to be as long as the ids. Exact up to the order of the
    additions.

    Not for onnxruntime's CPU provider, where it gains nothing (see docs/rewriting.md); meant for
    providers that launch a kernel an operator. Not measured there; results were compared on the
    CPU provider.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    def applies(self, facts: Facts) -> bool:
        gathers = facts.ops.get("Gather", 0) > 1
        return gathers and facts.has("LayerNormalization") and facts.has("Add")

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Those with onnxruntime's own operators, but for the CPU provider."""
        return formula.beyond_cpu(backend)

    def apply(self, model: ir.Model) -> int:
        return formula.at_each_foreign(model, _fuse_embeddings, "LayerNormalization")


@dataclass(frozen=True)
class _Table:
    rows: ir.Value
    ids: ir.Value


def _fuse_embeddings(model: ir.Model, norm: ir.Node, editor: edit.Editor) -> int | str:
    nodes: list[ir.Node] = [norm]
    tables = _collect_tables(norm.inputs[0], nodes)
    if tables is None or len(tables) not in (2, 3) or norm.graph is None:
        return 0
    rank = 3
    if edit.read_attribute(norm, "axis", -1) not in (-1, rank - 1) or len(norm.inputs) < rank:
        return "the norm has no shift, or goes over more axes than the last"
    # Say which table is which: addition does not care, but one row of indices are places.
    shapes = [edit.shape_of(table.ids) for table in tables]
    if any(shape is None or len(shape) != 2 for shape in shapes):
        return "the indices are not known to fit each other"
    sizes = [const.size if (const := edit.const_tensor(t.rows)) is not None else 0 for t in tables]
    order = sorted(range(len(tables)), key=lambda i: -sizes[i])
    rows = [i for i in order if (shapes[i] or ())[0] == 1 and (shapes[i] or ())[1] != 1]
    place = rows[-1] if rows else order[1]
    remaining_indices = [i for i in order if i != place]
    full = shapes[remaining_indices[0]] or ()
    if None in full or any(shapes[i] != full for i in remaining_indices):
        return "the indices are not known to fit each other"
    length = (shapes[place] or ())[1]
    if (not rows and shapes[place] != full) or (isinstance(length, int) and length != full[1]):
        return "the indices are not known to fit each other"
    last = tables[remaining_indices[1]] if len(remaining_indices) > 1 else None
    words, positions, segments = tables[remaining_indices[0]], tables[place], last
    ids = [_cast_indices(norm, table, editor) for table in (words, segments, positions)]
    segment_rows = segments.rows if segments is not None else None
    inputs = (*ids[:2], words.rows, positions.rows, segment_rows, *norm.inputs[1:3], None, ids[2])
    site = formula.Site(inputs, frozenset(nodes), norm)
    settings = {"epsilon": edit.read_attribute(norm, "epsilon", 1e-5)}
    op, domain = "EmbedLayerNormalization", "com.microsoft"
    done = formula.replace_formula(model, editor, site, op, settings, domain=domain, outputs=2)
    if not done:
        prune.drop_dead(model)
    return done


def _collect_tables(value: ir.Value | None, nodes: list[ir.Node]) -> list[_Table] | None:
    """Return the look-ups that a value is the sum of; None if it is made of something else."""
    node = match.find_producer(value, "Add", "Gather")
    if node is None:
        return None
    nodes.append(node)
    if node.op_type == "Add":
        parts = [_collect_tables(operand, nodes) for operand in node.inputs]
        if any(part is None for part in parts):
            return None
        return [table for part in parts for table in part or ()]
    rows, ids = node.inputs
    tensor = None if edit.is_overridable(rows) else edit.const_tensor(rows)
    if tensor is None or len(tensor.shape) != 2 or tensor.dtype != ir.DataType.FLOAT:
        return None
    if rows is None or ids is None or edit.read_attribute(node, "axis", 0) != 0:
        return None
    return [_Table(rows, ids)]


def _cast_indices(at: ir.Node, table: _Table | None, editor: edit.Editor) -> ir.Value | None:
    if table is None or table.ids.dtype == ir.DataType.INT32 or at.graph is None:
        return None if table is None else table.ids
    to = {"to": ir.DataType.INT32.value}
    return editor.add_node(at, "Cast", [table.ids], to, like=table.ids, dtype=ir.DataType.INT32)
