"""Say what a model is made of, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.cli import shared
from ortune.core.facts import Facts, TensorSpec

if TYPE_CHECKING:
    from ortune.model.saturable import Saturable


@shared.verb(shared.Verb)
@shared.model
def command(model: Path, json_to: str | None, verbose: bool) -> int:
    """Say what MODEL is made of: operators, weights, precisions, inputs and outputs.

    \b
    Example:
      ortune inspect model.onnx
      ortune inspect model.onnx --json
    """
    from ortune.model import file
    from ortune.model.facts import facts
    from ortune.model.saturable import saturable

    loaded = file.load(model)
    found, layers = facts(loaded), saturable(loaded)
    digest, size = file.digest(model), file.size(model)
    result = {
        "model": model,
        "digest": digest,
        "file_bytes": size,
        "facts": found,
        "saturable": layers,
    }
    shared.answer(json_to, result, lambda: _show(model, digest, size, found, layers, verbose))
    return 0


def _show(
    model: Path,
    digest: str,
    size: int,
    found: Facts,
    layers: Sequence[Saturable],
    verbose: bool,
) -> None:
    shared.table(("", model.name), [*_rows(digest, size, found), *_saturation(layers)])
    for title, specs in (("inputs", found.inputs), ("outputs", found.outputs)):
        rows = [(spec.name, spec.dtype, dims(spec)) for spec in specs]
        shared.table((title, "dtype", "shape"), rows)
    ranked = sorted(found.ops.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked if verbose else ranked[:20]
    shared.table(("operator", "nodes>"), shown)
    if len(shown) < len(ranked):
        shared.say(f"and {len(ranked) - len(shown)} more operators; -v lists them all")


def _rows(digest: str, size: int, found: Facts) -> list[tuple[str, str]]:
    flops = "unknown" if found.flops is None else f"{shared.amount(found.flops)}FLOP a run"
    precisions = sorted(found.precisions.items(), key=lambda item: -item[1])
    rows = [
        ("file", f"{shared.size(size)}, sha256 {digest}"),
        ("opset", f"{found.opset} (IR {found.ir_version})"),
        ("nodes", f"{found.nodes:,}"),
        ("subgraphs, functions", f"{found.subgraphs}, {found.functions}"),
        ("parameters", f"{found.parameters:,} ({shared.size(found.weight_bytes)})"),
        ("precisions", ", ".join(f"{n} {shared.size(b)}" for n, b in precisions) or "no weights"),
        ("arithmetic", flops),
        ("dynamic dimensions", ", ".join(found.dynamic) or "none"),
        ("shapes known from", found.shapes_from),
        ("quantized already", "yes" if found.quantized else "no"),
    ]
    return rows + [(f"metadata {key}", value) for key, value in found.metadata.items()]


def _saturation(layers: Sequence[Saturable]) -> list[tuple[str, str]]:
    if not layers:
        return []
    risky = [layer for layer in layers if layer.risky]
    advice = "; see `ortune verify --simulate avx2`" if risky else ""
    said = f"{len(risky)} of {len(layers)} integer layers{advice}"
    return [("can saturate without VNNI", said)]


def dims(spec: TensorSpec) -> str:
    """Write a shape: ``1 x 3 x height x ?``."""
    if spec.shape is None:
        return "any rank"
    if not spec.shape:
        return "scalar"
    return " x ".join("?" if dim is None else str(dim) for dim in spec.shape)
