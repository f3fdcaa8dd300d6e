"""What a table is of: the space as it is listed, and the machine that it was listed for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from benchmarks.search.table import Table
from ortune.backends.bucketed import Bucketed
from ortune.core.hardware import cpus
from ortune.core.plugins import codec
from ortune.core.trial import Plan
from ortune.search.recipe.space import SearchTarget, Space


def listing(space: Space) -> dict[str, list[str]]:
    """Return all that a space lists before anything is measured.

    Settings around a plan do not depend on its recipe: they are listed once a variant.
    """
    found: dict[str, list[str]] = {}
    for target in space.targets:
        for backend in space.list_variants(target):
            for plan in (Plan(recipe, backend) for recipe in space.list_recipes(target, backend)):
                found[plan.spelling] = [rescue.spelling for rescue in space.list_rescues(plan)]
            around = space.list_neighbours(plan).values()
            found[f"around {backend}"] = [str(one.backend) for some in around for one in some]
    return found


def digest(space: Space) -> str:
    """Digest what a space lists: a table is of one space."""
    return codec.digest([listing(space), str(space.buckets)])


def space_of(table: Table) -> Space:
    """Return the space as the code lists it now, for the table's machine; see `pretended`."""
    about = table.about
    targets = [
        SearchTarget(
            backend, offered, frozenset(pins), tuple(about.workload.splits(offered.effective_cpus))
        )
        for (backend, offered), pins in zip(about.offered, about.pinned, strict=True)
    ]
    buckets = about.buckets if isinstance(about.buckets, Bucketed) else None
    return Space(about.facts, targets, about.workload, about.baseline, about.exact, buckets)


@contextmanager
def pretended(table: Table) -> Iterator[None]:
    """Have the table's CPUs, whatever is installed here."""
    held = set(range(table.about.cpus))

    def forget() -> None:
        cpus.instruction_sets.cache_clear()
        cpus.cpu_model.cache_clear()

    with TemporaryDirectory(prefix="ortune-") as folder, ExitStack() as stack:
        path = Path(folder) / "cpuinfo"
        model = table.about.machine.get("cpu", "")
        path.write_text(f"model name : {model}\nflags : {table.about.flags}\n")
        stack.enter_context(patch.object(os, "sched_getaffinity", lambda pid: held, create=True))
        stack.enter_context(patch.object(os, "fsync", lambda _: None))
        stack.enter_context(patch.object(cpus, "list_cgroups", lambda *_: []))
        stack.enter_context(patch.object(cpus, "CPUINFO", path))
        forget()
        try:
            yield
        finally:
            forget()
