"""What a plan is called, and so its colour; what of its speed is in doubt."""

from collections.abc import Iterator, Sequence

from ortune.core import wording as say
from ortune.core.acceptance import LOST, Outcome, classify_outcome
from ortune.core.section import Pill
from ortune.core.study import Study
from ortune.core.trial import Trial

WAITED, BUSY = 0.02, 0.5
"""A run that waited for over 2 % of its time was disturbed; with over half of them the noise may
have gone one way (``docs/measuring.md``)."""


def list_doubts(study: Study, best: Trial) -> list[str]:
    """Say what of the speed is in doubt."""
    doubts = list(describe_emulation(study))
    advice = f": {study.advice[0]}" if study.advice else ""
    if doubts:
        return doubts
    if study.too_noisy:
        doubts.append(f"The machine was too noisy for a verdict{advice}.")
    elif study.ending.too_noisy:
        doubts.append(f"Measured on a noisy machine{advice}.")
    if best.key == study.baseline.key:
        return doubts
    if (share := compute_waiting_share(best)) > BUSY:
        doubts.append(
            f"CPU was busy: {100 * share:.0f} % of timed runs had to wait. The speed-up is "
            "unreliable; close other programs and repeat."
        )
    if study.job.wanted.prefer == "speed" and best.predicted and best.predicted.high >= 1:
        doubts.append("Repeat measurements may show no speed-up.")
    return doubts


def describe_emulation(study: Study) -> Iterator[str]:
    """Say that the times are those of an emulator, if they are."""
    if emulator := study.job.emulated:
        yield f"Times are emulated ({emulator}): no speed-up is claimed. Time plans on a real CPU."


def compute_waiting_share(trial: Trial) -> float:
    """Return the share of a trial's timed runs whose threads waited for a CPU; 0 if unknown."""
    pairs = trial.measurement.pairs if trial.measurement else ()
    blocks = [block for pair in pairs for block in pair.blocks]
    bursts = (burst for block in blocks for burst in (block.baseline, block.candidate))
    waiting_shares = [share for burst in bursts for share in burst.waited if share >= 0]
    if not waiting_shares:
        return 0.0
    return sum(share > WAITED for share in waiting_shares) / len(waiting_shares)


def count_disturbances(advice: Sequence[object]) -> Pill:
    """Return what a page says of a machine that was not too noisy."""
    if advice:
        return Pill(f"machine: {say.format_count(len(advice), 'disturbance')}", "warn")
    return Pill("machine was quiet", "good")


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
