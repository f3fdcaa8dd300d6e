"""After a search: the leading plans at other batches, timed beside the original at each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Note, Sink, TrialStarted
from ortune.core.facts import Facts
from ortune.core.study import Study
from ortune.core.trial import Interval, Score, Status, Trial
from ortune.core.wording import count
from ortune.data.batches import check
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import BaselineFailed, Effort, claiming, time_pair
from ortune.measurement.timing.turns import Started, ready
from ortune.search.batch_rows import own_batch
from ortune.search.compare import apart, finalists
from ortune.search.experiment import measure
from ortune.search.experiment.build import build_all
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import Ledger
from ortune.search.request import Optimize


@dataclass
class AtBatch:
    """One batch: the trials so far, and how plans become more of them."""

    batch: int
    context: Context
    ledger: Ledger
    pair_seconds: float
    sink: Sink

    def __post_init__(self) -> None:
        self._effort = Effort(seconds=self.pair_seconds, decide=False, burst=0.1)

    @contextmanager
    def live(self) -> Iterator[tuple[Worker, Started]]:
        """Start the original. Raises WorkerFailed: it does not run at this batch."""
        context = self.context
        baseline = context.job.baseline
        with measure.start(context, context.models, baseline, "baseline") as worker:
            yield worker, ready(worker)

    def original(self, trial: Trial, live: Worker) -> None:
        """Time the original against itself: what this batch calls equal."""
        with self.live() as (worker, started):
            pair = time_pair(live, worker, self._effort)
        made = measure.measurement(started, [pair])
        self._record(replace(trial, measurement=made, ratio=Interval(1.0, 1.0, 1.0)))

    def look(self, trial: Trial, live: Worker) -> Trial:
        """Time a plan in one pair; whatever happens is a trial.

        One that was never scored, as it was slower at the search's batch, is scored if it is not
        slower here.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        self.sink(TrialStarted(trial.plan, f"batch {self.batch}"))
        seen = measure.attempt(
            self.context,
            trial.key,
            trial.plan,
            build_all(self.context, trial.plan, self.sink),
            self.context.parts["search"],
            live,
            self._effort,
            self.sink,
            scored="never" if trial.scores else "unless slower",
        )
        scores = () if seen.status is Status.FAILED else seen.scores or trial.scores
        made = replace(seen, scores=scores, stage=trial.stage, proposed=trial.proposed)
        learnt = measure.learnt(self.ledger.trials, but=trial.key)
        return self._record(measure.concluded(self.context, made, learnt))

    def confirm(self, trial: Trial) -> Trial:
        """Time a plan in fresh pairs; its accuracy is as it was scored.

        Raises:
            OrtuneError: Its model cannot be built any more.
        """
        self.sink(TrialStarted(trial.plan, f"batch {self.batch}"))
        files = build_all(self.context, trial.plan, self.sink)
        learnt = measure.learnt(self.ledger.trials, but=trial.key)
        effort = claiming(self.pair_seconds)
        made = measure.finalist(
            *(self.context, trial, files, stats.PAIRS, effort, self.sink, learnt),
            known=trial.scores,
        )
        return self._record(replace(made, stage=trial.stage, proposed=trial.proposed))

    def _record(self, trial: Trial) -> Trial:
        self.ledger.append(trial)
        said = trial.why if trial.ratio is None else f"{trial.ratio}"
        self.sink(Note(f"batch {self.batch}: {trial.plan}: {said}"))
        return trial


SHARE = 0.3
"""Of the time: what the batches get; the search has the rest."""
LEADERS = 4
"""Plans that are timed at every batch beside the original, each another recipe or backend."""
_FIRST = 2
"""Of these, timed at all batches before the others are at any."""


def demand(asked: Optimize, facts: Facts) -> None:
    """Refuse batches that the model, the data or the workload cannot have: raise BadSettings."""
    if asked.evaluate:
        raise BadSettings(
            "--batches stacks samples, and --evaluate makes its own calls",
            fix="leave out --batches, or give --data in place of --evaluate",
        )
    if asked.max_latency is not None and asked.driven.measure != "latency":
        raise BadSettings(
            f"--max-latency is of one run, and {asked.driven.name()} measures "
            f"{asked.driven.measure}",
            fix="leave out --max-latency, or use --workload latency",
        )
    try:
        check(max(asked.batches), facts.inputs)
    except BadData as error:
        fix = error.fix.replace("--batch ", "--batches ")
        raise BadSettings(error.what, fix=fix) from None


