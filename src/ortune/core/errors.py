"""Errors a user can act on. Anything else that escapes is a bug and keeps its traceback."""

from __future__ import annotations


class OrtuneError(Exception):
    """What is wrong with the value given, and what to do next.

    Attributes:
        what: One line that names the offending value.
        fix: One line that says what to change.
    """

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix


class UnknownPlugin(OrtuneError):
    """A name that no file in the folder has."""


class BadSettings(OrtuneError):
    """A plugin was given a field it lacks, or a value of the wrong type."""


class BackendMissing(OrtuneError):
    """The backend cannot run on this machine."""


class BadModel(OrtuneError):
    """The file is not a model that can be used, or a step broke an invariant."""


class BadData(OrtuneError):
    """The samples, labels or outputs cannot be used with this model."""


class Refused(OrtuneError):
    """A step found nothing it may do, and says why."""
