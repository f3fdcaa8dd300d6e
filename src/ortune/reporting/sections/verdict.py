"""The answer: what to take, how sure that is, and what it rests on."""

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import FASTEST, Outcome
from ortune.core.section import Block, Section, Text
from ortune.core.study import Study
from ortune.core.trial import Trial, Verdict
from ortune.reporting.sections.common.plans import list_doubts

_PARTS = {
    "search": "for the search",
    "final": "for the final check",
    "calibration": "for calibration",
}
_ENDS = {
    "time": "The search used all of its time.",
    "target": "The search stopped at the first plan that reached the target with proved accuracy.",
    "interrupted": "The search was interrupted; the same command continues it.",
}

_JUDGED = {
    Verdict.PROVED: ", proved within the accuracy budget",
    Verdict.LIKELY: ", likely within the accuracy budget, not proved",
    Verdict.UNDECIDED: ", within the accuracy budget or not: too few samples tell",
    Verdict.FAILS: ", outside the accuracy budget",
}


@dataclass(frozen=True)
class VerdictSection(Section):
    """What to take, how sure that is, and what it costs."""

    order: ClassVar[int] = 10
    terminal: ClassVar[bool] = True
    folded: ClassVar[str] = "In words"

    def blocks(self, study: Study) -> Iterable[Block]:
        best = study.best
        if study.header.doubt:
            yield Text(f"{study.header.doubt}.", "warn")
        yield Text(describe_answer(study), _select_tone(study, best))
        # What is faster and not handed out, as too few samples speak for its accuracy.
        for trial in study.undecided[:1]:
            assert trial.score is not None
            speed = say.describe_speedup(trial.shown_ratio)
            change = say.describe_change(study, trial.score)
            needed = say.describe_needed(trial.score)
            text = f"Faster, but not handed out: {study.label(trial.plan)}, {speed}: {change} "
            text += f"(90 % interval); that does not decide it. {needed[0].upper()}{needed[1:]}."
            yield Text(text, "warn")
        goal = study.job.wanted
        if goal.describe_excess(best):
            text = "No plan meets this limit and the accuracy budget without being slower."
            yield Text(text, "warn")
        if goal != FASTEST:
            least = f"the least {goal.prefer} of the plans that are no slower"
            least = "the fastest plan" if goal.prefer == "speed" else least
            yield Text(f"Chosen by: {least} ({goal}).")
        if best.key != study.baseline.key and (meaning := say.explain_verdict(best.score)):
            yield Text(f"Accuracy {meaning}.")
        yield from (Text(line, "warn") for line in list_doubts(study, best))
        if best.key != study.baseline.key and (times := say.describe_latencies(study, best)):
            yield Text(f"{times}.")
        counts = dict(study.counts)
        untried_count = counts.pop(Outcome.UNTRIED)
        parts = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
        tried = (
            f"{say.format_count(sum(counts.values()), 'plan')} "
            f"tried{': ' + parts if parts else ''}"
        )
        link = f"{untried_count} {Outcome.UNTRIED}"
        tried += f"; {link}." if untried_count else "."
        links = ((link, "untried"),) if study.ending.left_out else ()
        yield Text(f"{tried} {_ENDS.get(study.finished, '')}".strip(), links=links)
        pack = f"ortune pack {shlex.quote(study.root)} -o model.ortune"
        for trial in study.unconfirmed:  # it looked faster, and is not handed out
            speed = f"{say.describe_speedup(trial.shown_ratio)}, measured once"
            how = f"({pack} --plan {trial.key[:8]} --unconfirmed)"
            yield Text(f"Not re-measured: {study.label(trial.plan)}, {speed} {how}.", "warn")
        made_up = study.samples.get("calibration") == 0  # nothing is calibrated on such samples
        budget = say.shorten_groups(str(study.budget))
        rule = f", derived: {study.job.budget_rule}" if study.job.budget_rule else ", as given"
        samples = ((_PARTS.get(part, part), number) for part, number in study.samples.items())
        parts = ", ".join(f"{number:,} {purpose}" for purpose, number in samples if number)
        yield Text(
            f"Accuracy budget: {budget}{rule}. Original on {study.job.baseline}."
            + f" {'Made-up samples' if made_up else 'Samples'}: {parts}." * bool(parts)
        )
        if made_up and study.header.facts.has_float_layers:
            yield Text(
                "No data was given, so nothing was quantized: with --data SAMPLES plans of lower "
                "precision are tried too, which are often much faster.",
                "warn",
            )
        for score in best.scores[1:]:
            if math.isfinite(score.base):
                values = f"{say.format_score_value(score.base)} -> "
                values += say.format_score_value(score.value)
                count = say.format_count(score.samples, "sample")
                yield Text(f"Beside it: {say.shorten_metric(score.metric)} {values} ({count}).")
        yield from (
            Text(f"Not decisive: {text}.", "warn") for text in say.list_failed_outputs(best.scores)
        )


