"""What `explain` is asked."""

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.core.errors import BadSettings
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class Explain(Request):
    """Explain why the search of RUN, a folder of `ortune optimize`, chose its winner.

    It shows the winner and each change that led to it, what a lower precision costs and saves in
    each region of the network, and which plans were not tried. Nothing is measured again; a search
    that is not finished is explained as far as it is.

    Example:
        ortune explain run
        ortune explain run --node /encoder/layer.0/attention/MatMul
        ortune explain run --plan int8-static

    Attributes:
        run: The run's folder.
        node: Show all that is known about this node of the model.
        plan: Show the whole record of a plan: its number in the list, its name, or the start of
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
            raise BadSettings(
                "--node and --plan cannot be combined", fix="give one of them at a time"
            )
