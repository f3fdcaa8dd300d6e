"""The one rule of extension: a plugin is a frozen dataclass in a file that bears its name."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Plugin(ABC):
    """Fields are the whole configuration: equality, hash, JSON and CLI spelling follow.

    Attributes:
        folder: The package folder that holds the kind, such as ``quantizers``.
        origin: ``FILE.py:NAME`` of a class from a file of the user's; empty for all others.
    """

    folder: ClassVar[str]
    origin: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """Return the file name as the command line spells it, such as ``int8-static``."""
        return cls.origin or cls.__module__.rpartition(".")[2].replace("_", "-")

    def __str__(self) -> str:
        """Return the command-line spelling; fields at their defaults are left out."""
        from ortune.core.plugins.spelling import spell

        return spell(self)
