"""Fix everything before the first candidate: feeds, split, baseline outputs, budget, job."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from ortune.core import preprocess
from ortune.core.acceptance import FASTEST, Goal
from ortune.core.atomic_write import write_text
from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.plugins.user_function import EVALUATE
from ortune.core.study import Header, Job
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed, capabilities, worker_folder
from ortune.measurement.timing.deadlines import Deadlines
from ortune.measurement.timing.turns import ready
from ortune.measurement.workloads.latency import Latency
from ortune.quantizers.calibration import reuse
from ortune.search.experiment import samples
from ortune.search.experiment.context import Context
from ortune.search.experiment.keys import different, model_digest
from ortune.search.experiment.ledger import read_header, write_header
from ortune.search.experiment.parts import Judged, Original
from ortune.search.experiment.request import ExperimentRequest
from ortune.search.experiment.samples import Feeding

_TIMEOUT_S = 300.0


def prepare(
    request: ExperimentRequest,
    root: Path,
    sink: Sink,
    *,
    on: str = "",
    wanted: Goal = FASTEST,
    command: str = "",
    finalists: int = 1,
    by_region: bool = True,
) -> Context:
    """Load models and data, run the baseline, fix the budget; write or check the run's header.

    Args:
        on: The backends to search, as spelled: part of the job.
        finalists: Plans that may be judged on samples that no choice has read.

    Raises:
        OrtuneError: Models, data or budget cannot be used, or the folder holds another job's run.
    """
    models, header = request.names, read_header(root)
    if header is not None:
        asked = replace(header.job, wanted=wanted, **_settings(request, on))
        if request.budget is not None and not request.evaluate:
            asked = replace(asked, budget=Budget.parse(request.budget))
        _refuse(root, different(header.job, asked))
    facts = {name: model_facts.facts(file.load(path), read=True) for name, path in models.items()}
    fed = _fed(request, facts, root, header, sink).settled(root / "data")
    chosen = 0 if request.whole else finalists
    found, deadlines, timeout_s = _judged(request, root, fed, chosen, header, sink)
    _keep_preprocess(request, root)
    fed = found.feeding.altered(request, root / "data" / "altered", sink)
    derived = f"budget {found.budget} ({found.rule})" if found.rule else ""
    for text in filter(None, (derived, found.outlook)):
        sink(Note(text))
    job = Job(
        model=", ".join(map(str, request.models)),
        data_digest=fed.digest,
        budget=found.budget,
        budget_rule=found.rule,
        wanted=wanted,
        **_settings(request, on),
    )
    paths = {name: str(path.resolve()) for name, path in models.items()}
    whole = joined(list(facts.values()))
    if header is not None:
        _refuse(root, different(header.job, job))
    else:
        about = Header(job, whole, command, paths, found.division, outlook=found.outlook)
        about = replace(about, by_operator=found.by_operator, by_region=by_region)
        write_header(root, about)
    return Context(
        root=root,
        job=job,
        facts=whole,
        models=models,
        feeds=fed.streams,
        materials=fed.materials,
        parts=found.parts,
        evaluate=request.evaluate or "",
        base_ns=deadlines.run_ns,
        timeout_s=timeout_s,
        memory_limit=request.memory_limit,
        verbose=request.verbose,
        finalists=max(1, chosen),
        watched=found.watched,
        yielded=found.yielded,
        deadlines=deadlines,
    )


def _keep_preprocess(request: ExperimentRequest, root: Path) -> None:
    """Copy the settings that lie beside images into the run: its bundle takes pictures by them."""
    if not isinstance(request.data, (str, Path)) or not Path(request.data).exists():
        return
    data = Path(request.data)
    beside = (data if data.is_dir() else data.parent) / preprocess.SETTINGS
    if beside.is_file():
        write_text(root / preprocess.SETTINGS, beside.read_text(encoding="utf-8"))


def _judged(
    request: ExperimentRequest,
    root: Path,
    fed: Feeding,
    chosen: int,
    header: Header | None,
    sink: Sink,
) -> tuple[Judged, Deadlines, float]:
    """Run the original: return what it fixes, deadlines by what it took, and a general one."""
    began = monotonic()
    with _start(request, root, fed.streams, sink) as worker:
        started = ready(worker)
        ready_s = monotonic() - began
        runs = worker.ask("burst", at=0, runs=3)["latency_ns"]
        quick = int(min(runs))
        original = Original(request, worker, root / "data", started, quick, chosen, header, sink)
        found = original.judged(fed)
        judged_s = monotonic() - began - ready_s
    deadlines = Deadlines.of(started, ready_s, int(median(runs)), judged_s, request.driven)
    needed = (10 * started.load_ns + 40 * started.first_ns) / 1e9
    return found, deadlines, min(_TIMEOUT_S, max(20.0, request.time / 3, needed))


class _Loud(Worker):
    """A worker whose failure is the user's to mend: the original does not run."""

    def ask(self, do: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        try:
            return super().ask(do, timeout_s=timeout_s, **arguments)
        except WorkerFailed as error:
            what, fix = error.failure.reason, error.failure.fix
            if f"is not {EVALUATE[0]}" not in what:
                what = f"the original does not run: {what}"
            usual = "check the model, the data and the baseline's backend; -v shows the log"
            raise BadData(what, fix=fix or usual) from None


def _start(
    request: ExperimentRequest, root: Path, streams: Mapping[str, Path], sink: Sink
) -> Worker:
    job = WorkerJob(
        {name: path.resolve() for name, path in request.names.items()},
        request.original,
        {name: path.resolve() for name, path in streams.items()},
        worker_folder(root.resolve() / "workers", "setup"),
        Latency(batch=request.driven.batch),
        verbose=request.verbose,
    )
    limit = request.memory_limit
    return _Loud(job, timeout_s=_TIMEOUT_S, memory_limit=limit, sink=sink)


def _settings(request: ExperimentRequest, on: str) -> dict[str, Any]:
    """Return the fields of a job that are known before any sample is read."""
    offered = capabilities(request.original)
    return {
        "model_digest": model_digest(request.names),
        "workload": request.driven,
        "baseline": request.original,
        "on": on,
        "ignored": tuple(sorted(request.ignore_output)),
        "versions": offered.versions,
        "machine": offered.machine,
    }


def _fed(
    request: ExperimentRequest,
    facts: Mapping[str, Facts],
    root: Path,
    known: Header | None,
    sink: Sink,
) -> Feeding:
    """Read or record the samples beside those of an earlier run, and check that they agree."""
    draft = root / "data.part"
    shutil.rmtree(draft, ignore_errors=True)
    ranges = request.ranges_from  # read before anything is said of the samples
    given = None if ranges is None else reuse.load(Path(ranges), request.models[0])
    try:
        if request.evaluate and request.data is None:
            with _start(request, root, {}, sink) as worker:
                worker.ask("load")
                fed = samples.recorded(request, worker, draft)
        else:
            fed = samples.given(request, facts[MAIN], draft, sink, root / "data")
        fed = fed.known(request, given, sink)
        if known is not None:
            asked = replace(known.job, data_digest=fed.digest)
            _refuse(root, different(known.job, asked))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return fed


def _refuse(root: Path, changed: str) -> None:
    if changed:
        raise BadSettings(
            f"{root} holds the run of another job: {changed}",
            fix="choose another -o folder, or remove that one",
        )


def joined(found: Sequence[Facts]) -> Facts:
    """Sum the facts of models that are optimized together."""
    if len(found) == 1:
        return found[0]
    ops, precisions = Counter[str](), Counter[str]()
    for one in found:
        ops.update(one.ops)
        precisions.update(one.precisions)
    flops = [one.flops for one in found]
    return replace(
        found[0],
        ops=dict(ops),
        precisions=dict(precisions),
        nodes=sum(one.nodes for one in found),
        parameters=sum(one.parameters for one in found),
        weight_bytes=sum(one.weight_bytes for one in found),
        table_bytes=sum(one.table_bytes for one in found),
        opset=min(one.opset for one in found),
        subgraphs=sum(one.subgraphs for one in found),
        functions=sum(one.functions for one in found),
        denormals=max(one.denormals or 0.0 for one in found),
        flops=None if None in flops else sum(f for f in flops if f is not None),
    )
