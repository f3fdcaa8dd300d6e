"""Fix everything before the first candidate: feeds, split, baseline outputs, budget, job."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from ortune.core import hub, preprocess, regular_file
from ortune.core.acceptance import FASTEST, Goal
from ortune.core.atomic_write import write_text
from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Note, Progress, Sink
from ortune.core.facts import Facts
from ortune.core.plugins.user_function import EVALUATE
from ortune.core.self_agreement import SelfAgreement, join_agreements
from ortune.core.study import Header, Job
from ortune.core.wording import shorten_groups
from ortune.data.synthetic import require_input_names
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement import process
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.self_agreement import compare_with_itself
from ortune.measurement.timing.turns import Deadlines, wait_until_ready
from ortune.measurement.workloads.latency import Latency
from ortune.quantizers.calibration import ranges_file
from ortune.search.experiment import samples
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment, describe_difference, model_digest
from ortune.search.experiment.ledger import read_header, write_header
from ortune.search.experiment.parts import BaselineData, Original
from ortune.search.experiment.samples import Feeding

_TIMEOUT_S = 300.0
_RUNS_S = 10.0
"""The original's first runs may take so long at least, and as long as the search at most."""


def prepare_context(
    experiment: Experiment,
    root: Path,
    sink: Sink,
    *,
    on: str = "",
    goal: Goal = FASTEST,
    command: str = "",
    finalists: int = 1,
    by_region: bool = True,
) -> Context:
    """Load models and data, run the baseline, fix the budget; write or check the run's header.

    Args:
        on: The backends to search, as spelled: part of the job.
        finalists: Plans that may be judged on samples that no choice has read; 0 chooses nothing,
            and all samples are scored as one part.

    Raises:
        OrtuneError: Models, data or budget cannot be used, or the folder holds another job's run.
    """
    models, header = experiment.models, read_header(root)
    if header is not None:  # a run that goes on keeps what it began with
        experiment = experiment.leave_out(header.agreement)
        requested_job = replace(header.job, wanted=goal, **_job_settings(experiment, on))
        if experiment.budget is not None and not experiment.evaluate:
            requested_job = replace(requested_job, budget=experiment.budget)
        _refuse_changes(root, describe_difference(header.job, requested_job))
    facts = {n: model_facts.read_facts(file.load(path), read=True) for n, path in models.items()}
    feeding = _read_feeding(experiment, facts, root, header, sink).move_to(root / "data")
    agreement = experiment.agreement or _judge_agreement(experiment, facts, feeding, sink)
    experiment = experiment.leave_out(agreement)
    baseline, deadlines, timeout_s = _measure_original(
        experiment, root, feeding, finalists, header, sink, agreement=agreement
    )
    _keep_side_files(experiment, root)
    feeding = baseline.feeding.with_augmentations(
        experiment.augmentations, root / "data" / "altered", sink
    )
    _announce_baseline(baseline, sink)
    job = Job(
        model=", ".join(map(str, models.values())),
        data_digest=feeding.digest,
        budget=baseline.budget,
        budget_rule=baseline.rule,
        wanted=goal,
        **_job_settings(experiment, on),
    )
    whole = sum_facts(list(facts.values()))
    if header is not None:
        _refuse_changes(root, describe_difference(header.job, job))
        if 0 < header.seconds < experiment.time:
            grown = replace(header, parts=baseline.division, outlook=baseline.outlook)
            write_header(root, replace(grown, seconds=experiment.time))
    else:
        paths = {name: str(path.absolute()) for name, path in models.items()}
        about = Header(job, whole, command, paths, baseline.division, outlook=baseline.outlook)
        about = replace(about, by_operator=baseline.by_operator, by_region=by_region)
        about = replace(about, doubt=baseline.doubt, agreement=agreement, seconds=experiment.time)
        write_header(root, about)
    return Context(
        root=root,
        job=job,
        facts=whole,
        models=models,
        feeds=feeding.streams,
        materials=feeding.materials,
        parts=baseline.parts,
        evaluate=experiment.evaluate,
        timeout_s=timeout_s,
        memory_limit=experiment.memory_limit,
        verbose=experiment.verbose,
        finalists=max(1, finalists),
        watched=baseline.watched,
        doubt=baseline.doubt,
        agreement=agreement,
        provable=baseline.provable,
        yielded=baseline.yielded,
        deadlines=deadlines,
    )


