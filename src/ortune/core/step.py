"""Steps: the two kinds of edit a recipe is made of."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.plugins.plugin import Plugin, digest
from ortune.core.session import Tensors

if TYPE_CHECKING:
    import onnx_ir as ir


class Stage(enum.IntEnum):
    """Where in a recipe a transform belongs; inside a stage the order does not matter.

    PREPARE makes a model what later steps expect, FOLD leaves out what is not needed, SPELL writes
    as one operator the parts by which larger patterns are recognized, FUSE joins nodes, FINISH
    does what would hide patterns from the stages before.
    """

    PREPARE = 0
    FOLD = 10
    SPELL = 15
    FUSE = 20
    FINISH = 30


Noise: TypeAlias = Callable[["ir.Model", Sequence[Tensors]], Sequence[float]]
"""Runs a model that has further inputs, on a few samples with each of the values given for them.

Returns noise over signal of the outputs for each, the first's outputs being the signal.
"""


class Bridge:
    """Lets numbers be compared before and after such a step: samples go over, answers come back.

    For every sample of the new model, `runs` names samples of the old one whose answers say what
    the new one must answer. What is not overridden crosses as it is.

    Attributes:
        decibels: What the comparison demands. Lower it only where the step itself rounds, such as
            a picture that is resized by another library.
    """

    decibels: float = 90.0

    def samples(self, old: Tensors) -> Iterable[Tensors]:
        """Yield samples of the new model that are as near as can be to one of the old.

        All are compared; the first stands for the old one in the steps that follow.
        """
        yield old

    def runs(self, new: Tensors) -> Sequence[Tensors]:
        """Return samples of the old model; none where the new cannot be compared."""
        return [new]

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Return the outputs that the new model must give, from the old one's on `runs`."""
        return answers[0]