def describe_answer(study: Study) -> str:
    """Return the study's result as one line; what could not be tried is not called slower."""
    answer = _describe_best(study)
    if causes := dict.fromkeys(str(trial.interruption) for trial in study.cut_short):
        tried = {trial.key for trial in study.trials} - {study.baseline.key}
        plans = len({trial.key for trial in study.cut_short})
        count = f"{plans} of {say.format_count(len(tried), 'plan')}"
        answer += f"; {count} could not be tried to the end: {', '.join(causes)}"
    return answer


def _describe_best(study: Study) -> str:
    best = study.best
    if best.key == study.baseline.key:
        if over := study.job.wanted.describe_excess(best):
            return f"the original stays, but misses a limit: {over}"
        if len(say.list_latest_trials(study)) == 1:
            return "the original stays: no plan was tried"
        return f"the original stays: {explain_no_plan(study)}"
    speed = study.speedup(best)
    plain = str(study.job.workload) == "latency"
    under = "" if plain else f" under {study.job.workload}"
    times = f"{say.format_speedup(speed)} as fast as the original{under}"
    faster = f"{times} (99 % interval {say.format_span(speed)})"
    saved, prefer = "", study.job.wanted.prefer
    if prefer != "speed":
        least, most = (
            say.format_megabytes(trial.size)
            if prefer == "size"
            else say.format_measurement(trial, "peak_rss")
            for trial in (best, study.baseline)
        )
        saved = f"{prefer} {least} of {most} MB, "
    accuracy, score = "accuracy not scored", best.score
    if score is not None:
        accuracy = say.describe_scores(study, score)
        accuracy += _JUDGED.get(score.verdict, "") if score.verdict else ""
    return f"{saved}{faster} by {study.label(best.plan)}; {accuracy}"


def explain_no_plan(study: Study) -> str:
    """Say why no plan is handed out, as weakly as it is known."""
    if study.job.emulated:
        return (
            f"the CPU is emulated by {study.job.emulated}, and its times say nothing of a real one"
        )
    if study.too_noisy:
        return "the machine was too noisy to tell any plan from the original"
    if study.undecided:
        return "too few samples show that a faster plan is within the accuracy budget"
    if study.unconfirmed:
        return "no faster plan was re-measured yet"
    plans = [trial for trial in study.trials if trial.key != study.baseline.key]
    if study.finished == "time" and not any(plan.ratio for plan in plans):
        return "no plan was measured in the time (--time)"
    prefer = study.job.wanted.prefer
    ended = {trial.key for trial in study.cut_short}
    if ended >= {trial.key for trial in study.trials} - {study.baseline.key}:
        return "no other plan could be tried to the end"
    other = "no other plan" if ended else "no plan"
    if prefer != "speed":
        return f"{other} with less {prefer} was within the accuracy budget and no slower"
    return f"{other} within the accuracy budget was faster by more than the noise"


def _select_tone(study: Study, best: Trial) -> str:
    """Return the colour of the whole claim: good only where nothing in it is in doubt."""
    if best.key == study.baseline.key:
        doubtful = bool(study.job.emulated or study.ending.too_noisy or study.cut_short)
        return "warn" if doubtful or study.job.wanted.describe_excess(best) else "plain"
    proved = best.score is not None and best.score.verdict is Verdict.PROVED
    doubtful = bool(list_doubts(study, best) or study.cut_short)
    return "warn" if doubtful or not proved else "good"
