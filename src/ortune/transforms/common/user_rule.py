"""A rewrite of the user's own in three functions: pattern, check, rewrite."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir

from ortune.core.errors import BadModel, OrtuneError
from ortune.core.plugins import user_file
from ortune.core.step import Stage, Transform
from ortune.graph.io import names
from ortune.graph.ir import edit, prune
from ortune.graph.shapes.infer import infer_shapes


def replace_matches(
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
        if len({id(node.graph) for node in nodes}) > 1 or any(map(edit.is_overridable, values)):
            return False
        return when is None or when(context, **bound)

    finds = [find] if callable(find) else list(find)
    rules = [pattern.RewriteRule(target, put, may) for target in finds]
    count = int(pattern.RewriteRuleSet(rules, commute=True).apply_to_model(model))
    if count:
        names.make_names_unique(model)
    return count


Builds: TypeAlias = Callable[..., Any]
Checks: TypeAlias = Callable[..., bool | str]


def rule(
    pattern: Builds | Sequence[Builds],
    rewrite: Builds,
    check: Checks | None = None,
    *,
    needs_opset: int = 0,
    stage: Stage = Stage.FUSE,
) -> type[Transform]:
    """Return a step that replaces a pattern; a name in a file makes it ``FILE.py:NAME``.

    Matches are found in all graphs, with the operands of commutative operators in either order.

    Args:
        pattern: ``pattern(op, x, ...)`` builds what is looked for out of ``op.Mul(x, y)`` and the
            like; other domains by ``_domain="my.ops"``. Several that bind the same variables may
            be given.
        rewrite: ``rewrite(op, x, ...)`` builds what takes its place. A domain that is new to the
            model is imported, at ``_version=`` or 1.
        check: ``check(x, ...)`` takes those of the pattern's variables (`onnx_ir.Value`) that it
            names, and ``match``, whose ``nodes`` were found. It returns True, or why the match is
            left alone: that text is reported.
        needs_opset: Lowest opset of the default domain that the replacement is of.
        stage: Where an automatic recipe places it.
    """

    def apply(step: Transform, model: ir.Model) -> int:
        """Edit the model in place and return how many matches were replaced.

        Raises:
            BadModel: It is of an older opset than the replacement.
            OrtuneError: One of the functions raises; the text says in which line.
        """
        opset = model.opset_imports.get("", 0)
        if opset < needs_opset:
            raise BadModel(
                f"it writes for opset {needs_opset}, and the model is of {opset}",
                fix=f'put "raise-opset(to={needs_opset})" before it',
            )
        infer_shapes(model)
        try:
            count = replace_matches(model, pattern, rewrite, _refusing(check, model))
        except OrtuneError:
            raise
        except Exception as error:
            path = Path(step.origin.rpartition(":")[0] or inspect.getfile(rewrite))
            raise OrtuneError(
                user_file.locate_error(error, path), fix="correct the rule"
            ) from error
        if count:
            prune.drop_dead(model)
        return count

    parts = {
        "__doc__": inspect.getdoc(rewrite) or f"{rewrite.__name__} in place of its pattern.",
        "__module__": rewrite.__module__,
        "stage": stage,
        "needs_opset": needs_opset,
        "apply": apply,
    }
    step_class: type[Transform] = type(rewrite.__name__, (Transform,), parts)
    return step_class


def _refusing(check: Checks | None, model: ir.Model) -> Callable[..., bool] | None:
    """Return a check that notes why it leaves a match alone; None for none."""
    if check is None:
        return None
    named = inspect.signature(check).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in named.values())

    def may(match: Any, **bound: Any) -> bool:
        arguments = {"match": match, **bound}
        answer = check(
            **(arguments if takes_all else {k: arguments[k] for k in named if k in arguments})
        )
        if answer is True:
            return True
        why = answer if isinstance(answer, str) else f"rejected by {check.__name__}"
        edit.note_refusal(model, match.root, why)
        return False

    return may
