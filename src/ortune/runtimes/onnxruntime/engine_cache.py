"""Engines that a provider built, kept on disk and used for exactly what they were built for.

A provider that compiles (TensorRT, OpenVINO on a GPU or an NPU) takes seconds to many minutes to
open a model, and writes what it built into a folder. Its own check of that folder knows neither
the release of the runtime nor the options (onnxruntime issues 22244 and 18272): here the folder
is named by all that an engine depends on, and what lies in it is compared with what was written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from ortune.core.atomic_write import remove
from ortune.core.event import Progress, Sink, silent
from ortune.runtimes.onnxruntime import engine_store
from ortune.runtimes.onnxruntime.engine_store import EngineKey

T = TypeVar("T")

TICK_S = 1.0
"""Between two words of how long a build has taken."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineWatch:
    """What somebody wants to know of the sessions that are opened within a block.

    Attributes:
        sink: Receives how far a build is.
        root: Folder of the engines in the place of the user's; None is the user's.
        warm: Gains True for each session opened from the cache, False for each that was built.
    """

    sink: Sink = silent
    root: Path | None = None
    warm: list[bool] = field(default_factory=list)


_WATCH: ContextVar[EngineWatch] = ContextVar("engine_watch")


@contextmanager
def watched(sink: Sink = silent, root: Path | None = None) -> Iterator[EngineWatch]:
    """Watch the sessions that this thread opens in the block."""
    watch = EngineWatch(sink, root)
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


@contextmanager
def opened(
    key: EngineKey,
    opening: Callable[[Path], AbstractContextManager[T]],
    *,
    root: Path | None = None,
    most: int = engine_store.MOST,
) -> Iterator[T]:
    """Open a session with the engines of its key, or build them.

    Engines that were changed, cut off or do not open are built again. What runs add, such as an
    engine for another shape, is kept too when the session ends.

    Args:
        opening: Opens the session with this folder as the provider's own cache.
        root: Where engines are; the user's cache folder without it.
        most: Bytes that all engines may take afterwards.

    Raises:
        OrtuneError: Another process has built the same engine for an hour; the disk refuses.
    """
    watch = _WATCH.get(None) or EngineWatch()
    with ExitStack() as stack:
        home = root or watch.root or engine_store.folder()
        if home is None:
            made = TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True)
            home = Path(stack.enter_context(made))
        place = home / key.digest
        with ExitStack() as session:
            with engine_store.alone(home, key):
                found, warm = _found(session, key, opening, place, watch)
                watch.warm.append(warm)
                seen = engine_store.state(place)
            engine_store.evict(home, most, spare=place)
            yield found
        if engine_store.state(place) != seen:
            with engine_store.alone(home, key):
                engine_store.keep(place, key)


def _found(
    stack: ExitStack,
    key: EngineKey,
    opening: Callable[[Path], AbstractContextManager[T]],
    place: Path,
    watch: EngineWatch,
) -> tuple[T, bool]:
    """Open from the folder, or build into it; return whether it was there."""
    if engine_store.sound(place, key):
        seen = engine_store.state(place)
        try:
            opened = stack.enter_context(opening(place))
        except Exception as error:  # whatever a provider raises of an engine that it cannot use
            _LOG.warning("an engine in %s does not open (%s): it is built again", place, error)
        else:
            warm = engine_store.state(place) == seen  # else it has built some of it anew
            engine_store.used(place) if warm else engine_store.keep(place, key)
            return opened, warm
    remove(place)
    place.mkdir(parents=True, mode=0o700)
    expected = engine_store.estimate(place.parent, key)
    about = "" if expected is None else f", about {expected:.0f} s by earlier builds"
    work = f"building an engine for {key.provider}"
    _LOG.info("%s (%d nodes)%s", work, key.nodes, about)
    start = time.monotonic()
    try:
        with _ticking(watch.sink, work, expected or 0.0):
            opened = stack.enter_context(opening(place))
    except BaseException:
        remove(place)
        raise
    engine_store.keep(place, key, time.monotonic() - start)
    return opened, False


@contextmanager
def _ticking(sink: Sink, work: str, total: float) -> Iterator[None]:
    """Tell how many seconds the block has taken, now and then."""
    done, start = threading.Event(), time.monotonic()

    def tell() -> None:
        sink(Progress(work, 0.0, total))
        while not done.wait(TICK_S):
            sink(Progress(work, time.monotonic() - start, total))

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
