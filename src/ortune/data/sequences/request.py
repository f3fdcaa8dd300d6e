"""What a verb is asked about sequences: what makes one, and which output is whose state."""

import re
from dataclasses import KW_ONLY
from typing import Annotated, Any

from ortune.core.errors import BadSettings
from ortune.core.fields import Field, Option
from ortune.core.request import Request, request

FILE, GROUP = "file", "group"
_FEWEST, _DIGITS = 2, 9


class SequenceForm(Field[str, str | int | None]):
    """``file``, ``group`` or a number of samples; empty where samples have no order."""

    metavar = "HOW"

    def read(self, value: Any) -> str:
        """Check the word or the number.

        Raises:
            BadSettings: It is another word, or less than two samples.
        """
        text = "" if value is None else str(value).strip()
        if text in ("", FILE, GROUP):
            return text
        if isinstance(value, bool) or not re.fullmatch(rf"[0-9]{{1,{_DIGITS}}}", text):
            raise BadSettings(
                f"cannot read '{text[:40]}'",
                fix=f"write {FILE}, {GROUP}, or how many samples are a sequence",
            )
        if int(text) < _FEWEST:
            raise BadSettings(
                f"{int(text)} is too small: a state is rolled from one step to the next",
                fix="give two steps or more",
            )
        return str(int(text))


@request
class SequenceRequest(Request):
    """Samples that are steps of sequences.

    Attributes:
        sequence: Samples are consecutive steps, and the model's state is fed from each to the
            next. One sequence is a file, a group, or a number of samples.
        state: Output that is fed to an input at the next step, such as "present.*:past.*"; may be
            repeated. Matched by name if not given.
    """

    _: KW_ONLY
    sequence: SequenceForm = SequenceForm("")
    state: Annotated[tuple[str, ...], Option("OUT:IN", "--state")] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state and not self.sequence:
            raise BadSettings(
                f"--state {self.state[0][:60]} needs sequences to be rolled through",
                fix=f"give --sequence {FILE}, --sequence {GROUP} or --sequence N too",
            )
        if self.sequence and getattr(self, "data", None) is None:
            raise BadSettings(
                f"--sequence {self.sequence} is about samples, and none are given",
                fix="give --data too"
                if not getattr(self, "evaluate", None)
                else "leave it out: the calls that --evaluate makes hold their states",
            )
