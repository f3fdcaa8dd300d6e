"""What a measured plan came to: by its time and its scores, under a budget or a step of one."""

import math
from dataclasses import replace

from ortune.core import wording as say
from ortune.core.acceptance import Outcome
from ortune.core.budget import Budget
from ortune.core.study import Study
from ortune.core.trial import Interval, Score, Status, Trial, Verdict

NO_FASTER = str(Outcome.LEVEL)
_ONCE = 1.35
"""A lone block beyond this is slower: so far from the truth is one in a hundred at most, by
``benchmarks/results/abandoned.json``."""


def judge_steps(study: Study) -> tuple[Study, ...]:
    """Return a study judged by each limit of its budget, the strictest first.

    Each has its own `best`; that of the first, which is the study itself, is handed out. A study
    that a looser step judges, or one whose budget is a single limit, is returned alone.
    """
    measure, budget = study.job.workload.measure, study.job.budget
    looser = range(1, len(budget.steps)) if study.step == 0 else ()
    studies = [study]
    for step in looser:
        trials = tuple(judge_by_step(trial, budget, step, measure) for trial in study.trials)
        studies.append(replace(study, step=step, trials=trials))
    return tuple(studies)


def choose_step(study: Study, key: str) -> Study:
    """Return a study by the strictest step that confirms a plan; itself where none does.

    Args:
        key: Start of the key of the plan's trial.
    """
    for judged in judge_steps(study):
        trial = judged.find(key)
        if trial is not None and judged.is_confirmed(trial):
            return judged
    return study


def judge_by_step(trial: Trial, budget: Budget, step: int, measure: str) -> Trial:
    """Return a trial as a step of its budget judges it; 0 is the strictest, by which it is kept.

    Args:
        measure: What its workload is timed by, as in `conclude_trial`.
    """
    score = trial.score
    if not step or score is None or len(score.looser) < step or trial.ratio is None:
        return trial
    judged = replace(trial, scores=(score.looser[step - 1], *trial.scores[1:]))
    return conclude_trial(judged, budget.steps[step], measure, trial.ratio)


def conclude_trial(trial: Trial, budget: Budget, measure: str, sure: Interval) -> Trial:
    """Return a measured trial with the status and the reason that follow from ratio and scores.

    Args:
        measure: What its workload is timed by, such as ``latency``.
        sure: Its latency ratio with the interval that a search sorts by.
    """
    ratio, failed_outputs = trial.ratio or sure, say.list_failed_outputs(trial.scores)
    pairs = trial.measurement.pairs if trial.measurement else ()
    status, why = decide_status(budget, measure, sure, trial.scores)
    if trial.stopped and not trial.scores:
        slower = ratio.low > 1 or ratio.value > _ONCE
        status, why = Status.SLOWER if slower else Status.SCREENED, trial.stopped
    elif pairs and ratio.high == math.inf and status is Status.OK and len(pairs[0].blocks) > 1:
        why = "; ".join([str(Outcome.DISTURBED), *failed_outputs])
    elif status is Status.SLOWER and ratio.low <= 1:
        status, why = Status.LEVEL, "; ".join([NO_FASTER, *failed_outputs])
    if trial.emulated and status in (Status.OK, Status.LEVEL):
        why = "; ".join([str(Outcome.EMULATED), *failed_outputs])
    return replace(trial, status=status, why=why)


def decide_status(
    budget: Budget, measure: str, ratio: Interval, scores: tuple[Score, ...]
) -> tuple[Status, str]:
    """Say what became of a measured plan, and why, in one line; outputs that fell are named."""
    if scores and scores[0].verdict is Verdict.FAILS:
        status, why, score = Status.FAILS, scores[0].basis, scores[0]
        if not budget.admits(score.value, score.base):
            value, bound = say.format_apart(score.value, budget.bound(score.base))
            why = f"{say.shorten_groups(score.metric)} {value} misses the budget of {bound}"
    elif ratio.low > 1:
        status, why = Status.SLOWER, f"slower: {ratio.value:.2f} times the original's {measure}"
    elif not scores:
        status = Status.SCREENED
        why = f"{ratio.value:.2f} times the original's {measure}, not scored"
    elif ratio.high >= 1:
        status, why = Status.OK, NO_FASTER
    else:
        status = Status.OK
        why = f"{1 / ratio.value:.2f}x as fast, accuracy {scores[0].verdict}"
    return status, "; ".join([why, *say.list_failed_outputs(scores)])