@dataclass(frozen=True)
class Transform(Plugin):
    """An edit that keeps what the model computes. Needs no data.

    Attributes:
        stage: When the search applies it.
        automatic: Whether the search applies it by itself, or only a later step or the user.
    """

    folder: ClassVar[str] = "transforms"
    stage: ClassVar[Stage]
    automatic: ClassVar[bool] = True
    needs_opset: ClassVar[int] = 0
    """Lowest default-domain opset it can write for; the search raises older models first."""
    consumes: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Operators of which a model must have one of each group; ``domain::op`` for other domains."""

    def applies(self, facts: Facts) -> bool:
        """Test cheaply, from op counts alone; False leaves it out of the default recipe."""
        return all(facts.has(*group) for group in self.consumes)

    def suits(self, backend: Backend, capabilities: Capabilities) -> bool:
        """Say whether a backend gains by it; False leaves it out of that backend's recipes."""
        return True

    @property
    def portable(self) -> bool:
        """Whether what it writes gives the same answers on every CPU, rounding apart."""
        return True

    @property
    def keeps_io(self) -> bool:
        """Whether inputs and outputs keep names and types; False where the user wants that."""
        return True

    def bridge(self, model: ir.Model) -> Bridge | None:
        """Say how samples and answers cross a step that does not keep inputs and outputs.

        Asked of the model before `apply`. None: numbers cannot be compared across it.
        """
        return None

    @abstractmethod
    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many edits were made.

        What it leaves alone although it looks like its pattern, it says by `edit.refuse`.
        """


@dataclass(frozen=True)
class Quantizer(Plugin):
    """An edit that spends accuracy for speed or size. May ask for tensor ranges first."""

    folder: ClassVar[str] = "quantizers"
    rank: ClassVar[int] = 1
    """Offers of a lower rank are tried first, equal ones by name."""
    needs_opset: ClassVar[int] = 0
    """Lowest default-domain opset it can write for; older models are raised first."""
    needs_data: ClassVar[bool] = True
    """Whether `apply` needs the ranges of its probes, or only does better with them."""

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield the settings a search tries for this model on this backend, best bet first."""
        return ()

    @classmethod
    def mixes(
        cls, facts: Facts, backend: Backend, capabilities: Capabilities
    ) -> Iterable[tuple[Quantizer, ...]]:
        """Yield this step together with others that take the layers it leaves, best bet first."""
        return ()

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the tensors whose ranges `apply` needs; none for data-free methods."""
        return ()

    @property
    def portable(self) -> bool:
        """Whether what it writes gives the same answers on every CPU, rounding apart."""
        return True

    def made_portable(self) -> Self:
        """Return it with the settings that make it portable, where there are some."""
        return self

    @property
    def inner(self) -> Quantizer:
        """What quantizes: the step itself, or the one that it applies to some models alone."""
        return self

    @property
    def only(self) -> tuple[str, ...]:
        """Names of the models of a job that it is for; empty for all."""
        return ()

    @property
    def calibrates(self) -> bool:
        """Whether it may ask for ranges."""
        return type(self).probes is not Quantizer.probes

    def refined(self, model: ir.Model, ranges: Ranges, noise: Noise | None) -> Self:
        """Return it with what forward runs decide; asked once, of the model before `apply`.

        Args:
            noise: Runs the model; None where there are no samples.

        Raises:
            OrtuneError: It cannot decide.
        """
        return self

    @property
    def keeps_io(self) -> bool:
        """Whether inputs and outputs keep their types; False only where the user wants that."""
        return True

    def prepares(self, facts: Facts, backend: Backend) -> Iterable[Transform]:
        """Yield exact steps that pay together with this one only: the search puts them before."""
        return ()

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield steps to try instead of this one where it fails the budget, best bet first."""
        return ()

    def extensions(self, facts: Facts) -> Iterable[Self]:
        """Yield it with more in integers, to try where it keeps the budget, best bet first."""
        return ()

    @abstractmethod
    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Edit the model in place and return how many edits were made.

        Raises:
            Refused: There is nothing it may quantize; the text says why.
            BadSettings: A pattern matches no node, or a step given as a field does not fit.
            BadData: The ranges do not serve it.
        """


Step: TypeAlias = Transform | Quantizer


@dataclass(frozen=True)
class Edit:
    """What one step of a recipe did."""

    step: str  # its spelling
    count: int  # edits made; 0 when there was nothing to do or it was rolled back
    kept: bool = True  # False when the step was rolled back
    note: str = ""  # why it was rolled back, or what it left alone
    seconds: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """A named list of steps.

    Attributes:
        name: A label; it does not count for equality of keys.
    """

    name: str
    steps: tuple[Step, ...] = ()

    @property
    def key(self) -> str:
        """Digest of the steps: equal steps have the same key."""
        return digest(self.steps)

    @property
    def quantizer(self) -> Quantizer | None:
        """The only quantizer, where it is the last step; else None."""
        quantizers = [step for step in self.steps if isinstance(step, Quantizer)]
        return quantizers[0] if len(quantizers) == 1 and quantizers[0] is self.steps[-1] else None

    @property
    def only(self) -> frozenset[str]:
        """Names of the models of a job that its quantizers are for; empty for all."""
        return frozenset(
            name for step in self.steps if isinstance(step, Quantizer) for name in step.only
        )

    def select_for(self, model: str) -> Recipe:
        """Return the recipe for one of a job's models."""
        steps = (
            step.inner if isinstance(step, Quantizer) else step
            for step in self.steps
            if not isinstance(step, Quantizer) or not step.only or model in step.only
        )
        return Recipe(self.name, tuple(steps))

    def made_portable(self) -> Recipe | None:
        """Return the recipe with portable steps only; None if a quantizer is not portable.

        Transforms that are bound to a CPU are left out; its name follows its steps.
        """
        name, steps = self.name, list[Step]()
        for step in self.steps:
            if isinstance(step, Quantizer):
                quantizer = step if step.portable else step.made_portable()
                if not quantizer.portable:
                    return None
                name = name.replace(str(step), str(quantizer))
                steps.append(quantizer)
            elif step.portable:
                steps.append(step)
        return Recipe(name, tuple(steps))

    @property
    def lossy(self) -> bool:
        """Whether a step spends accuracy."""
        return any(isinstance(step, Quantizer) for step in self.steps)


AS_IS = Recipe("as-is")
"""The model as it came."""
