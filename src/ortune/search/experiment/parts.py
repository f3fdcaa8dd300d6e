"""Run the original: the budget first, then the parts of the data, then its own scores."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortune.core import hub
from ortune.core import wording as say
from ortune.core.budget import Budget
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.metric import Kind, Metric
from ortune.core.plugins import codec
from ortune.core.session import Tensors
from ortune.core.study import Header
from ortune.core.workload import spread_indices
from ortune.data import derive, split
from ortune.data.classes import FROM_FOLDERS
from ortune.data.feeds import Feeds, digest_sample
from ortune.data.sequences.rolling import match_states
from ortune.data.stream import Stream
from ortune.measurement.accuracy import ERROR, count_provable_samples, warn_coarse_budget
from ortune.measurement.job import MAIN
from ortune.measurement.process import Worker, keep_outputs
from ortune.measurement.timing.operators import operator_shares, record_kernels
from ortune.measurement.timing.turns import StartupTimes
from ortune.search.experiment import budget as budgeting
from ortune.search.experiment import context, samples
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.samples import CALIBRATION, Division, Feeding

_LOOKED_AT = 64  # samples, spread over all, that the budget is fixed by before they are divided
_SHARE = 40  # scoring one plan on a part takes at most this fraction of the time budget (1/40)
_SCORING_S = 300.0  # scoring a part of the data may take so long at least
_RECORDING_S, _SLOWER = 10.0, 20
"""Its runs on all samples may take so long at least, or so many times as long as on the first."""
_PROFILED = 0.02  # share of the time budget that the profile by operator may take
_SEARCHED = 2  # finalists from which on plans are searched for, not only compared
_NOUNS = {"final": "held-out"}
_FINAL = 4  # the part that few plans are scored on may take so many times as long


@dataclass(frozen=True)
class BaselineData:
    """What is fixed before the first candidate.

    Attributes:
        division: Part -> indices of samples, `CALIBRATION` among them.
        parts: ``search`` and ``final``, scored; ``search`` alone where nothing is chosen.
        yielded: The group of each sample of an evaluate function; None of one without groups.
        by_operator: Operator -> its share of the original's time; empty where nothing is searched
            for, or no profile was taken.
        doubt: What is to be said before anything else of labels or of the original's score.
        provable: Something can be proved against the original.
    """

    feeding: Feeding
    budget: Budget
    rule: str
    division: Division
    parts: Mapping[str, context.ScoredPart]
    watched: tuple[Budget, ...] = ()
    outlook: str = ""
    yielded: tuple[str | None, ...] | None = None
    by_operator: Mapping[str, float] = field(default_factory=dict)
    doubt: str = ""
    provable: bool = True


@dataclass(frozen=True)
class Original:
    """The loaded original, and what is asked of it.

    Attributes:
        started: What it took until it had answered once.
        finalists: Plans that may be judged on samples that no choice has read; 0 chooses nothing.
        random: Outputs that differ between two runs on one sample.
    """

    experiment: Experiment
    worker: Worker
    work: Path
    started: StartupTimes
    quick_ns: int
    finalists: int
    header: Header | None
    sink: Sink
    random: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The chance of a false proof that one plan may take."""
        return ERROR / max(1, self.finalists)

    @property
    def scoring_timeout_s(self) -> float:
        """Seconds that scoring a part may take."""
        return max(_SCORING_S, self.experiment.time)

    def prepare_baseline(self, feeding: Feeding) -> BaselineData:
        """Fix the budget, divide the samples, score the original on them and profile it.

        Raises:
            OrtuneError: The budget cannot be read or scored, or the original does not run.
        """
        data = (
            self._by_function(feeding) if self.experiment.evaluate else self._by_samples(feeding)
        )
        parts = context.list_evaluation_parts(data.parts)
        doubt, provable = budgeting.validate_budget(data.budget, parts)
        doubt = "; ".join(text for text in (data.doubt, doubt) if text)
        if doubt and feeding.feeds is not None:
            numbering = [text for text in feeding.feeds.notes if text.startswith(FROM_FOLDERS)]
            doubt = "; ".join([doubt, *numbering])
        by_operator = self._by_operator()
        return replace(
            data, doubt=doubt, provable=data.provable and provable, by_operator=by_operator
        )

    def _by_operator(self) -> Mapping[str, float]:
        """Profile the original for a moment, the last that its process does.

        A run that goes on keeps what it began with; where it cannot be done a search goes without.
        """
        if self.header is not None:
            return self.header.by_operator
        if self.finalists < _SEARCHED or len(self.experiment.models) > 1:
            return {}
        folder, seconds = self.work / "profile", _PROFILED * self.experiment.time
        times = {"load_ns": self.started.load_ns, "run_ns": self.quick_ns}
        try:
            return operator_shares(record_kernels(self.worker, folder, seconds=seconds, **times))
        except OrtuneError as error:  # a worker that dies says so too
            self.sink(Note(f"the original is not profiled: {error.what}"))
            return {}

    def _by_samples(self, feeding: Feeding) -> BaselineData:
        feeds = feeding.feeds
        assert feeds is not None
        looked = spread_indices(feeds.count, min(_LOOKED_AT, self._sample_limit))
        outputs = self._record_outputs(looked, "looked")
        labels = None if feeds.labels is None else [feeds.labels[i] for i in looked]
        earlier = self.header.job if self.header is not None else None
        inputs = Stream(feeding.streams[MAIN]).__getitem__
        seen = [inputs(at) for at in looked]
        settings = hub.find_folder(self.experiment.models[MAIN])
        if self.experiment.budget is None and earlier is not None and earlier.budget_rule:
            budget, rule = earlier.budget, earlier.budget_rule
        else:
            budget, rule = budgeting.budget_for(
                self.experiment.budget, outputs, labels, seen[0], settings
            )
        doubt, unused = "", labels is not None and not budget.metric.needs_labels
        if self.experiment.budget is None and labels is not None and unused:
            looked_outputs = {name: [out[name] for out in outputs] for name in outputs[0]}
            doubt = derive.describe_unused_labels(looked_outputs, labels)
        metric = budget.metric
        groups = _find_shared_groups(feeds)
        places = range(len(looked))
        part = context.make_scored_part(
            "looked", places, outputs, metric, labels=labels, inputs=seen.__getitem__
        )
        needed = count_provable_samples(
            budget, part.records, self.error, grouped=groups is not None
        )
        read = metric.reads(outputs[0], None if labels is None else labels[0])
        beside = set(self.experiment.ignored) - set(self._unrecorded)
        if settings is not None and settings.task == hub.GENERATION:
            # What an error in the cache does shows in the logits of later tokens.
            beside |= {pair.output for pair in match_states(seen[0], outputs[0])}
        watched = tuple(
            limit
            for limit in make_output_limits(metric, outputs, labels, sorted(beside))
            if getattr(limit.metric, "output", "") not in self.random
        )
        division = self._divide_samples(feeding, feeds, needed)
        parts = {}
        for name in ("search", "final"):
            if name in division:
                expected = self._record_outputs(division[name], f"expected-{name}")
                parts[name] = context.make_scored_part(
                    name,
                    division[name],
                    expected,
                    metric,
                    labels=feeds.labels,
                    groups=groups,
                    inputs=inputs,
                )
        parts = _mark_proof(parts, feeds)
        summary = "" if feeds.synthetic else self._describe_outlook(budget, needed, feeds, parts)
        return BaselineData(
            feeding.with_calibration_part(division),
            budget,
            rule,
            division,
            parts,
            watched,
            summary,
            doubt=doubt,
            provable=not read & set(self.random),
        )

    @property
    def _sample_limit(self) -> int:
        """How many samples one plan may be scored on."""
        return max(20, int(self.experiment.time * 1e9 / _SHARE / max(self.quick_ns, 1)))

    @property
    def _unrecorded(self) -> tuple[str, ...]:
        """Random outputs that are ignored, and that no budget names: nothing compares them."""
        budget = self.experiment.budget
        named = "" if budget is None else getattr(budget.metric, "output", "")
        ignored = self.experiment.ignored
        return tuple(name for name in self.random if name in ignored and name != named)

    def _record_outputs(self, indices: Sequence[int], name: str) -> Stream:
        path = self.work / f"{name}.stream"
        usual_s = len(indices) * self.quick_ns / 1e9
        limit_s = max(_RECORDING_S, self.experiment.time, _SLOWER * usual_s)
        outputs = keep_outputs(self.worker, indices, path, limit_s, without=self._unrecorded)
        if not outputs[0]:
            raise BadSettings(
                "every output is random and ignored: nothing is left to compare",
                fix=f"leave --ignore-output {self._unrecorded[0]} out",
            )
        return outputs

    @property
    def _has_more_time(self) -> bool:
        """Whether a run goes on with more time than it ever had: its parts may grow."""
        return self.header is not None and 0 < self.header.seconds < self.experiment.time

    def _divide_samples(self, feeding: Feeding, feeds: Feeds, needed: int | None) -> Division:
        stored = None if self.header is None else self.header.parts
        if stored is not None and not self._has_more_time:
            return stored
        if not self.finalists:
            return {"search": tuple(range(feeds.count))}
        split_parts = self._split_samples(feeds, feeding.calibration, needed)
        division = {"search": split_parts.search, "final": split_parts.final}
        division[CALIBRATION] = () if feeds.synthetic else split_parts.calibration
        longest = dict.fromkeys(division, self._sample_limit)
        longest["final"] = _FINAL * self._sample_limit
        thinned = split.extend_parts(stored or {}, division, longest)
        if thinned is None:
            assert stored is not None
            self.sink(
                Note(
                    "the samples stay split as when this run began; the budget would now need "
                    "another split: use another -o folder for that"
                )
            )
            return stored
        for name, part in division.items():
            if len(thinned[name]) < len(part):
                scale = longest[name] / self._sample_limit
                enough_s = len(part) / scale * _SHARE * self.quick_ns / 1e9
                used = f"{len(thinned[name]):,} of {len(part):,} {_NOUNS.get(name, name)} samples"
                time_s = f"{self.experiment.time:.0f} s suffice"
                minutes = math.ceil(enough_s / 60)
                enough = f"{math.ceil(enough_s)}s" if enough_s < 100 else f"{minutes}m"
                more = f"--time {enough} uses all"
                self.sink(Note(f"using {used} so that {time_s} ({more})"))
        return thinned

    def _split_samples(
        self, feeds: Feeds, calibration: Feeds | None, needed: int | None
    ) -> split.Parts:
        split_parts = split.split_samples(feeds, calibration, needed)
        for text in split_parts.notes:
            self.sink(Note(text))
        return split_parts

    def _by_function(self, feeding: Feeding) -> BaselineData:
        function = self.experiment.evaluate
        if self.experiment.ignored:
            raise BadSettings(
                "--ignore-output has no effect with --evaluate, whose function chooses what it "
                "scores",
                fix="leave it out",
            )
        answer = self.worker.ask("evaluate", function=function, timeout_s=self.scoring_timeout_s)
        records = context.to_record_array(answer["records"][0])
        budget, rule = budgeting.budget_for_evaluate(function, self.experiment.budget)
        yields: Feeds | None = None
        if (yielded := answer.get("groups")) is not None:  # a generator's samples, to be divided
            streams = feeding.streams if feeding.ends else {}
            count, calls = len(yielded), {name: Stream(path) for name, path in streams.items()}
            ends, digests = answer["ends"], []
            for at in range(count):
                inputs: list[object] = [
                    [name, digest_sample(stream[call])]
                    for name, stream in calls.items()
                    for call in range(ends[name][at - 1] if at else 0, ends[name][at])
                ]
                digests.append(codec.digest(inputs or [at]))  # without any it is like no other
            named = [f"no group, sample {at}" if g is None else g for at, g in enumerate(yielded)]
            joined = None if len(set(named)) == count else tuple(named)
            yields = Feeds(Path(), count, tuple(digests), None, joined)
        groups = None if yields is None else _find_shared_groups(yields)
        needed = None
        if yields is not None:
            needed = count_provable_samples(
                budget, records, self.error, grouped=groups is not None
            )
        division = self._divide_records(feeding, yields, len(records), needed)
        parts = {
            name: context.ScoredPart(
                name,
                division[name],
                None,
                records[list(division[name])],
                groups=None if groups is None else tuple(groups[i] for i in division[name]),
            )
            for name in ("search", "final")
            if name in division
        }
        if yields is not None:
            parts = _mark_proof(parts, yields)
        return BaselineData(
            feeding.with_calibration_part(division),
            budget,
            rule,
            division,
            parts,
            outlook=self._describe_outlook(budget, needed, yields, parts),
            yielded=None if yielded is None else tuple(yielded),
        )

    def _divide_records(
        self, feeding: Feeding, yields: Feeds | None, count: int, needed: int | None
    ) -> Division:
        if not self.finalists:
            return {"search": tuple(range(count))}
        user_calibration = (
            None
            if feeding.feeds is None
            else split.split_samples(feeding.feeds, feeding.calibration).calibration
        )
        if yields is None:
            cut = samples.record_parts(count)
            return cut if user_calibration is None else {**cut, CALIBRATION: user_calibration}
        if self.header is not None:
            return self.header.parts
        apart = (
            None if user_calibration is None else replace(yields, count=0, digests=(), groups=None)
        )
        split_parts = self._split_samples(yields, apart, needed)
        calibration = split_parts.calibration if user_calibration is None else user_calibration
        return {"search": split_parts.search, "final": split_parts.final, CALIBRATION: calibration}

    def _describe_outlook(
        self,
        budget: Budget,
        needed: int | None,
        feeds: Feeds | None,
        parts: Mapping[str, context.ScoredPart],
    ) -> str:
        """Say how many samples are held out, whether they prove the budget, and how many would.

        Where nothing is chosen it is empty; it is said once for a run.

        Args:
            needed: Independent samples that prove an unchanged answer; None when none do.
            feeds: The samples; None with an evaluate function that returns a list.
        """
        if self.header is not None and self.header.outlook and not self._has_more_time:
            return self.header.outlook
        if not self.finalists:
            return ""
        searched, final = parts["search"].indices, parts["final"].indices
        scored = len(set(searched) | set(final))
        fine = warn_coarse_budget(budget, scored, parts["search"].records)
        if feeds is None:
            return "; ".join(filter(None, (_LIST, fine)))
        independent = split.count_independent(feeds, range(feeds.count))
        noun, samples = "sample", say.format_count(feeds.count, "sample")
        if independent < feeds.count:
            noun = "different sample" if feeds.groups is None else "group"
            different = "different ones" if feeds.groups is None else "independent groups"
            samples = f"{samples} in {independent:,} {different}"
        shared = not set(final).isdisjoint(searched)
        proof_count = 0 if shared else split.count_independent(feeds, final)
        text = f"{samples}: {proof_count or 'none'} {'is' if proof_count < 2 else 'are'} held out"
        if needed is None:
            text += f"; {budget} cannot be proved by samples"
        elif proof_count >= needed:
            text += ", enough to prove the accuracy budget if none of them shows a loss"
        else:
            least = split.compute_split_minimum(needed)
            # Of groups it is exact where they are of one size.
            about = "about " if noun == "group" and budget.metric.kind() is not Kind.SHARE else ""
            more = f"{about}{say.format_count(least, noun)}"
            more = "more --time" if independent >= least else more
            text += f", too few to prove the accuracy budget; {more} would let it be proved"
        return "; ".join(filter(None, (text, fine)))


