"""What `explain` is asked."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.core.errors import BadSettings
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class Explain(Request):
    """Say why the search of RUN, a folder made by `ortune optimize`, came to its answer.

    The winner and each change on the way to it, what every region of the network was tried at and
    what that gave, and which plans were not tried. Nothing is measured again; a search that is
    not finished is explained as far as it is.

    Example:
        ortune explain run
        ortune explain run --node /encoder/layer.0/attention/MatMul
        ortune explain run --plan int8-static

    Attributes:
        run: The run's folder.
        node: Tell all that is known of this node of the model.
        plan: Tell the whole record of a plan: its number in the list, its name, or the start of
            its key.

    Raises:
        BadData: The folder holds no run, or one that cannot be read.
        BadSettings: There is no such node or plan.
    """

    run: str | Path
    _: KW_ONLY
    node: Annotated[str | None, Option("NAME")] = None
    plan: Annotated[str | None, Option("PLAN")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.node is not None and self.plan is not None:
            raise BadSettings("--node and --plan are two questions", fix="ask one after the other")
