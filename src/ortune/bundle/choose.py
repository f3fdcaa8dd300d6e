"""Choose the trials that a bundle holds, and their order: the one to run first."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.core import wording
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.study import Study
from ortune.core.trial import Status, Trial
from ortune.engine.consent import factories
from ortune.engine.manifest import MOST_PLANS


def chosen(
    study: Study,
    trial: str | None = None,
    others: str | Sequence[str] = (),
    *,
    per_backend: bool = False,
    unconfirmed: bool = False,
) -> tuple[Trial, ...]:
    """Return the trials to pack, the winner first and the others in the order measured.

    Plans that are Python code come behind all others.

    Args:
        trial: Start of the key of another trial than the best.
        others: Starts of the keys of further trials, by comma or in a sequence.
        per_backend: The best confirmed trial of each backend too.
        unconfirmed: Those too that no finalist's pairs have confirmed; they come last.

    Raises:
        OrtuneError: A key names no trial or several, a trial failed or is not confirmed, or there
            are more than a bundle may hold.
    """
    first = study.best if trial is None else find(study, trial)
    keys = others.split(",") if isinstance(others, str) else others
    found = [first, *(find(study, key.strip()) for key in keys)]
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
            f"{wording.count(len(trials), 'plan')} are more than the {MOST_PLANS} that a bundle "
            "may hold",
            fix="name fewer",
        )
    found = (*_ordered(study, [one for one in trials if one not in doubtful]), *doubtful)
    return tuple(sorted(found, key=_names_code))


def _names_code(trial: Trial) -> bool:
    """PyTorch comes last, however fast: its plan is Python code, which runs only where allowed."""
    return bool(factories(stored.code(codec.encode(trial.plan.backend))))


def best_of_each_backend(study: Study) -> list[Trial]:
    """Return the best confirmed trial of each backend; the original stands for its own."""
    fit = [one for one in (*study.final, study.baseline) if study.confirmed(one)]
    best: dict[str, Trial] = {}
    for one in _ordered(study, fit):
        best.setdefault(one.plan.backend.name(), one)
    return list(best.values())


def confirmed(study: Study) -> list[Trial]:
    """Return every confirmed trial, the winner first and the original last."""
    fit = [one for one in study.final if study.confirmed(one)]
    found = {one.key: one for one in (study.best, *_ordered(study, fit))}
    return [*found.values(), *[study.baseline] * (study.baseline.key not in found)]


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
