"""Whether a model agrees with itself: from run to run, and without the runtime's optimizers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ortune.core.backend import Backend, GraphLevel


@dataclass(frozen=True)
class SelfAgreement:
    """What comparing a model with itself has shown; nothing where it could not be run."""

    random: tuple[str, ...] = ()  # outputs that differ between two runs on one sample
    rest: bool = True  # there are others
    # Optimizers of onnxruntime that change the answers, or keep it from running.
    disable: tuple[str, ...] = ()
    # The level at which it is right where no choice of optimizers mends it; else empty.
    level: GraphLevel | None = None
    # Between the answers with and without optimizers; None where it does not run.
    decibels: float | None = None
    # Why it does not load or run: with them where `disable` or `level` helps, else at all.
    failure: str = ""

    def describe(
        self, model: str, backend: Backend, ignored: Collection[str] | None = None
    ) -> str:
        """Say what is amiss and what to do about it; empty where the model agrees with itself.

        Args:
            backend: One that would leave nothing out.
            ignored: Outputs that nothing is compared on; None where there is no such option.
        """
        texts = (self._describe_optimizers(model, backend), self._describe_chance(model, ignored))
        return "; ".join(text for text in texts if text)

    def _describe_optimizers(self, model: str, backend: Backend) -> str:
        if not self.disable and self.level is None:
            return ""
        noun = f"{'optimizer' if len(self.disable) == 1 else 'optimizers'} "
        names = noun + ", ".join(self.disable) if self.disable else "graph optimizations"
        verb = "changes" if len(self.disable) == 1 else "change"
        why = f"{verb} the answers of {model}"
        if self.decibels is not None:
            why += f" ({self.decibels:.1f} dB against the same file without)"
        else:
            why = f"{'keeps' if verb == 'changes' else 'keep'} {model} from running"
        setting = backend.leave_out(self.disable, self.level)
        subject, them = ("It is", "it") if len(self.disable) == 1 else ("They are", "them")
        return (
            f"onnxruntime's {names} {why}. {subject} left out here; leave {them} out "
            f'wherever the file runs, as --on "{setting}" does'
        )

    def _describe_chance(self, model: str, ignored: Collection[str] | None) -> str:
        random = [name for name in self.random if name not in (ignored or ())]
        if not random:
            return ""
        outputs = ", ".join(f"'{name}'" for name in random)
        text = (
            f"{model} does not agree with itself: two runs on the same sample differ in "
            f"{outputs}, as in a model that draws random numbers, so its outputs cannot be "
            "compared. Make the noise an input, or feed 0 as its scale (a seed in the file holds "
            "for the first run alone)"
        )
        options = " ".join(f"--ignore-output {name}" for name in random)
        if ignored is None or not self.rest:
            return text
        return f"{text}, or compare the other outputs alone: {options}"


def join_agreements(agreements: Sequence[SelfAgreement]) -> SelfAgreement:
    """Return what holds for several models together."""
    if len(agreements) == 1:
        return agreements[0]
    disable = dict.fromkeys(name for entry in agreements for name in entry.disable)
    measured = [entry.decibels for entry in agreements if entry.decibels is not None]
    return SelfAgreement(
        random=tuple(name for entry in agreements for name in entry.random),
        rest=any(entry.rest for entry in agreements),
        disable=tuple(disable),
        level=next((entry.level for entry in agreements if entry.level), None),
        decibels=min(measured, default=None),
        failure=next((entry.failure for entry in agreements if entry.failure), ""),
    )
