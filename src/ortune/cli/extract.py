"""Cut a part of a model out, with what it was given in real runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import _specs, shared
from ortune.core.errors import BadData

if TYPE_CHECKING:
    from ortune.analysis.verification.extract import Extracted

_WAYS = 6


@shared.verb(shared.Verb)
@shared.model
@click.option(
    "--from",
    "starts",
    metavar="NAME",
    multiple=True,
    help="Tensor, or node, that the piece begins with; repeat it. Default: the model's inputs.",
)
@click.option(
    "--to",
    "ends",
    metavar="NAME",
    multiple=True,
    help="Tensor, or node, that the piece ends with; repeat it. Default: the model's outputs.",
)
@shared.data
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Record the first N samples of --data; 0 takes all.",
)
@shared.custom_ops
@shared.output("The piece.", required=True)
@shared.force
def command(
    model: Path,
    starts: tuple[str, ...],
    ends: tuple[str, ...],
    data: str | None,
    samples: int,
    custom_ops: tuple[str, ...],
    out: Path,
    force: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Cut the part of MODEL between named tensors out into a model of its own.

    What it needs comes along: weights, functions, captured values, and paths that go round
    --from, up to the model's own inputs. A node stands for what it reads (--from) or makes
    (--to); where a tensor has the same name, write node:NAME. With --data the whole model runs,
    the piece's inputs are recorded into the folder OUT-inputs, and the piece must answer as the
    whole does.

    \b
    Example:
      ortune extract model.onnx --from /encoder/Add_output_0 --to logits -o piece.onnx
      ortune extract model.onnx --from node:Conv_3 --to node:Conv_3 --data D -o conv.onnx
    """
    from ortune.analysis.verification.extract import extract, folder_of

    shared.free(out, force, model)
    if data is not None:
        empty(folder_of(out), force)
    found = extract(model, out, starts, ends, data=data, limit=samples, custom_ops=custom_ops)
    result = {
        "model": model,
        "output": found.path,
        "inputs": found.inputs,
        "outputs": found.outputs,
        "added": found.added,
        "ways": found.ways,
        "nodes": found.nodes,
        "of_nodes": found.of_nodes,
        "weight_bytes": found.weight_bytes,
        "samples": found.samples,
        "count": found.count,
    }
    shared.answer(json_to, result, lambda: _show(found))
    return 0


def empty(folder: Path, force: bool) -> None:
    """Refuse a folder with something in it.

    Raises:
        BadData: There is one, and `force` is off.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise BadData(f"{folder} exists", fix="give another -o, or --force to write into it")


def _show(found: Extracted) -> None:
    _specs.table("input", found.inputs)
    _specs.table("output", found.outputs)
    if found.added:
        shared.say(f"also takes {', '.join(found.added)}: ways round the named tensors lead there")
        words = " ".join(f"--from {name}" for name in found.ways[:_WAYS])
        if found.ways:
            shared.say(f"to leave them out: {words}{' ...' if len(found.ways) > _WAYS else ''}")
    size = shared.size(found.weight_bytes)
    shared.say(f"{found.path}: {found.nodes} of {found.of_nodes} nodes, {size} of weights")
    if found.samples is not None:
        count = f"{found.count} sample{'' if found.count == 1 else 's'}"
        shared.say(f"{found.samples}: {count}; the piece answers as the whole")