def _judge_agreement(
    experiment: Experiment, facts: Mapping[str, Facts], feeding: Feeding, sink: Sink
) -> SelfAgreement:
    """Compare every original with itself; what one needs left out is left out for all."""
    sink(Progress("comparing the original with itself"))
    limit_s = max(_RUNS_S, experiment.time)
    return join_agreements(
        [
            compare_with_itself(
                *(path, facts[name], feeding.streams[name], experiment.baseline, limit_s),
                environment=experiment.environment,
            )
            for name, path in experiment.models.items()
        ]
    )


def _announce_baseline(baseline: BaselineData, sink: Sink) -> None:
    """Say what is doubtful about the original, its derived budget and what can be proved."""
    budget = shorten_groups(str(baseline.budget))
    derived = f"budget {budget} ({baseline.rule})" if baseline.rule else ""
    for text in filter(None, (baseline.doubt, derived, baseline.outlook)):
        sink(Note(text, warning=text == baseline.doubt))


def _keep_side_files(experiment: Experiment, root: Path) -> None:
    """Copy what lies beside images or a hub's model into the run, for its bundles."""
    model, source = next(iter(experiment.models.values())), experiment.data
    if (settings := hub.find_folder(model)) is not None:
        hub.copy_side_files(settings, root / "hub")
    if not isinstance(source, (str, Path)) or not Path(source).exists():
        return
    data = Path(source)
    beside = (data if data.is_dir() else data.parent) / preprocess.SETTINGS
    if beside.is_file():
        write_text(root / preprocess.SETTINGS, regular_file.read_text(beside))


def _measure_original(
    experiment: Experiment,
    root: Path,
    feeding: Feeding,
    finalists: int,
    header: Header | None,
    sink: Sink,
    *,
    agreement: SelfAgreement,
) -> tuple[BaselineData, Deadlines, float]:
    """Run the original: return what it fixes, deadlines by what it took, and a general one."""
    began = monotonic()
    with _start_worker(experiment, root, feeding.streams, sink) as worker:
        started = wait_until_ready(worker)
        ready_s = monotonic() - began
        runs = worker.ask("burst", at=0, runs=3)["latency_ns"]
        quick = int(min(runs))
        original = Original(
            experiment=experiment,
            worker=worker,
            work=root / "data",
            started=started,
            quick_ns=quick,
            finalists=finalists,
            header=header,
            random=agreement.random,
            sink=sink,
        )
        baseline = original.prepare_baseline(feeding)
        named = ", ".join(path.name for path in experiment.models.values())
        amiss = agreement.describe(named, experiment.baseline, experiment.ignored)
        doubt = "; ".join(text for text in (baseline.doubt, amiss) if text)
        baseline = replace(baseline, doubt=doubt)
        judged_s = monotonic() - began - ready_s
    deadlines = Deadlines.from_baseline(
        started, ready_s, int(median(runs)), judged_s, experiment.workload
    )
    needed = (10 * started.load_ns + 40 * started.first_ns) / 1e9
    return baseline, deadlines, min(_TIMEOUT_S, max(20.0, experiment.time / 3, needed))


