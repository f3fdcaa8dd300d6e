"""Show what a model consists of, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any

from ortune.analysis.inspection.requests import Inspect
from ortune.cli.terminal import output
from ortune.cli.terminal.command import is_verbose, make_command
from ortune.core import wording
from ortune.core.errors import BadSettings, shorten_text, suggest_names
from ortune.core.fields import Option, Words
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.inspection.inspect import Inspection, NodePlacement, TriedStep
    from ortune.core.facts import Facts, TensorSpec
    from ortune.graph.lint.rules import Finding

_OPS = 14
_IO = 6
_LINT = 8
_NOTE = 40
_LEFT = 3
TABLES = ("nodes", "regions", "tensors")
_FIXED = "no dimension"


class Tables(Words):
    """Names of tables that `inspect` lists."""

    def read(self, value: Any) -> tuple[str, ...]:
        """Convert to a tuple of names that there are."""
        names = super().read(value)
        if unknown := [name for name in names if name not in TABLES]:
            raise BadSettings(f"no table '{unknown[0]}'", fix=suggest_names(unknown[0], TABLES))
        return names


@request
class _Options(Inspect):
    """Options of the command line.

    Attributes:
        tables: List nodes or regions, each with FLOPs, bytes and FLOPs per byte, or tensors: the
            biggest weights and activations. Several by comma.
    """

    _: KW_ONLY
    tables: Tables = Tables((), Option("TABLE,...", "--list"))


@make_command(_Options)
def command(options: _Options) -> None:
    """Show a screen, and the tables asked for."""
    from dataclasses import asdict, fields

    from ortune.analysis.inspection.inspect import run

    inspection = run(options)
    # Every field, with what nodes and regions compute from theirs.
    json_result: dict[str, object] = {
        field.name: getattr(inspection, field.name) for field in fields(inspection)
    }
    for name in ("nodes", "regions"):
        rows = getattr(inspection, name)
        json_result[name] = [
            {**asdict(row), "moved": row.moved, "intensity": row.intensity} for row in rows
        ]
    tables, verbose = options.tables, is_verbose()
    output.print_result(json_result, lambda: _print_inspection(inspection, tables, verbose))


def _print_inspection(inspection: Inspection, tables: Collection[str], verbose: bool) -> None:
    """Print the summary, inputs and outputs, and findings; then the tables asked for."""
    facts = inspection.facts
    opsets = ", ".join(f"{name or 'ai.onnx'} {v}" for name, v in sorted(inspection.opsets.items()))
    precisions = ", ".join(f"{n} {output.format_size(b)}" for n, b in facts.precisions.items())
    producer = f", {inspection.producer}" if inspection.producer else ""
    digest = f", sha256 {inspection.digest}" if inspection.digest else ""
    more = [
        f"{count} {label}"
        for count, label in ((facts.subgraphs, "bodies"), (facts.functions, "functions"))
        if count
    ]
    ranked = sorted(facts.ops.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked if verbose or len(ranked) == _OPS + 1 else ranked[:_OPS]
    text = ", ".join(f"{name} {count}" for name, count in shown)
    operators = text + (
        f" and {wording.format_count(len(ranked) - len(shown), 'more kind')}"
        if len(shown) < len(ranked)
        else ""
    )
    rows = [
        ("file", f"{output.format_size(inspection.file_bytes)}{digest}"),
        ("made with", f"opset {opsets}; IR {facts.ir_version}{producer}"),
        ("nodes", (f"{facts.nodes:,}" + (f", with {' and '.join(more)}" if more else ""))),
        ("operators", operators),
        (
            "weights",
            f"{wording.format_count(facts.parameters, 'parameter')}; {precisions or 'none'}",
        ),
        ("arithmetic", _describe_arithmetic(inspection)),
        ("dynamic", _list_dynamic_dims(facts)),
        ("quantized already", "yes" if facts.quantized else "no"),
    ]
    if inspection.steps:
        rows.append(("steps that may help", ", ".join(map(_describe_step, inspection.steps))))
    if facts.metadata:
        entries = list(facts.metadata.items())[: None if verbose else _IO]
        pairs = ", ".join(f"{key}={_shorten_line(value, verbose)}" for key, value in entries)
        hidden = len(facts.metadata) - len(entries)
        metadata = (
            f"{pairs}, and {wording.format_count(hidden, 'more key')} (-v)" if hidden else pairs
        )
        rows.append(("metadata", metadata))
    if inspection.saturable:
        risky = sum(1 for layer in inspection.saturable if layer.risky)
        layers = wording.format_count(len(inspection.saturable), "integer layer")
        advice = "; see `ortune verify --simulate avx2`" if risky else ""
        rows.append(("can saturate without VNNI", f"{risky} of {layers}{advice}"))
    output.print_table(("", inspection.model.name), rows)
    _print_specs("input", inspection.facts.inputs, verbose)
    _print_specs("output", inspection.facts.outputs, verbose)
    _print_findings(inspection, verbose)
    _print_placement(inspection.placement, verbose)
    if "regions" in tables or verbose:
        _print_regions(inspection)
    if "tensors" in tables or verbose:
        _print_tensors(inspection)
    if verbose:
        if inspection.bodies:
            bodies = [(b.node, b.op, b.attribute, b.nodes, b.captured) for b in inspection.bodies]
            output.print_table(("body of", "operator", "as", "nodes>", "values captured>"), bodies)
        if inspection.functions:
            called = [
                (function.name, function.nodes, function.calls)
                for function in inspection.functions
            ]
            output.print_table(("function", "nodes>", "calls>"), called)
    if "nodes" in tables or verbose:
        _print_nodes(inspection)
    if not (verbose or inspection.placement or tables):
        output.print_text(
            "more: --list nodes,regions,tensors; --on cpu,openvino says which nodes they take"
        )


def _describe_step(tried: TriedStep) -> str:
    before, after = tried.nodes_before, tried.nodes_after
    nodes = f", {before:,} to {after:,} nodes" if after != before else ""
    return f"{tried.step} ({wording.format_count(tried.edits, 'edit')}{nodes})"


def _list_dynamic_dims(facts: Facts) -> str:
    nameless = sum(side is None for spec in facts.inputs for side in spec.shape or ())
    named = list(facts.dynamic) + ([f"{nameless} without a name"] if nameless else [])
    return ", ".join(named) or _FIXED


def _format_flop(count: float) -> str:
    text = output.format_amount(count)
    return f"{text}FLOP" if " " in text else f"{text} FLOP"


def _describe_arithmetic(inspection: Inspection) -> str:
    facts = inspection.facts
    unknown = f"{wording.format_count(inspection.unknown, 'node')} of unknown shape"
    if facts.flops is None:
        lower_bound = sum(node.flops or 0 for node in inspection.nodes)
        text = f"{_format_flop(lower_bound)} a run at least: {unknown}"
    else:
        text = f"{_format_flop(facts.flops)} a run, {output.format_size(inspection.moved)} moved"
        if inspection.intensity is not None:
            text += f": {inspection.intensity:.3g} FLOP a byte"
        if inspection.unknown:
            text += f"; {unknown} left out"
    if inspection.shapes:
        at = " ".join(f"{n}:{'x'.join(map(str, s))}" for n, s in inspection.shapes.items())
        return f"{text}; at {at}"
    return text + (
        "; dynamic dimensions as 1, see --shape" if _list_dynamic_dims(facts) != _FIXED else ""
    )


def _print_specs(kind: str, tensors: Sequence[TensorSpec], verbose: bool) -> None:
    shown = tensors if verbose else tensors[:_IO]
    output.print_specs(kind, shown)
    if len(shown) < len(tensors):
        output.print_text(f"and {len(tensors) - len(shown)} more {kind}s; -v lists them all")


def _print_findings(inspection: Inspection, verbose: bool) -> None:
    shown = inspection.lint if verbose else inspection.lint[:_LINT]
    if shown:
        rows = [
            (finding.severity, _describe_finding(finding, verbose), finding.action)
            for finding in shown
        ]
        output.print_table(("", "finding", "fix"), rows)
    elif not inspection.skipped:
        output.print_text("no findings")
    if len(shown) < len(inspection.lint):
        output.print_text(
            f"and {len(inspection.lint) - len(shown)} more; -v lists them all, with their cost"
        )
    if inspection.skipped:
        output.print_text(inspection.skipped)


def _describe_finding(finding: Finding, verbose: bool) -> str:
    named = [place for place in finding.places if place not in finding.what]
    text = finding.what
    if named and (verbose or finding.severity != "note"):
        more = ", ..." if finding.count > len(finding.places) else ""
        text += f": {', '.join(named if verbose else named[:1])}{more if verbose else ''}"
        text += " ..." if not verbose and finding.count > 1 else ""
    return f"{text}\n  {finding.cost}" if verbose else text


def _print_placement(placements: Sequence[NodePlacement], verbose: bool) -> None:
    rows: list[tuple[object, ...]] = []
    for placement in placements:
        if placement.problem:
            rows.append(
                (placement.backend, "-", "", f"{placement.problem}; {placement.fix}".rstrip("; "))
            )
            continue
        for provider, names in placement.nodes.items():
            added = placement.added.get(provider, 0)
            detail = f"and {added} of its own (constants, casts, parts of nodes)" if added else ""
            rows.append((placement.backend, provider, len(names), detail))
        for label, affected in (
            ("decomposed", placement.left),
            ("copied between", placement.copied),
        ):
            if affected:
                named = ", ".join(affected if verbose else affected[:_LEFT])
                more = "" if verbose or len(affected) <= _LEFT else ", ..."
                rows.append((placement.backend, label, len(affected), f"{named}{more}"))
    if rows:
        output.print_table(("asked", "provider", "nodes>", ""), rows)
    for placement in placements:
        if placement.integers is not None:
            use = wording.format_integer_use(placement.integers)
            output.print_text(f"{placement.backend}: {use}")


def _print_regions(inspection: Inspection) -> None:
    rows = [
        (
            region.name,
            region.nodes,
            output.format_size(region.weights),
            _format_flops(region.flops),
            output.format_size(region.moved),
            _format_ratio(region.intensity),
            f"{region.unknown} unknown" if region.unknown else "",
        )
        for region in inspection.regions
    ]
    columns = ("region", "nodes>", "weights>", "FLOP>", "moved>", "FLOP/B>", "")
    output.print_table(columns, rows)


def _print_nodes(inspection: Inspection) -> None:
    rows = [
        (
            node.name,
            node.op,
            node.dtype,
            output.format_sides(node.shape),
            output.format_size(node.weights) if node.weights else "",
            "?" if node.flops is None else _format_flops(node.flops),
            "?" if node.moved is None else output.format_size(node.moved),
            _format_ratio(node.intensity),
        )
        for node in inspection.nodes
    ]
    columns = ("node", "operator", "makes", "shape", "weights>", "FLOP>", "moved>", "FLOP/B>")
    output.print_table(columns, rows)


def _print_tensors(inspection: Inspection) -> None:
    for kind, title in (("weight", "biggest weights"), ("activation", "biggest activations")):
        rows = [
            (
                tensor.name,
                tensor.dtype,
                output.format_sides(tensor.shape),
                output.format_size(tensor.size),
                tensor.readers,
                ", ".join(tensor.read_by[:1]) + (", ..." if tensor.readers > 1 else ""),
            )
            for tensor in inspection.tensors
            if tensor.kind == kind
        ]
        if rows:
            output.print_table((title, "dtype", "shape", "size>", "readers>", "read by"), rows)


def _format_flops(count: int) -> str:
    return output.format_amount(count) if count else "-"


def _format_ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _shorten_line(text: str, verbose: bool) -> str:
    line = " ".join(text.split())
    return line if verbose else shorten_text(line, _NOTE)
