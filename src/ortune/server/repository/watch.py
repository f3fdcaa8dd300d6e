"""Files that changed on disk are exchanged while their models answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from ortune.core.errors import OrtuneError
from ortune.server.repository.repository import Repository
from ortune.server.repository.sources import State


async def watch(repository: Repository, seconds: float = 1.0) -> None:
    """Reload what changed, until cancelled.

    A file is opened when two looks in a row found it the same: it is no longer being written. One
    that cannot be opened is tried again when it changes again.

    Args:
        seconds: Between two looks.
    """
    before: Mapping[str, Mapping[str, State]] = {}
    while True:
        await asyncio.sleep(seconds)
        now = await asyncio.to_thread(repository.changed)
        for name, state in now.items():
            if before.get(name) == state:
                with suppress(OrtuneError, OSError):  # the repository told of it
                    await repository.reload(name)
        before = now
