"""Build every model of a job by a plan's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from ortune.core.errors import OrtuneError, Refused
from ortune.core.event import Sink
from ortune.core.plugins import codec
from ortune.core.step import Edit
from ortune.core.trial import Plan
from ortune.graph.io import file
from ortune.search.experiment.context import Context
from ortune.search.recipe.build import build_in
from ortune.search.recipe.built import link_or_copy, steps_key


@dataclass(frozen=True)
class Files:
    """The built models of a plan.

    Attributes:
        content: Digest of what they compute, all models together; empty where it is not known.
    """

    paths: Mapping[str, Path]
    edits: tuple[Edit, ...]
    size: int
    changed: bool
    artefact: str
    content: str = ""


def build_all(context: Context, plan: Plan, sink: Sink) -> Files:
    """Build every model of the job by the plan's recipe.

    A quantizer that finds nothing in one of several models leaves that model as it came.

    Raises:
        OrtuneError: Nothing could be built.
    """
    cache = context.root / "artefacts"
    paths: dict[str, Path] = {}
    edits: list[Edit] = []
    contents: list[str] = []
    refused: OrtuneError | None = None
    changed = False
    for name, source in context.models.items():
        try:
            recipe = plan.recipe.select_for(name)
            if context.ahead is not None:
                context.ahead.take(name, recipe)
            began = monotonic()
            built = build_in(cache, source, recipe, context.materials[name], sink=sink)
            if context.ahead is not None:
                context.ahead.longest_s = max(context.ahead.longest_s, monotonic() - began)
        except Refused as error:
            refused, paths[name] = error, source
            continue
        paths[name], changed = built.path, changed or built.changed
        edits += built.edits
        contents.append(built.content)
    if refused is not None and not changed:
        raise refused
    if plan.recipe.only:
        # Models built by recipes of their own go into the folder of the whole plan.
        whole = cache / steps_key(plan.recipe.steps)
        whole.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            if path != context.models[name]:
                for part in path.parent.glob(f"{path.stem}.*"):
                    link_or_copy(part, whole / part.name)
                paths[name] = whole / path.name
    artefact = ""
    if changed:
        folder = next(p.parent for n, p in paths.items() if p != context.models[n])
        artefact = str(folder.relative_to(context.root))
    content = codec.digest(contents) if all(contents) and refused is None else ""
    size = sum(map(file.count_file_bytes, paths.values()))
    return Files(paths, tuple(edits), size, changed, artefact, content if changed else "")
