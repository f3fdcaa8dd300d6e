"""When two searches are the same search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ortune.backends.bucketed import Bucketed
from ortune.core.acceptance import FASTEST
from ortune.core.backend import Backend
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.spelling import read_environments
from ortune.core.study import Job
from ortune.graph.io import file


def model_digest(models: Mapping[str, Path]) -> str:
    """Digest the files of a job's models, external data included."""
    return codec.digest([[name, file.compute_digest(path)] for name, path in models.items()])


def job_key(job: Job) -> str:
    """Digest everything a trial depends on beside its plan.

    The model's path does not count, nor by what the winner is chosen.
    """
    source = catalog.source_digest(job.workload)
    return codec.digest([replace(job, model="", budget_rule="", wanted=FASTEST), source])


def worker_environment(job: Job, backend: Backend) -> str:
    """Return the environment that a backend's workers run in; behind buckets, the inner one's."""
    inner = backend.inner if isinstance(backend, Bucketed) else backend
    return (
        read_environments(job.on).get(inner.name(), job.environment) if job.on else job.environment
    )


def describe_difference(first: Job, second: Job) -> str:
    """Return what differs between two jobs in a few words, or an empty text."""
    differences = [
        f"its {name} is {a}, not {b}"
        for name, a, b in (
            ("budget", str(first.budget), str(second.budget)),
            ("baseline", str(first.baseline), str(second.baseline)),
            ("--on", first.on, second.on),
            ("environment", first.environment, second.environment),
            ("--ignore-output", ", ".join(first.ignored), ", ".join(second.ignored)),
            ("workload", str(first.workload), str(second.workload)),
            ("winner", str(first.wanted), str(second.wanted)),
        )
        if a != b
    ]
    digests = {
        "model": first.model_digest != second.model_digest,
        "data": first.data_digest != second.data_digest,
        "versions": dict(first.versions) != dict(second.versions),
        "machine": dict(first.machine) != dict(second.machine),
    }
    changed = [name for name, differs in digests.items() if differs]
    return ", ".join([*differences, *([f"other {' and '.join(changed)}"] if changed else [])])
