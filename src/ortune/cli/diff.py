"""Show which nodes and weights two models share, and what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortune.analysis.inspection.requests import DiffRequest
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import is_verbose, make_command
from ortune.cli.terminal.output import format_size, print_result, print_table, print_text
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.graph.diff.result import Diff, DrawnNode, Weight

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


@make_command(DiffRequest)
def command(request: DiffRequest) -> int:
    """Show the differences; exit code 1 when there are some."""
    from ortune.analysis.inspection.inspect import run_diff as run
    from ortune.graph.io import file

    diff = run(request)
    digests = file.compute_digest(request.a), file.compute_digest(request.b)
    print_result(
        {
            "a": {"model": request.a, "digest": digests[0], "nodes": diff.nodes[0]},
            "b": {"model": request.b, "digest": digests[1], "nodes": diff.nodes[1]},
            "same": diff.same,
            "identical": digests[0] == digests[1],
            "related": diff.related,
            "names_trusted": diff.names_trusted,
            "counts": {
                kind: dict(zip(("groups", "a", "b"), counts, strict=True))
                for kind, counts in diff.counts().items()
            },
            "groups": diff.groups,
            "ops": {op: {"a": n, "b": m, "difference": m - n} for op, (n, m) in diff.ops.items()},
            "weight_bytes": {kind: {"a": n, "b": m} for kind, (n, m) in diff.weight_bytes.items()},
            "weights": {"equal": diff.equal_weights, "others": diff.weights},
            "fields": diff.fields,
        },
        lambda: _print_diff(diff, digests[0] == digests[1]),
    )
    return DONE if diff.same else NO


def _print_diff(diff: Diff, identical: bool) -> None:
    print_text(_describe_counts(diff, identical))
    if not diff.same:
        _print_nodes(diff)
        sizes = [
            (kind, format_size(n), format_size(m)) for kind, (n, m) in diff.weight_bytes.items()
        ]
        if sizes:
            print_table(("weights", "A>", "B>"), sizes)
        relations: dict[str, list[Weight]] = {}
        for weight in diff.weights:
            relations.setdefault(weight.relation, []).append(weight)
        counts = [f"{diff.equal_weights} equal"]
        counts += [f"{len(related)} {relation}" for relation, related in sorted(relations.items())]
        print_text(f"weights: {', '.join(counts)}")
        moved = sorted(
            (change for change in diff.weights if change.relative is not None),
            key=lambda change: ("scaled" in change.relation, -(change.relative or 0)),
        )
        for change in moved if is_verbose() else moved[:1]:
            prefix = "" if is_verbose() else "largest change: "
            print_text(
                f"{prefix}{change.a} -> {change.b}: {change.relation}, up to {change.largest:.3g} "
                f"({_format_percent(change.relative or 0)} of the largest magnitude)"
            )
    if diff.fields:
        rows = [
            (f.what, "-" if f.a is None else f.a, "-" if f.b is None else f.b) for f in diff.fields
        ]
        print_table(("besides", "A", "B"), rows)
    if is_verbose():
        groups = [
            (
                _WORDS[group.kind],
                _format_nodes(diff.nodes[0], group.a),
                _format_nodes(diff.nodes[1], group.b),
                ", ".join(group.changes),
            )
            for group in diff.groups
        ]
        print_table(("kind", "A", "B", "what differs"), groups)


def _describe_counts(diff: Diff, identical: bool) -> str:
    counts = f"{len(diff.nodes[0])} and {wording.format_count(len(diff.nodes[1]), 'node')}"
    if identical:
        return f"identical files: {counts}"
    if diff.same:
        return f"the same computation: {counts}; names, order or metadata differ at most"
    if not diff.related:
        return f"little in common: {counts}; only what is equal beyond doubt is grouped"
    kinds = [
        f"{n} {_WORDS[kind]}" if kind in ("added", "removed") else f"{groups} {_WORDS[kind]}"
        for kind, (groups, in_a, in_b) in diff.counts().items()
        for n in [max(in_a, in_b)]
    ]
    return f"{counts}: {', '.join(kinds)}"


def _print_nodes(diff: Diff) -> None:
    moved = [(op, n, m, f"{m - n:+d}") for op, (n, m) in diff.ops.items() if n != m]
    kept = sum(n == m for n, m in diff.ops.values())
    if moved:
        print_table(("operator", "A>", "B>", "difference>"), moved)
        if kept:
            print_text(f"operators that are as many in both: {kept}")
    rows = [
        (_WORDS[kind], pattern, count, _join_changes(diff, kind, pattern))
        for (kind, pattern), count in diff.patterns().items()
        if _join_changes(diff, kind, pattern) not in _ASIDE
    ]
    rows += _summarize_trivial(diff)
    shown = rows if is_verbose() else rows[:_SHOWN]
    if shown:
        print_table(("kind", "nodes", "times>", "what differs"), shown)
    if len(shown) < len(rows):
        print_text(
            f"and {wording.format_count(len(rows) - len(shown), 'more pattern')}; -v lists them "
            "all"
        )


def _summarize_trivial(diff: Diff) -> list[tuple[str, str, int, str]]:
    """Sum up what is on one side only and computes nothing of the data."""
    totals: dict[tuple[str, str], tuple[Counter[str], int]] = {}
    for group in diff.groups:
        why = ", ".join(group.changes)
        if why in _ASIDE and group.kind in ("added", "removed"):
            ops, count = totals.get((group.kind, why), (Counter[str](), 0))
            nodes, ids = (diff.nodes[0], group.a) if group.a else (diff.nodes[1], group.b)
            ops.update(nodes[index].op for index in ids)
            totals[group.kind, why] = ops, count + 1
    return [
        (_WORDS[kind], ", ".join(f"{n} {op}" for op, n in ops.most_common()), count, why)
        for (kind, why), (ops, count) in totals.items()
    ]


def _join_changes(diff: Diff, kind: str, pattern: str) -> str:
    changes = [
        change
        for group in diff.groups
        if group.kind == kind and group.pattern == pattern
        for change in group.changes
    ]
    return ", ".join(dict.fromkeys(changes))


def _format_percent(share: float) -> str:
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _format_nodes(nodes: Sequence[DrawnNode], ids: Sequence[int]) -> str:
    return ", ".join(f"{nodes[index].name} ({nodes[index].op})" for index in ids)
