"""How samples and answers cross a step that changes a model's inputs or outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortune.core.session import Tensors


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
        """Return samples of the old model; none where only running can be asked of the new."""
        return [new]

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        """Return the outputs that the new model must give, from the old one's on `runs`."""
        return answers[0]
