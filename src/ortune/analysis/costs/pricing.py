"""Price a run's folder, or a file of `ortune bench` or `ortune loadtest --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.analysis.costs import terms as reading
from ortune.analysis.costs.cost import Costs, ServingOption, costs
from ortune.analysis.costs.requests import Cost
from ortune.analysis.costs.sources import Priced, joined, read
from ortune.analysis.costs.terms import Terms
from ortune.core import wording
from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Note, Progress, Sink, silent
from ortune.core.fields import paths
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.request import verb
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.concurrency import slowdown

_UNMEASURED = "leave --measure out"


def run(asked: Cost) -> Costs:
    """Price the rows of runs and of files of `ortune bench --json`."""
    amount, currency = reading.read_price(asked.price)
    terms = Terms(
        price_per_hour=amount,
        currency=currency,
        overhead_s=reading.read_overhead(asked.overhead) if asked.overhead else 0.0,
        processes=asked.processes,
        devices=reading.read_devices(asked.gpus) if asked.gpus else (1,),
        load_per_s=reading.read_load(asked.load) if asked.load else None,
        effort_cost=reading.read_effort(asked.effort) if asked.effort else 0.0,
        hours_per_day=asked.hours_per_day,
        within_months=asked.within_months,
    )
    return priced(asked.sources, terms, measure=asked.measure, sink=asked.sink)


cost = verb(Cost, run)


def priced(
    sources: str | Path | Sequence[str | Path],
    terms: Terms,
    *,
    measure: bool = False,
    sink: Sink = silent,
) -> Costs:
    """Price as `cost` does, under terms that are read."""
    found = joined([read(path) for path in paths(sources)])
    together = min(terms.processes, effective_cpus()) if measure else 1
    options = _slowed(found, together, sink) if together > 1 else found.options
    assumed = (*found.notes, *_assumptions(terms, options, together))
    return costs(options, terms, chosen=found.chosen, tuning_s=found.tuning_s, assumptions=assumed)


def _slowed(found: Priced, processes: int, sink: Sink) -> tuple[ServingOption, ...]:
    made = []
    for place, (option, job) in enumerate(zip(found.options, found.jobs, strict=True)):
        sink(Progress("timing processes side by side", place, len(found.jobs)))
        if job is None:
            raise BadData(
                f"'{option.name}' cannot be started again from here",
                fix="leave --measure out, or price the -o folder of an `ortune optimize` alone",
            )
        sink(Note(f"{_processes(processes)} at once: {option.name}"))
        asked = _job(job)
        with TemporaryDirectory(prefix="ortune-") as folder:
            try:
                made.append(replace(option, slowdown=slowdown(asked, processes, Path(folder))))
            except WorkerFailed as error:
                raise OrtuneError(
                    f"'{option.name}' does not run in {_processes(processes)} at once: "
                    f"{error.failure.reason}",
                    fix=_UNMEASURED,
                ) from None
    return tuple(made)


def _job(path: Path) -> WorkerJob:
    """Read what a worker of a run did, to start it again.

    Raises:
        BadData: It is none, or does more than compute: it names code, or folders to import from.
    """
    try:
        data = stored.loads(path.read_text(encoding="utf-8"))
        stored.demand(data, str(path))
        asked = codec.decode(WorkerJob, data)
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read: {error}", fix=_UNMEASURED) from None
    except OrtuneError as error:
        raise BadData(f"{path} cannot be used: {error.what}", fix=_UNMEASURED) from None
    if named := (*stored.code(data), *asked.path):
        raise BadData(f"{path} runs code of its own: {named[0]}", fix=_UNMEASURED)
    return replace(asked, backend=stored.lowered(asked.backend, effective_cpus())[0])


def _processes(count: int) -> str:
    return wording.count(count, "process", "processes")


def _assumptions(terms: Terms, options: Sequence[ServingOption], measured: int) -> tuple[str, ...]:
    found = []
    if terms.processes > 1 and measured <= 1:
        found.append(
            f"{_processes(terms.processes)} at once are assumed to do {terms.processes} times "
            "what one does; not measured (--measure does, up to this machine's CPUs)"
        )
    elif terms.processes > measured > 1:
        found.append(
            f"measured with {_processes(measured)} at once, as many as this machine has CPUs; "
            f"from there to {terms.processes} linear scaling is assumed"
        )
    if max(terms.devices) > 1:
        found.append(f"1 to {max(terms.devices)} GPUs: linear scaling is assumed, not measured")
    if terms.overhead_s:
        found.append("the overhead is taken as given, the same for every row and however many run")
    if terms.load_per_s is not None:
        found.append("machines are counted at full use; a queue that stays short needs some spare")
    if any(option.ratio is None for option in options):
        found.append("rows without an interval were timed in another run than the first row")
    always = "costs a million and per 1,000 FPS-hours are those of a machine that is always busy"
    return (*found, always)
