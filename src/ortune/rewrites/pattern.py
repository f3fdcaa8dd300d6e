"""Pattern rewriting: the one place that talks to onnxscript's rewriter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ortune.model.graph.values import overridable
from ortune.model.io import names


def rewrite(
    model: ir.Model,
    find: Callable[..., Any] | Sequence[Callable[..., Any]],
    put: Callable[..., Any],
    when: Callable[..., bool] | None = None,
) -> int:
    """Replace every match of a pattern and return how many there were.

    Operands of commutative operators match in either order, in all graphs. A match is left alone
    when it reads the default of an input as a constant, spans two graphs, or a value inside it is
    used elsewhere.

    Args:
        find: ``find(op, x, ...)`` builds the pattern, or several that bind the same variables.
        put: ``put(op, x, ...)`` builds the replacement.
        when: ``when(context, x, ...)`` says whether a match may be replaced; every variable of the
            pattern is given by name.
    """
    from onnxscript.rewriter import pattern

    def may(context: Any, **bound: Any) -> bool:
        nodes = list(context.nodes)
        values = [value for node in nodes for value in node.inputs]
        if len({id(node.graph) for node in nodes}) > 1 or any(map(overridable, values)):
            return False
        return when is None or when(context, **bound)

    finds = [find] if callable(find) else list(find)
    rules = [pattern.RewriteRule(one, put, may) for one in finds]
    count = int(pattern.RewriteRuleSet(rules, commute=True).apply_to_model(model))
    if count:
        names.unique(model)
    return count