def _find_shared_groups(feeds: Feeds) -> tuple[str, ...] | None:
    """Return the groups; None where none has two samples."""
    groups = feeds.groups
    return None if groups is None or len(set(groups)) == len(groups) else groups


def _mark_proof(
    parts: Mapping[str, context.ScoredPart], feeds: Feeds
) -> dict[str, context.ScoredPart]:
    """Mark samples that differ, and as proof those of them in a part that no choice read."""
    marked = {
        name: replace(part, different=split.find_distinct(feeds, part.indices))
        for name, part in parts.items()
    }
    last = list(parts)[-1]
    shared = set(parts["search"].indices) & set(parts[last].indices)
    if last == "search" or not shared:
        marked[last] = replace(marked[last], proof=marked[last].different or ())
    return marked


_LIST = (
    "--evaluate returns a list, whose samples cannot be kept apart: accuracy cannot be proved; "
    "a generator that yields (record, group) lets it be proved"
)


_ASKED = 8  # samples on which a metric is asked what it reads


def make_output_limits(
    metric: Metric,
    outputs: Sequence[Tensors],
    labels: Sequence[Any] | None,
    ignored: Sequence[str],
) -> tuple[Budget, ...]:
    """Return a limit for every output that a metric does not read and nobody ignores.

    One whose values in the original are no numbers has none.

    Raises:
        BadSettings: An ignored output does not exist.
    """
    names = list(outputs[0])
    for name in ignored:
        if name not in names:
            raise BadSettings(
                f"--ignore-output {name}: the model has no such output",
                fix=f"use one of: {', '.join(names)}",
            )
    read = set(ignored)
    for at in range(min(_ASKED, len(outputs))):
        read |= metric.reads(outputs[at], None if labels is None else labels[at])
    budgets = []
    for name in names:
        if name not in read:
            with suppress(OrtuneError):
                budget, _ = derive.derive_budget({name: [tensors[name] for tensors in outputs]})
                output_metric = codec.build_dataclass(
                    type(budget.metric), vars(budget.metric) | {"output": name}
                )
                budgets.append(replace(budget, metric=output_metric))
    return tuple(budgets)
