"""Whether a machine is fit to measure on: a model timed against itself."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ortune.analysis.benchmark.bench import race
from ortune.backends.cpu import Cpu
from ortune.core.errors import OrtuneError
from ortune.core.trial import Interval
from ortune.measurement.machine.noise import Advice
from ortune.samples.digit_cnn import DigitCnn

if TYPE_CHECKING:
    from ortune.core.backend import Backend

_SECONDS, _SETS = 3.0, 3
State = Literal["fit", "disturbed", "not fit"]


@dataclass(frozen=True)
class Fitness:
    """What a short A/A says of the machine at this moment.

    Attributes:
        state: disturbed: fit, but a measurement takes longer and has a wider interval.
        equal: Ratio of the model's latency to its own; None where it did not run.
        advice: What is wrong with the machine and what to do, the worst first.
    """

    state: State
    equal: Interval | None
    advice: tuple[Advice, ...]

    def __str__(self) -> str:
        """Say it in one line."""
        why = "; ".join(map(str, self.advice[:2]))
        if self.state == "not fit":
            return f"this machine is not fit to measure now: {why}"
        spread = f"a model differed from itself by {_spread(self.equal)}"
        if self.state == "disturbed":
            return f"this machine is fit to measure, but disturbed ({spread}): {why}"
        return f"this machine is fit to measure: {spread}"


def here() -> Fitness:
    """Time the digit CNN against itself on this machine's CPU provider."""
    with as_file(files("ortune.samples") / "digit_cnn.onnx") as model:
        return fitness(model, Cpu(threads=DigitCnn.threads), DigitCnn.batch)


def fitness(model: Path, backend: Backend, batch: int) -> Fitness:
    """Time a model against itself for a few seconds, in fresh processes.

    Args:
        batch: Samples of a run; a run of less than 0.1 ms says little of the machine.
    """
    try:
        found = race(
            [(model, backend)], batch=batch, seconds=_SECONDS, sets=_SETS, self_check=True
        )
    except OrtuneError as error:
        return Fitness("not fit", None, (Advice(error.what, error.fix, severe=True),))
    check, judged = found.self_check, found.judgement
    state: State = "fit"
    if judged.too_noisy:
        state = "not fit"
    elif judged.advice:
        state = "disturbed"
    return Fitness(state, check.ratio if check else None, judged.advice)


def _spread(equal: Interval | None) -> str:
    """Return how far from 1 the interval reaches, in percent."""
    if equal is None:
        return "an unknown share"
    return f"{100 * max(equal.high - 1, 1 - equal.low):.1f} % at most"
