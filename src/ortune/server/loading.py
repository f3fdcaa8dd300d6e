"""From what was asked to models that answer: sources, engines, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ortune.engine import archive
from ortune.engine.engine import Engine
from ortune.engine.load import load
from ortune.server.journal import Journal
from ortune.server.repository.repository import Repository
from ortune.server.repository.served import Limits
from ortune.server.repository.sources import find
from ortune.server.settings import Serve


def limits(asked: Serve) -> Limits:
    """Return what a server lets in."""
    return Limits(
        max_queue=asked.max_queue or Limits.max_queue,
        timeout_s=asked.timeout,
        max_body=asked.max_body or Limits.max_body,
    )


def opener(asked: Serve) -> Callable[[Path], Engine]:
    """Return what opens a file as it was asked for."""

    def open_file(path: Path) -> Engine:
        ops = asked.allow_custom_ops if archive.is_bundle(path) else asked.custom_ops or False
        return load(
            path,
            on=asked.on,
            instances=asked.instances,
            custom_ops=ops,
            max_batch=asked.max_batch,
            max_delay_us=asked.max_delay_us,
            preferred=asked.preferred,
            max_queue=asked.max_queue,
            require_signature=asked.require_signature,
        )

    return open_file


def repository(asked: Serve, journal: Journal) -> Repository:
    """Return the models that were asked for; they are not loaded yet.

    Raises:
        BadSettings: A path is none, or two models have one name.
    """

    def note(text: str) -> None:
        if made.ready:  # before that, what is wrong is raised
            journal.event("warning", text)

    made = Repository(
        find(asked.names),
        opener(asked),
        explicit=asked.explicit,
        limits=limits(asked),
        note=note,
    )
    return made
