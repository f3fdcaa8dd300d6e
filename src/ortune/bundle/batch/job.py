"""Batch inference: a model over many rows, in numbered parts that are each written once.

A folder of outputs has ``job.json`` with what the parts are made of, and a ``part-NNNNN.npz``
each, renamed into place when it is whole: the same job goes on where it ended, whatever ended it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortune.bundle.batch.compute import Computer, PartOutcome, compute_on_ray, open_computer
from ortune.bundle.engine import archive
from ortune.core import atomic_write, hub
from ortune.core.cluster import is_ray, open_cluster
from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Note, Progress, Sink, ignore_event
from ortune.data import arrays, parts, sizes
from ortune.data.parts import NumberedPart, SourceFile
from ortune.data.sources import SourcePart
from ortune.graph.io import file as model_file

JOB = "job.json"
_FORMAT = 1
_PARTS, _LEAST, _MOST, _PART_BYTES = 200, 64, 4096, 64 * 2**20
"""Parts that a job is cut into; records of one at least and at most; bytes of its rows at most."""


@dataclass(frozen=True)
class BatchJob:
    """What is computed.

    Attributes:
        executor: ``local``, or Ray: `ortune.core.cluster`.
        engine: Arguments of `load_engine`: ``on``, ``custom_ops``, ``require_signature``.
        force: Do parts again whose model or input was changed since.
    """

    model: Path
    data: Path
    out: Path
    executor: str = "local"
    engine: Mapping[str, Any] = field(default_factory=dict)
    force: bool = False


@dataclass(frozen=True)
class BatchResult:
    """What was computed.

    Attributes:
        plan: The bundle's plan that ran; None for its original and for a plain model.
        backends: What really ran it, in the words of every machine.
    """

    plan: str | None
    backends: tuple[str, ...]
    rows: int
    parts: int
    resumed: int
    computed_rows: int
    seconds: float


def run_batch(batch: BatchJob, sink: Sink = ignore_event) -> BatchResult:
    """Compute the parts that are not there yet.

    Raises BadData: a row cannot be used, with its file and place; or the folder of outputs holds
    something else, or parts of what was changed since; BadSettings: there is no such executor;
    OrtuneError: as `load_engine`.
    """
    if batch.executor != "local" and not is_ray(batch.executor):
        raise BadSettings(
            f"unknown executor '{batch.executor}'", fix="write local, ray or ray://HOST:PORT"
        )
    with ExitStack() as stack:
        ray = stack.enter_context(open_cluster(batch.executor)) if is_ray(batch.executor) else None
        computer = stack.enter_context(open_computer(batch.model, batch.engine))
        folder, listing = parts.list_source_files(batch.data, computer.inputs, sink)
        stack.enter_context(_lock_outputs(batch.out))
        job = _open_job(batch, folder, listing, computer)
        missing = [part for part in job if not _find_part(batch.out, part.number).exists()]
        if len(missing) < len(job):
            sink(Note(f"{len(job) - len(missing)} of {len(job)} parts are there already"))
        if ray is None or not missing:
            outcomes: Iterable[PartOutcome] = map(computer.compute_part, missing)
        else:
            computer.engine.close()  # its CPUs may be the cluster's
            outcomes = compute_on_ray(
                ray,
                missing,
                _list_model_files(batch.model),
                {**batch.engine, "require_signature": None},  # it was verified here
                cpus=computer.cpus,
                gpu=computer.engine.backend.runs_on == "gpu",
            )
        result = _collect_parts(batch.out, outcomes, missing, sink)
    plan = computer.engine.plan
    files = (arrays.open_npz(_find_part(batch.out, part.number)) for part in job)
    rows = sum(next(iter(file.columns.values())).shape[0] for file in files)
    resumed = len(job) - len(missing)
    return replace(
        result, plan=plan.plan if plan else None, rows=rows, parts=len(job), resumed=resumed
    )


def _list_model_files(path: Path) -> dict[str, Path]:
    """Return name -> file of a bundle, or of a model with its weights and the hub's settings."""
    if archive.is_bundle(path):
        return {path.name: path}
    settings = hub.find_folder(path)
    home = settings.root if settings else path.parent
    model_folder = path.absolute().parent.relative_to(home.absolute())
    located = model_file.list_model_files(path).items()
    files = {
        (model_folder / (path.name if f == path else place)).as_posix(): f for place, f in located
    }
    return files | dict(hub.list_side_files(settings) if settings else ())


def _digest_model(batch: BatchJob) -> str:
    """Return hex digits over what answers depend on: the model's files and ``--on``."""
    total = hashlib.sha256(str(batch.engine.get("on")).encode())
    for name, path in _list_model_files(batch.model).items():
        with path.open("rb") as file:
            total.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
    return total.hexdigest()


