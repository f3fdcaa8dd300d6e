"""What ended a piece of work from outside is known however often its error was wrapped."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from ortune.core.errors import (
    BadModel,
    CutShort,
    Interruption,
    OrtuneError,
    OutOfTime,
    find_interruption,
)


def wrap(error: Exception) -> OrtuneError:
    """Return the error that a caller makes of another one."""
    try:
        try:
            raise error
        except Exception as caught:
            raise BadModel(f"it does not build: {caught}", fix="nothing") from None
    except OrtuneError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (OutOfTime("late", fix="longer"), Interruption.TIME),
        (CutShort("killed", fix="again"), Interruption.KILLED),
        (OSError(errno.ENOSPC, "full"), Interruption.DISK),
        (OSError(errno.EDQUOT, "full"), Interruption.DISK),
        (RuntimeError(f"onnx: {os.strerror(errno.ENOSPC)}"), Interruption.DISK),
        (OSError("1048576 requested and 217045 written"), Interruption.DISK),
        (OSError(errno.EACCES, "no"), None),
        (OrtuneError("wrong", fix="right"), None),
        (ValueError("wrong"), None),
    ],
)
def test_it_is_found_through_other_errors(error: Exception, wanted: Interruption | None) -> None:
    assert find_interruption(error) is wanted
    assert find_interruption(wrap(error)) is wanted


def test_it_comes_back_from_another_process() -> None:
    error = CutShort("full", fix="free some", interruption=Interruption.DISK)
    again = pickle.loads(pickle.dumps(error))
    assert (again.what, again.fix, again.interruption) == ("full", "free some", Interruption.DISK)
