"""When two searches are the same search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ortune.backends.bucketed import Bucketed
from ortune.core.acceptance import FASTEST
from ortune.core.backend import Backend
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.spelling import places
from ortune.core.study import Job
from ortune.graph.io import file


def model_digest(models: Mapping[str, Path]) -> str:
    """Digest the files of a job's models, external data included."""
    return codec.digest([[name, file.digest(path)] for name, path in models.items()])


def job_key(job: Job) -> str:
    """Digest everything a trial depends on beside its plan.

    The model's path does not count, nor by what the winner is chosen.
    """
    source = catalog.source_digest(job.workload)
    return codec.digest([replace(job, model="", budget_rule="", wanted=FASTEST), source])


def place(job: Job, backend: Backend) -> str:
    """Return the environment that a backend's workers run in; behind buckets, the inner one's."""
    inner = backend.inner if isinstance(backend, Bucketed) else backend
    return places(job.on).get(inner.name(), job.environment) if job.on else job.environment


def different(one: Job, two: Job) -> str:
    """Return what differs between two jobs in a few words, or an empty text."""
    said = [
        f"its {name} is {a}, not {b}"
        for name, a, b in (
            ("budget", str(one.budget), str(two.budget)),
            ("baseline", str(one.baseline), str(two.baseline)),
            ("--on", one.on, two.on),
            ("environment", one.environment, two.environment),
            ("--ignore-output", ", ".join(one.ignored), ", ".join(two.ignored)),
            ("workload", str(one.workload), str(two.workload)),
            ("winner", str(one.wanted), str(two.wanted)),
        )
        if a != b
    ]
    others = {
        "model": one.model_digest != two.model_digest,
        "data": one.data_digest != two.data_digest,
        "versions": dict(one.versions) != dict(two.versions),
        "machine": dict(one.machine) != dict(two.machine),
    }
    changed = [name for name, differs in others.items() if differs]
    return ", ".join([*said, *([f"other {' and '.join(changed)}"] if changed else [])])
