"""Plans that are timed at once on several devices alike, one on each.

Only the timing runs in threads, each with a device to itself; plans are built and recorded by the
thread of the search.
"""

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Self

from ortune.core.backend import Backend
from ortune.core.errors import Interruption, OrtuneError
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.trial import Proposal, Trial
from ortune.measurement.devices import LEASES, Lease, bind_device
from ortune.measurement.process import WorkerFailed, query_capabilities
from ortune.measurement.timing.pairs import Stop
from ortune.search.experiment.evaluate import Attempts, BuiltPlan, measure_unless_lost


class TimingsAtOnce:
    """Use as a context manager: what is still timed when it ends is given up, and is no trial.

    With one device, or none, a plan is timed where it is tried, and none is ever pending.
    """

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._pending: dict[Future[tuple[Trial | None, float]], tuple[BuiltPlan, Lease]] = {}
        self._lost: Lease | None = None  # its connection broke in the last timing that came in
        self._threads = ThreadPoolExecutor(max(1, len(LEASES.get())))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for work in [work for work in self._pending if work.done()]:
            with suppress(WorkerFailed):
                self._receive(work)
        for _, lease in self._pending.values():
            lease.release()  # ends what runs there
        self._threads.shutdown()

    @property
    def pending(self) -> list[tuple[Proposal, Trial]]:
        """What is timed now, each with what is known of its trial."""
        return [(built.proposal, built.trial) for built, _ in self._pending.values()]

    @property
    def full(self) -> bool:
        """Whether every device is timing."""
        return bool(self._pending) and len(self._pending) >= len(LEASES.get())

    def try_plan(self, proposal: Proposal, stop: Stop, build_s: float) -> list[Trial]:
        """Try a plan unless `full`; return its trial, or none where it is pending or waits.

        It waits, and may be proposed again, while one that builds to the same model is timed.
        """
        if len(LEASES.get()) < 2:
            return [self._attempts.try_plan(proposal, stop=stop, build_s=build_s)]
        built = self._attempts.build_plan(proposal, stop=stop, build_s=build_s)
        if isinstance(built, Trial):
            return [built]
        model = built.trial.content, proposal.plan.backend
        if model[0] and any((t.content, t.plan.backend) == model for _, t in self.pending):
            return self.collect()
        timing = [lease for _, lease in self._pending.values()]
        free = next(lease for lease in LEASES.get() if lease not in timing)
        work = self._threads.submit(bind_device(free).run, _time_plan, built)
        self._pending[work] = built, free
        return []

    def collect(self) -> list[Trial]:
        """Wait for a timing; return the trials that have come in, recorded."""
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        return [trial for work in done if (trial := self._receive(work)) is not None]

    def _receive(self, work: Future[tuple[Trial | None, float]]) -> Trial | None:
        """Record a trial; None where its connection broke: the plan may be proposed again.

        A device on which that happens twice on end is left out, where there is another.
        """
        built, lease = self._pending.pop(work)
        trial, ended = work.result()
        if trial is not None:
            self._lost = None if self._lost is lease else self._lost
            trial = replace(trial, device=lease.device.name)
            return self._attempts.record_plan(built, trial, ended)
        self._attempts.end_baseline(lease)
        remaining = tuple(other for other in LEASES.get() if other is not lease)
        note = f"{lease.device.name}: {Interruption.LINK}"
        if self._lost is lease and remaining:
            LEASES.set(remaining)
            note = f"{note} again, and it is left out"
        self._lost = lease
        self._attempts.add_note(note)
        return None


def leave_out_unlike(backend: Backend, environment: str, sink: Sink) -> None:
    """Leave out, with a note, devices that are not reached or are another kind of machine."""
    leases = LEASES.get()
    if len(leases) < 2:
        return
    first_offer, alike = query_capabilities(backend, environment), leases[:1]
    for lease in leases[1:]:
        why = f"its CPU or packages are not those of {leases[0].device.name}"
        try:
            offer = bind_device(lease).run(query_capabilities, backend, environment)
            if (offer.machine, offer.versions) == (first_offer.machine, first_offer.versions):
                alike += (lease,)
                continue
        except OrtuneError as error:
            why = error.what
        lease.release()
        sink(Note(f"{lease.device.name} is left out: {why}", warning=True))
    LEASES.set(alike)


def _time_plan(built: BuiltPlan) -> tuple[Trial | None, float]:
    """Time a plan, unless the device is lost; return when that ended too."""
    return measure_unless_lost(partial(built.measure, ignore_event)), perf_counter()
