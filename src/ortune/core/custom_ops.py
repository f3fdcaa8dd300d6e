"""Requests that run models, and custom operators for the backends that take some."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, ClassVar

from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.fields import Libraries, Option
from ortune.core.plugins import catalog, user_function
from ortune.core.plugins.spelling import parse_list, with_field
from ortune.core.request import Request, WorkerRequest, request

if TYPE_CHECKING:
    from ortune.core.budget import Budget


@request
class BudgetRequest(Request):
    """Another model's answers, judged.

    Attributes:
        budget: The worst score allowed, such as "top1>=base-0.01" or "cosine>=0.999".
    """

    takes_budget_steps: ClassVar[bool] = False
    """Whether a budget may be a list of steps."""

    _: KW_ONLY
    budget: Annotated[str | None, Option("BUDGET")] = None

    @property
    def scoring_function(self) -> str | None:
        """A function of the user's that scores, where a subclass has one."""
        function: str | None = getattr(self, "evaluate", None)
        return function

    def read_budget(self) -> Budget | None:
        """Return the budget; None where none is given.

        Raises:
            BadSettings: It cannot be read, or lists steps where one is asked for.
        """
        if self.budget is None:
            return None
        from ortune.core.budget import Budget  # a request is made without NumPy

        budget = Budget.parse(self.budget)
        if budget.looser and not self.takes_budget_steps:
            raise BadSettings(
                f"budget '{budget}' lists several limits, which only `ortune optimize` takes",
                fix=f"give one of them: {budget.steps[0]}",
            )
        return budget

    def __post_init__(self) -> None:
        super().__post_init__()
        self.read_budget()  # before anything is read, run or said
        if self.scoring_function:
            user_function.demand_own(self.scoring_function, *user_function.EVALUATE)


@request
class CustomOpsRequest(WorkerRequest):
    """Operators that the model brings.

    Attributes:
        custom_ops: Custom operators: a shared library, or a Python module that gives one. It is
            run.
    """

    _: KW_ONLY
    custom_ops: Libraries = Libraries(())


@request
class BackendRequest(CustomOpsRequest):
    """Where to run.

    Attributes:
        on: Where to run: backends by comma, such as "cpu(threads=2),openvino".
    """

    _: KW_ONLY
    on: Annotated[str, Option("BACKENDS")] = "cpu"

    @property
    def backends(self) -> str:
        """`on`, with the custom operators given to every backend."""
        return add_custom_ops(self.on, self.custom_ops)


def add_custom_ops(on: str, custom_ops: Sequence[str]) -> str:
    """Return a spelling of backends with the libraries given to every one.

    ``auto`` becomes those backends that run here and take libraries.

    Raises:
        BadSettings: One that is named takes none.
    """
    if not custom_ops:
        return on
    if on.strip() == "auto":
        kinds = [catalog.load_plugin(Backend, name) for name in catalog.list_plugins(Backend)]
        fit = [kind for kind in kinds if kind.automatic and _takes_custom_ops(kind)]
        on = ",".join(kind.name() for kind in fit if kind().missing() is None)
    for backend, _ in parse_list(Backend, on):
        if not _takes_custom_ops(type(backend)):
            raise BadSettings(
                f"--custom-ops: backend '{backend.name()}' takes no custom operators; they are "
                "onnxruntime's",
                fix="use --on cpu",
            )
    return with_field(on, "custom_ops", tuple(custom_ops))


def _takes_custom_ops(kind: type[Backend]) -> bool:
    return any(field.name == "custom_ops" for field in dataclasses.fields(kind))