def leading(study: Study) -> list[Trial]:
    """Return the plans worth timing at other batches: the winner, then the fastest others.

    One of each recipe and kind of backend. A plan that is slower at the search's own batch may
    lead at another; what fails the budget or breaks a bound may not.
    """
    latest = {t.key: t for t in study.trials if t.key != study.baseline.key}
    last = [t for t in latest.values() if t.ratio is not None and study.job.wanted.fits(t)]
    fit = [t for t in last if t.status not in (Status.FAILS, Status.FAILED)]
    ranked = sorted(fit, key=lambda t: (t.key != study.best.key, t.ratio.value if t.ratio else 1))
    found: dict[tuple[str, type], Trial] = {}
    for trial in ranked:
        found.setdefault((trial.plan.recipe.key, type(trial.plan.backend)), trial)
    return list(found.values())[:LEADERS]


@dataclass
class Sweep:
    """Times leading plans at batches, and confirms the best of each in fresh pairs."""

    context: Context
    study: Study
    left: Callable[[], float]
    sink: Sink
    pair_seconds: float = 1.0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._longest: dict[str, float] = {}
        self._scores: dict[str, tuple[Score, ...]] = {}

    def run(self, batches: Sequence[int]) -> None:
        """Look at every batch once, then confirm as far as time goes: leaders, then rivals."""
        plans = leading(self.study)
        every = [self._at(batch) for batch in batches if batch != own_batch(self.study)]
        timed = [one for one in every if self._looked(one, plans[:_FIRST])]
        timed = [one for one in timed if self._looked(one, plans)]
        unsure = [one for one in timed if not self._confirmed(one, rival=False)]
        unsure += [one for one in timed if not self._confirmed(one, rival=True)]
        if unsure:
            sizes = ", ".join(map(str, sorted({one.batch for one in unsure})))
            self._note(f"time is up, not confirmed in fresh pairs: what leads at batch {sizes}")

    def _at(self, batch: int) -> AtBatch:
        root = self.context.root / "batches" / str(batch)
        root.mkdir(parents=True, exist_ok=True)
        workload = replace(self.context.job.workload, batch=batch)
        context = replace(self.context, job=replace(self.context.job, workload=workload))
        return AtBatch(batch, context, Ledger(root), self.pair_seconds, self.sink)

    def _looked(self, one: AtBatch, plans: Sequence[Trial]) -> bool:
        """Time the original and the plans once; say whether any plan could be timed."""
        left = [t for t in plans if one.ledger.find(t.key, "search") is None]
        if left and not self._late(one, left):
            try:
                with one.live() as (live, _):
                    if not one.ledger.trials:
                        one.original(self.study.baseline, live)
                    for place, trial in enumerate(left):
                        if place and self._late(one, left[place:]):
                            break
                        known = replace(trial, scores=self._scores.get(trial.key, trial.scores))
                        with self._timing("look"):
                            seen = one.look(known, live)
                        self._scores[trial.key] = seen.scores
            except WorkerFailed as error:
                why = error.failure.reason
                self._note(f"the original does not run at batch {one.batch}: {why}")
        return len(one.ledger.trials) > 1

    def _late(self, one: AtBatch, left: Sequence[Trial]) -> bool:
        """Whether there is no time to look at one more plan; it is noted."""
        if self._may("look"):
            return False
        plans = count(len(left), "plan")
        self._note(f"time is up, not timed at batch {one.batch}: {plans}")
        return True

    def _confirmed(self, one: AtBatch, *, rival: bool) -> bool:
        """Re-measure in fresh pairs who leads at a batch, or who leads at the search's own.

        A rival is what the leader must be apart from, for it to be said that they cross.
        """
        trials = one.ledger.trials
        lead = next(iter(finalists(trials, one.context.job.wanted)), None)
        if lead is None:
            return True
        if rival:
            known = one.ledger.find(lead.key, "final") or lead
            other = one.ledger.find(self.study.best.key, "search")
            if other is None or other.key in (lead.key, trials[0].key) or apart(known, other):
                return True
            lead = other
        if lead.ratio is None or one.ledger.find(lead.key, "final") is not None:
            return True
        if not self._may("confirm"):
            return False
        try:
            with self._timing("confirm"):
                one.confirm(lead)
        except BaselineFailed as error:
            self._note(f"the original failed at batch {one.batch}: {error.failure.reason}")
        return True

    def _may(self, kind: str) -> bool:
        return self.left() > self._longest.get(kind, 0.0)

    @contextmanager
    def _timing(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._longest[kind] = max(self._longest.get(kind, 0.0), time.monotonic() - began)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.sink(Note(text))
