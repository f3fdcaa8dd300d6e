"""Say what a model is made of, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING

from ortune.analysis.inspection.requests import Inspect
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import amount, answer, say, sides, size, specs, table
from ortune.core import wording
from ortune.core.errors import shortened
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.inspection.inspect import Inspection, Placed
    from ortune.core.facts import Facts, TensorSpec
    from ortune.graph.lint.rules import Finding

_OPS = 14
_IO = 6
_LINT = 8
_NOTE = 40
_LEFT = 3
_FIXED = "no dimension"


@request
class _Asked(Inspect):
    """Options of the command line.

    Attributes:
        nodes: List every node: FLOPs, bytes, FLOPs per byte.
        regions: List the parts of the model likewise.
        tensors: List the biggest weights and activations.
    """

    _: KW_ONLY
    nodes: bool = False
    regions: bool = False
    tensors: bool = False


@verb(_Asked)
def command(asked: _Asked) -> None:
    """Show a screen, and the tables asked for."""
    from dataclasses import asdict, fields

    from ortune.analysis.inspection.inspect import run

    found = run(asked)
    wanted = {"nodes": asked.nodes, "regions": asked.regions, "tensors": asked.tensors}
    # Every field, with what nodes and regions compute from theirs.
    made: dict[str, object] = {one.name: getattr(found, one.name) for one in fields(found)}
    for name in ("nodes", "regions"):
        rows = getattr(found, name)
        made[name] = [
            {**asdict(row), "moved": row.moved, "intensity": row.intensity} for row in rows
        ]
    answer(made, lambda: _show(found, wanted, verbose()))


def _show(found: Inspection, wanted: Mapping[str, bool], verbose: bool) -> None:
    """Print the summary, inputs and outputs, and findings; then the tables asked for."""
    facts = found.facts
    opsets = ", ".join(f"{name or 'ai.onnx'} {v}" for name, v in sorted(found.opsets.items()))
    precisions = ", ".join(f"{n} {size(b)}" for n, b in facts.precisions.items())
    said = f", {found.producer}" if found.producer else ""
    digest = f", sha256 {found.digest}" if found.digest else ""
    more = [
        f"{count} {what}"
        for count, what in ((facts.subgraphs, "bodies"), (facts.functions, "functions"))
        if count
    ]
    rows = [
        ("file", f"{size(found.file_bytes)}{digest}"),
        ("made with", f"opset {opsets}; IR {facts.ir_version}{said}"),
        ("nodes", (f"{facts.nodes:,}" + (f", with {' and '.join(more)}" if more else ""))),
        ("operators", _ops(facts, verbose)),
        ("weights", f"{wording.count(facts.parameters, 'parameter')}; {precisions or 'none'}"),
        ("arithmetic", _arithmetic(found)),
        ("dynamic", _dynamic(facts)),
        ("quantized already", "yes" if facts.quantized else "no"),
    ]
    if found.steps:
        rows.append(("steps that may help", ", ".join(found.steps)))
    if facts.metadata:
        rows.append(("metadata", _metadata(facts.metadata, verbose)))
    table(("", found.model.name), [*rows, *_saturation(found)])
    _io("input", found.facts.inputs, verbose)
    _io("output", found.facts.outputs, verbose)
    _lint(found, verbose)
    _placement(found.placement, verbose)
    if wanted["regions"] or verbose:
        _regions(found)
    if wanted["tensors"] or verbose:
        _tensors(found)
    if verbose:
        if found.bodies:
            held = [(b.node, b.op, b.attribute, b.nodes, b.captured) for b in found.bodies]
            table(("body of", "operator", "as", "nodes>", "values captured>"), held)
        if found.functions:
            called = [(one.name, one.nodes, one.calls) for one in found.functions]
            table(("function", "nodes>", "calls>"), called)
    if wanted["nodes"] or verbose:
        _nodes(found)
    if not (verbose or found.placement or any(wanted.values())):
        say("more: --regions, --nodes, --tensors; --on cpu,openvino says which nodes they take")


def _metadata(held: Mapping[str, str], verbose: bool) -> str:
    """Return keys and values in one line."""
    shown = list(held.items())[: None if verbose else _IO]
    text = ", ".join(f"{key}={_short(value, verbose)}" for key, value in shown)
    left = len(held) - len(shown)
    return f"{text}, and {wording.count(left, 'more key')} (-v)" if left else text


def _dynamic(facts: Facts) -> str:
    nameless = sum(side is None for one in facts.inputs for side in one.shape or ())
    named = list(facts.dynamic) + ([f"{nameless} without a name"] if nameless else [])
    return ", ".join(named) or _FIXED


def _ops(facts: Facts, verbose: bool) -> str:
    ranked = sorted(facts.ops.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked if verbose or len(ranked) == _OPS + 1 else ranked[:_OPS]
    text = ", ".join(f"{name} {count}" for name, count in shown)
    return text + (
        f" and {wording.count(len(ranked) - len(shown), 'more kind')}"
        if len(shown) < len(ranked)
        else ""
    )


def _flop(count: float) -> str:
    text = amount(count)
    return f"{text}FLOP" if " " in text else f"{text} FLOP"


def _arithmetic(found: Inspection) -> str:
    facts = found.facts
    if facts.flops is None:
        known = sum(one.flops or 0 for one in found.nodes)
        text = f"{_flop(known)} a run at least: {_nodes_of(found.unknown)}"
    else:
        text = f"{_flop(facts.flops)} a run, {size(found.moved)} moved"
        if found.intensity is not None:
            text += f": {found.intensity:.3g} FLOP a byte"
        if found.unknown:
            text += f"; {_nodes_of(found.unknown)} left out"
    if found.shapes:
        at = " ".join(f"{n}:{'x'.join(map(str, s))}" for n, s in found.shapes.items())
        return f"{text}; at {at}"
    return text + ("; dynamic dimensions as 1, see --shape" if _dynamic(facts) != _FIXED else "")


def _saturation(found: Inspection) -> list[tuple[str, str]]:
    if not found.saturable:
        return []
    risky = [layer for layer in found.saturable if layer.risky]
    advice = "; see `ortune verify --simulate avx2`" if risky else ""
    said = f"{len(risky)} of {wording.count(len(found.saturable), 'integer layer')}{advice}"
    return [("can saturate without VNNI", said)]


def _io(kind: str, given: Sequence[TensorSpec], verbose: bool) -> None:
    shown = given if verbose else given[:_IO]
    specs(kind, shown)
    if len(shown) < len(given):
        say(f"and {len(given) - len(shown)} more {kind}s; -v lists them all")


def _lint(found: Inspection, verbose: bool) -> None:
    shown = found.lint if verbose else found.lint[:_LINT]
    if shown:
        rows = [(one.severity, _said(one, verbose), one.action) for one in shown]
        table(("", "finding", "fix"), rows)
    elif not found.skipped:
        say("no findings")
    if len(shown) < len(found.lint):
        say(f"and {len(found.lint) - len(shown)} more; -v lists them all, with their cost")
    if found.skipped:
        say(found.skipped)


def _said(one: Finding, verbose: bool) -> str:
    named = [place for place in one.places if place not in one.what]
    text = one.what
    if named and (verbose or one.severity != "note"):
        more = ", ..." if one.count > len(one.places) else ""
        text += f": {', '.join(named if verbose else named[:1])}{more if verbose else ''}"
        text += " ..." if not verbose and one.count > 1 else ""
    return f"{text}\n  {one.cost}" if verbose else text


def _placement(every: Iterable[Placed], verbose: bool) -> None:
    rows: list[tuple[object, ...]] = []
    for one in every:
        if one.problem:
            rows.append((one.backend, "-", "", f"{one.problem}; {one.fix}".rstrip("; ")))
            continue
        for provider, names in one.nodes.items():
            added = one.added.get(provider, 0)
            own = f"and {added} of its own (constants, casts, parts of nodes)" if added else ""
            rows.append((one.backend, provider, len(names), own))
        for what, some in (("decomposed", one.left), ("copied between", one.copied)):
            if some:
                named = ", ".join(some if verbose else some[:_LEFT])
                more = "" if verbose or len(some) <= _LEFT else ", ..."
                rows.append((one.backend, what, len(some), f"{named}{more}"))
    if rows:
        table(("asked", "provider", "nodes>", ""), rows)


def _regions(found: Inspection) -> None:
    rows = [
        (
            one.name,
            one.nodes,
            size(one.weights),
            _flops(one.flops),
            size(one.moved),
            _ratio(one.intensity),
            f"{one.unknown} unknown" if one.unknown else "",
        )
        for one in found.regions
    ]
    columns = ("region", "nodes>", "weights>", "FLOP>", "moved>", "FLOP/B>", "")
    table(columns, rows)


def _nodes(found: Inspection) -> None:
    rows = [
        (
            one.name,
            one.op,
            one.dtype,
            sides(one.shape),
            size(one.weights) if one.weights else "",
            "?" if one.flops is None else _flops(one.flops),
            "?" if one.moved is None else size(one.moved),
            _ratio(one.intensity),
        )
        for one in found.nodes
    ]
    columns = ("node", "operator", "makes", "shape", "weights>", "FLOP>", "moved>", "FLOP/B>")
    table(columns, rows)


def _tensors(found: Inspection) -> None:
    for kind, title in (("weight", "biggest weights"), ("activation", "biggest activations")):
        rows = [
            (
                one.name,
                one.dtype,
                sides(one.shape),
                size(one.size),
                one.readers,
                ", ".join(one.read_by[:1]) + (", ..." if one.readers > 1 else ""),
            )
            for one in found.tensors
            if one.kind == kind
        ]
        if rows:
            table((title, "dtype", "shape", "size>", "readers>", "read by"), rows)


def _nodes_of(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'} of unknown shape"


def _flops(count: int) -> str:
    return amount(count) if count else "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _short(text: str, verbose: bool) -> str:
    line = " ".join(text.split())
    return line if verbose else shortened(line, _NOTE)