def _collect_parts(
    out: Path, outcomes: Iterable[PartOutcome], missing: Sequence[NumberedPart], sink: Sink
) -> BatchResult:
    """Write every part as it comes, whole or not at all."""
    records = {part.number: part.records for part in missing}
    total, done, rows, start = sum(records.values()), 0, 0, time.monotonic()
    backends: dict[str, None] = {}
    for outcome in outcomes:
        path = _find_part(out, outcome.number)
        with atomic_write.open_draft(path) as draft, atomic_write.report_write_errors(path):
            draft.write_bytes(outcome.content)
        done, rows = done + records[outcome.number], rows + outcome.rows
        backends[outcome.backend] = None
        rate = rows / (time.monotonic() - start)
        sink(Progress("running rows", done, total, f"{rate:.1f} rows a second"))
    seconds = time.monotonic() - start
    return BatchResult(None, tuple(backends), 0, 0, 0, rows, seconds)


def _find_part(out: Path, number: int) -> Path:
    return out / f"part-{number:05}.npz"


@contextmanager
def _lock_outputs(out: Path) -> Iterator[None]:
    conflict = BadData(f"another run writes into {out}", fix="wait for it, or give another -o")
    with atomic_write.hold_lock(out / ".lock", conflict):
        for draft in out.glob(".part-*.part"):  # of a run that was killed
            atomic_write.remove_path(draft)
        yield


def _open_job(
    batch: BatchJob, folder: Path, listing: Sequence[SourceFile], computer: Computer
) -> list[NumberedPart]:
    """Return the job's parts; BadData where the folder holds others, or parts of changed input."""
    path, total = batch.out / JOB, sum(file.records for file in listing)
    if not total:
        raise BadData(f"no samples in {batch.data}", fix="give at least one sample")
    model = _digest_model(batch)
    before = _read_job(path) if path.is_file() else None
    if before is None:
        if strange := [entry.name for entry in batch.out.iterdir() if entry.name != ".lock"]:
            fix = "give another -o: a folder that is new, or of an earlier run of this command"
            raise BadData(f"{batch.out} holds other files: {sorted(strange)[0]}", fix=fix)
        # The records of a part, by the size of the first one's inputs and outputs.
        first = next(file for file in listing if file.records)
        sample = SourcePart(folder, ((first.name, range(1) if first.records > 1 else None),))
        outputs, _, size = computer.compute(sample)
        size += sum(array.nbytes for array in outputs.values())
        most = min(max(total // _PARTS, _LEAST), _MOST, max(1, _PART_BYTES // size))
        fixed = computer.fixed_rows or 1
        records = max(1, most // fixed) * fixed
    else:
        records = before["records"]
    sizes.require_list_memory(total // records)
    job = list(parts.cut_parts(folder, listing, records, model))
    if before is not None:
        _drop_changed_parts(batch, before, model, listing, job)
    document = {
        "format": _FORMAT,
        "model": model,
        "records": records,
        "parts": [part.digest for part in job],
        "files": [[file.name, file.size, file.digest, file.records] for file in listing],
    }
    atomic_write.write_text(path, json.dumps(document) + "\n")
    return job


def _read_job(path: Path) -> dict[str, Any]:
    try:
        job: dict[str, Any] = json.loads(path.read_bytes())
        if job["format"] != _FORMAT:
            raise ValueError(f"its format is {job['format']}")
        records = int(job["records"])
        files = [SourceFile(str(n), int(s), str(d), int(r)) for n, s, d, r in job["files"]]
        return job | {"records": max(1, records), "files": files, "parts": list(job["parts"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"cannot read {path}: {error}", fix="give another -o") from None


def _drop_changed_parts(
    batch: BatchJob,
    before: Mapping[str, Any],
    model: str,
    listing: Sequence[SourceFile],
    job: Sequence[NumberedPart],
) -> None:
    """Remove parts whose model or input changed, where that was asked for; else BadData."""
    digests = [part.digest for part in job]
    pairs = itertools.zip_longest(before["parts"], digests)
    paths = [
        _find_part(batch.out, number) for number, (old, new) in enumerate(pairs) if old != new
    ]
    stale = [path for path in paths if path.exists()]
    if stale and not batch.force:
        changed = sorted({file.name for file in {*before["files"]} ^ {*listing}})
        reason = (
            (changed or [JOB])[0] if before["model"] == model else f"{batch.model.name} or --on"
        )
        raise BadData(
            f"{reason} was changed since {stale[0]} was made from it",
            fix="give another -o, or --force to compute these parts again",
        )
    for path in stale:
        atomic_write.remove_path(path)
