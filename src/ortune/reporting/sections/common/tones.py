"""What a plan is called on every chart and in every table, and so its colour."""

from __future__ import annotations

from ortune.core.acceptance import LOST, Outcome, classify_outcome
from ortune.core.study import Study
from ortune.core.trial import Trial

PLAN_LEGEND = (
    ("win", "winner"),
    ("", "re-measured"),
    ("open", "measured once"),
    ("rough", "measured briefly"),
    ("lose", "slower, failed or over budget"),
    ("original", "original"),
)
"""Tone -> its meaning."""


def select_tone(study: Study, trial: Trial) -> str:
    """Return the tone of a plan, one of `PLAN_LEGEND`."""
    if trial.key == study.baseline.key:
        return "original"
    if trial.key == study.best.key:
        return "win"
    outcome = classify_outcome(trial)
    if outcome in (*LOST, Outcome.TOO_LARGE) or trial.stopped:
        return "lose"
    if trial.part == "final":
        return ""
    return "rough" if outcome is Outcome.ROUGH else "open"
