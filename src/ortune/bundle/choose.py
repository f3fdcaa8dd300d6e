"""Choose the trials that a bundle holds, and their order: the one to run first."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.study import Study
from ortune.core.trial import Status, Trial
from ortune.engine.manifest import MOST_PLANS


def chosen(
    study: Study,
    trial: str | None = None,
    others: Sequence[str] = (),
    *,
    per_backend: bool = False,
    unconfirmed: bool = False,
) -> tuple[Trial, ...]:
    """Return the trials to pack, the winner first and the others in the order measured.

    Args:
        trial: Start of the key of another trial than the best.
        others: Starts of the keys of further trials, with spaces around them or not.
        per_backend: The best confirmed trial of each backend too.
        unconfirmed: Those too that no finalist's pairs have confirmed; they come last.

    Raises:
        OrtuneError: A key names no trial or several, a trial failed or is not confirmed, or there
            are more than a bundle may hold.
    """
    first = study.best if trial is None else find(study, trial)
    found = [first, *(find(study, key.strip()) for key in others)]
    found += best_of_each_backend(study) if per_backend else ()
    trials = list({one.key: one for one in found}.values())
    doubtful = [one for one in trials if not study.confirmed(one)]
    if doubtful and not unconfirmed:
        raise OrtuneError(
            f"trial {doubtful[0].key[:8]} ({doubtful[0].plan}) is not confirmed: no finalist that "
            "is faster and keeps the budget",
            fix="give --unconfirmed (unconfirmed=True) to pack it all the same",
        )
    if len(trials) > MOST_PLANS:
        raise BadSettings(
            f"{len(trials)} plans are more than the {MOST_PLANS} that a bundle may hold",
            fix="name fewer",
        )
    return (*_ordered(study, [one for one in trials if one not in doubtful]), *doubtful)


def best_of_each_backend(study: Study) -> list[Trial]:
    """Return the best confirmed trial of each backend; the original stands for its own."""
    fit = [one for one in (*study.final, study.baseline) if study.confirmed(one)]
    best: dict[str, Trial] = {}
    for one in _ordered(study, fit):
        best.setdefault(one.plan.backend.name(), one)
    return list(best.values())


def find(study: Study, key: str) -> Trial:
    """Return the trial that a person means.

    Raises:
        OrtuneError: There is none, there are several, or it failed.
    """
    found = {t.key: t for t in study.trials if key and t.key.startswith(key)}
    if len(found) != 1:
        what = "several trials begin" if found else "no trial begins"
        keys = list(found) or list({t.key: None for t in study.trials})
        raise OrtuneError(
            f"{what} with '{key}'", fix=f"use one of: {', '.join(one[:8] for one in keys[:12])}"
        )
    trial = next(iter(found.values()))
    if trial.error or trial.status is Status.FAILED:
        raise OrtuneError(
            f"trial {trial.key[:8]} ({trial.plan}) failed: {trial.why or trial.error}",
            fix="pack one that ran",
        )
    return trial


def _ordered(study: Study, trials: Sequence[Trial]) -> list[Trial]:
    """Put the winner first; then what is wanted most, as the search judges its finalists."""
    best = [one for one in trials if one.key == study.best.key]
    others = [one for one in trials if one.key != study.best.key]
    return best + [one for near in study.job.wanted.ordered(others) for one in near]