class _UserFacingWorker(process.Worker):
    """A worker whose failure is the user's to mend: the original does not run.

    One that something from outside ended raises `CutShort`.
    """

    def ask(self, do: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        try:
            return super().ask(do, timeout_s=timeout_s, **arguments)
        except process.WorkerFailed as error:
            error.demand_verdict()
            reason, fix = error.failure.reason, error.failure.fix
            if f"is not {EVALUATE[0]}" not in reason:
                reason = f"the original does not run: {reason}"
            usual = "check the model, the data and the baseline's backend; -v shows the log"
            if isinstance(error, process.NoAnswer):
                usual += "; more --time, where the command has it, waits longer"
            raise BadData(reason, fix=fix or usual) from None


def _start_worker(
    experiment: Experiment, root: Path, streams: Mapping[str, Path], sink: Sink
) -> process.Worker:
    job = WorkerJob(
        {name: path.absolute() for name, path in experiment.models.items()},
        experiment.baseline,
        {name: path.resolve() for name, path in streams.items()},
        process.worker_folder(root.resolve() / "workers", "setup"),
        Latency(batch=experiment.workload.batch),
        verbose=experiment.verbose,
        environment=experiment.environment,
    )
    runs_s = max(_RUNS_S, experiment.time)  # a model that takes longer cannot be searched in time
    return _UserFacingWorker(
        job,
        timeout_s=_TIMEOUT_S,
        memory_limit=experiment.memory_limit,
        deadlines={"first": runs_s, "burst": runs_s},
        sink=sink,
    )


def _job_settings(experiment: Experiment, on: str) -> dict[str, Any]:
    """Return the fields of a job that are known before any sample is read."""
    offered = process.query_capabilities(experiment.baseline, experiment.environment)
    return {
        "model_digest": model_digest(experiment.models),
        "workload": experiment.workload,
        "baseline": experiment.baseline,
        "on": on,
        "ignored": tuple(sorted(experiment.ignored)),
        "versions": offered.versions,
        "machine": offered.machine,
        "environment": experiment.environment,
    }


def _read_feeding(
    experiment: Experiment,
    facts: Mapping[str, Facts],
    root: Path,
    header: Header | None,
    sink: Sink,
) -> Feeding:
    """Read or record the samples beside those of an earlier run, and check that they agree."""
    draft = root / "data.part"
    shutil.rmtree(draft, ignore_errors=True)
    ranges = experiment.ranges_from  # read before anything is said of the samples
    saved_ranges = (
        None if ranges is None else ranges_file.load_ranges(ranges, experiment.models[MAIN])
    )
    try:
        if experiment.evaluate and experiment.data is None:
            inputs = [spec for entry in facts.values() for spec in entry.inputs]
            require_input_names(inputs, experiment.shapes, experiment.ranges)
            with _start_worker(experiment, root, {}, sink) as worker:
                worker.ask("load")
                feeding = samples.record_calls(experiment, worker, draft)
        else:
            feeding = samples.load_samples(experiment, facts[MAIN], draft, sink, root / "data")
        feeding = feeding.with_ranges(saved_ranges, experiment.augmentations, sink)
        if header is not None:
            requested_job = replace(header.job, data_digest=feeding.digest)
            _refuse_changes(root, describe_difference(header.job, requested_job))
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return feeding


def _refuse_changes(root: Path, changed: str) -> None:
    if changed:
        raise BadSettings(
            f"{root} holds the run of another job: {changed}",
            fix="choose another -o folder, or remove that one",
        )


def sum_facts(facts: Sequence[Facts]) -> Facts:
    """Sum the facts of models that are optimized together."""
    if len(facts) == 1:
        return facts[0]
    ops, precisions = Counter[str](), Counter[str]()
    for entry in facts:
        ops.update(entry.ops)
        precisions.update(entry.precisions)
    flops = [entry.flops for entry in facts]
    return replace(
        facts[0],
        ops=dict(ops),
        precisions=dict(precisions),
        nodes=sum(entry.nodes for entry in facts),
        parameters=sum(entry.parameters for entry in facts),
        weight_bytes=sum(entry.weight_bytes for entry in facts),
        table_bytes=sum(entry.table_bytes for entry in facts),
        opset=min(entry.opset for entry in facts),
        subgraphs=sum(entry.subgraphs for entry in facts),
        functions=sum(entry.functions for entry in facts),
        denormals=max(entry.denormals or 0.0 for entry in facts),
        flops=None if None in flops else sum(f for f in flops if f is not None),
    )
