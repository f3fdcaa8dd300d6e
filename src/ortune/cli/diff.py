"""Say which nodes and weights of one model became which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortune.analysis.inspection.requests import DiffRequest
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, say, size, table
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.graph.diff.result import Diff, Drawn, Group, Weight

_SHOWN = 20
_ASIDE = ("a constant", "arithmetic of shapes", "nothing depends on it")
_WORDS = {
    "matched": "matched",
    "retyped": "retyped",
    "changed": "changed",
    "fused": "fused",
    "split": "split",
    "replaced": "replaced",
    "added": "only in B",
    "removed": "only in A",
}


@verb(DiffRequest)
def command(asked: DiffRequest) -> int:
    """Show the differences; exit code 1 when there are some."""
    from ortune.analysis.inspection.inspect import run_diff as run
    from ortune.graph.io import file

    found = run(asked)
    digests = file.digest(asked.a), file.digest(asked.b)
    answer(_json(found, asked, digests), lambda: _show(found, digests[0] == digests[1]))
    return DONE if found.same else NO


def _json(found: Diff, asked: DiffRequest, digests: tuple[str, str]) -> dict[str, object]:
    return {
        "a": {"model": asked.a, "digest": digests[0], "nodes": found.nodes[0]},
        "b": {"model": asked.b, "digest": digests[1], "nodes": found.nodes[1]},
        "same": found.same,
        "identical": digests[0] == digests[1],
        "related": found.related,
        "names_trusted": found.names_trusted,
        "counts": {
            kind: dict(zip(("groups", "a", "b"), counts, strict=True))
            for kind, counts in found.counts().items()
        },
        "groups": found.groups,
        "ops": {op: {"a": n, "b": m, "difference": m - n} for op, (n, m) in found.ops.items()},
        "weight_bytes": {kind: {"a": n, "b": m} for kind, (n, m) in found.weight_bytes.items()},
        "weights": {"equal": found.equal_weights, "others": found.weights},
        "fields": found.fields,
    }


def _show(found: Diff, identical: bool) -> None:
    say(_headline(found, identical))
    if not found.same:
        _show_nodes(found)
        _show_weights(found)
    if found.fields:
        rows = [
            (f.what, "-" if f.a is None else f.a, "-" if f.b is None else f.b)
            for f in found.fields
        ]
        table(("besides", "A", "B"), rows)
    if verbose():
        _show_every(found)


def _headline(found: Diff, identical: bool) -> str:
    counts = f"{len(found.nodes[0])} and {wording.count(len(found.nodes[1]), 'node')}"
    if identical:
        return f"identical files: {counts}"
    if found.same:
        return f"the same computation: {counts}; names, order or metadata differ at most"
    if not found.related:
        return f"little in common: {counts}; only what is equal beyond doubt is grouped"
    said = [
        f"{n} {_WORDS[kind]}" if kind in ("added", "removed") else f"{groups} {_WORDS[kind]}"
        for kind, (groups, one, two) in found.counts().items()
        for n in [max(one, two)]
    ]
    return f"{counts}: {', '.join(said)}"


def _show_nodes(found: Diff) -> None:
    moved = [(op, n, m, f"{m - n:+d}") for op, (n, m) in found.ops.items() if n != m]
    kept = sum(n == m for n, m in found.ops.values())
    if moved:
        table(("operator", "A>", "B>", "difference>"), moved)
        if kept:
            say(f"operators that are as many in both: {kept}")
    rows = [
        (_WORDS[kind], pattern, count, _why(found, kind, pattern))
        for (kind, pattern), count in found.patterns().items()
        if _why(found, kind, pattern) not in _ASIDE
    ]
    rows += _aside(found)
    shown = rows if verbose() else rows[:_SHOWN]
    if shown:
        table(("kind", "nodes", "times>", "what differs"), shown)
    if len(shown) < len(rows):
        say(f"and {wording.count(len(rows) - len(shown), 'more pattern')}; -v lists them all")


def _aside(found: Diff) -> list[tuple[str, str, int, str]]:
    """Sum up what is on one side only and computes nothing of the data."""
    totals: dict[tuple[str, str], tuple[Counter[str], int]] = {}
    for group in found.groups:
        why = ", ".join(group.changes)
        if why in _ASIDE and group.kind in ("added", "removed"):
            ops, count = totals.get((group.kind, why), (Counter[str](), 0))
            nodes, ids = (found.nodes[0], group.a) if group.a else (found.nodes[1], group.b)
            ops.update(nodes[one].op for one in ids)
            totals[group.kind, why] = ops, count + 1
    return [
        (_WORDS[kind], ", ".join(f"{n} {op}" for op, n in ops.most_common()), count, why)
        for (kind, why), (ops, count) in totals.items()
    ]


def _why(found: Diff, kind: str, pattern: str) -> str:
    every = [
        change
        for group in found.groups
        if group.kind == kind and group.pattern == pattern
        for change in group.changes
    ]
    return ", ".join(dict.fromkeys(every))


def _show_weights(found: Diff) -> None:
    rows = [(kind, size(n), size(m)) for kind, (n, m) in found.weight_bytes.items()]
    if rows:
        table(("weights", "A>", "B>"), rows)
    relations: dict[str, list[Weight]] = {}
    for weight in found.weights:
        relations.setdefault(weight.relation, []).append(weight)
    said = [f"{found.equal_weights} equal"]
    said += [f"{len(own)} {relation}" for relation, own in sorted(relations.items())]
    say(f"weights: {', '.join(said)}")
    moved = sorted(
        (one for one in found.weights if one.relative is not None),
        key=lambda one: ("scaled" in one.relation, -(one.relative or 0)),
    )
    for one in moved if verbose() else moved[:1]:
        what = "" if verbose() else "largest change: "
        say(
            f"{what}{one.a} -> {one.b}: {one.relation}, up to {one.largest:.3g} "
            f"({_percent(one.relative or 0)} of the largest magnitude)"
        )


def _percent(share: float) -> str:
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _show_every(found: Diff) -> None:
    rows = [
        (_WORDS[group.kind], *_sides(found, group), ", ".join(group.changes))
        for group in found.groups
    ]
    table(("kind", "A", "B", "what differs"), rows)


def _sides(found: Diff, group: Group) -> tuple[str, str]:
    return _named(found.nodes[0], group.a), _named(found.nodes[1], group.b)


def _named(nodes: Sequence[Drawn], ids: Sequence[int]) -> str:
    return ", ".join(f"{nodes[one].name} ({nodes[one].op})" for one in ids)
