"""Which nodes the user means: names, shell-style patterns and regular expressions."""

import fnmatch
import re
from collections.abc import Callable, Sequence

import onnx_ir as ir

from ortune.core.errors import BadSettings, find_nearest
from ortune.graph.ir import edit

_NAMES = "ortune.node-names"
_NEAR = 3


def remember_names(model: ir.Model) -> None:
    """Keep the names of all nodes: those that a step folds away may still be named.

    They are kept in memory only, never in the file.
    """
    node_names = model.meta.setdefault(_NAMES, set())
    node_names.update(node.name for node in edit.walk_nodes(model) if node.name)


def match_nodes(model: ir.Model, patterns: Sequence[str], option: str) -> frozenset[ir.Node]:
    """Return the nodes that any of the patterns names.

    Args:
        model: With the names that `remember_names` kept, if any.
        patterns: ``*``, ``?`` and ``[...]`` match as in a shell; ``re:`` begins a regular
            expression, which must match the whole name.
        option: What the patterns were given as.

    Raises:
        BadSettings: A pattern matches no node of the model, or is not a regular expression.
    """
    if not patterns:
        return frozenset()
    nodes = [(node, node.name or "") for node in edit.walk_nodes(model)]
    gone: set[str] = model.meta.get(_NAMES, set())
    selection: set[ir.Node] = set()
    for pattern in patterns:
        try:
            is_regex = pattern.startswith("re:")
            matches = re.compile(pattern[3:] if is_regex else fnmatch.translate(pattern))
        except re.error as error:
            raise BadSettings(
                f"{option}: '{pattern}' is not a regular expression: {error}",
                fix="write re: and a Python regular expression, or a name with * and ?",
            ) from None
        hits = {node for node, name in nodes if matches.fullmatch(name)}
        if not hits and not any(map(matches.fullmatch, gone)):
            names = [name for _, name in nodes]
            bare = pattern.removeprefix("re:").strip("*?.")
            shown = ", ".join(find_nearest(bare, names, _NEAR) or sorted(names)[:_NEAR])
            raise BadSettings(
                f"{option} pattern '{pattern}' matches no node",
                fix="use node names, with * and ?, or re: and a regular expression; such as "
                f"{shown}",
            )
        selection |= hits
    return frozenset(selection)


def select_nodes(
    model: ir.Model, include: Sequence[str], exclude: Sequence[str]
) -> frozenset[ir.Node]:
    """Return the nodes that `include` names, all when empty, but those that `exclude` names.

    Raises:
        BadSettings: As `match_nodes`.
    """
    excluded = match_nodes(model, exclude, "exclude")
    included = frozenset(edit.walk_nodes(model))
    if include:
        included = match_nodes(model, include, "include")
    return included - excluded


def escape_pattern(name: str) -> str:
    """Return the pattern that matches one name and nothing else."""
    escaped = re.sub(r"([*?[])", r"[\1]", name)
    return f"[r]{escaped[1:]}" if escaped.startswith("re:") else escaped


def make_name_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return what says whether any of these patterns is a node's name.

    Regular expressions are left out: the patterns may be a stranger's.
    """
    plain = [pattern for pattern in patterns if not pattern.startswith("re:")]
    spelled = {re.sub(r"\[([*?[r])\]", r"\1", pattern) for pattern in plain}
    literal = {name for name in spelled if escape_pattern(name) in plain}
    wild = [pattern for pattern in plain if re.sub(r"\[([*?[r])\]", r"\1", pattern) not in literal]
    regexes = [re.compile(fnmatch.translate(pattern)) for pattern in wild]
    return lambda name: name in literal or any(regex.fullmatch(name) for regex in regexes)
