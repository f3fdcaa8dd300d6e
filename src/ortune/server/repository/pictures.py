"""Pictures in the bodies of requests, read in threads of their own."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadData, OrtuneError
from ortune.core.hardware.cpus import effective_cpus
from ortune.engine.samples.pictures import PictureInput
from ortune.protocol.status import Refused, Status
from ortune.server.repository.room import FULL

FORMATS = ("JPEG", "PNG")
MOST_PIXELS = 1 << 26
"""A picture of more is refused before it is unpacked: a few kB of PNG may claim any size."""


class Decoder:
    """Turns pictures into tensors while the event loop goes on.

    Args:
        most: Pictures that may wait to be read; more are refused.
    """

    def __init__(self, most: int) -> None:
        self._most, self._waiting = most, 0
        self._threads = ThreadPoolExecutor(min(4, effective_cpus()), "ortune pictures")

    async def tensors(self, taker: PictureInput, body: bytes) -> Mapping[str, NDArray[Any]]:
        """Return the inputs that a picture stands for.

        Raises:
            BadData: It is no JPEG or PNG, too large, or damaged.
            Refused: Too many wait.
        """
        if self._waiting >= self._most:
            raise Refused(FULL, Status.UNAVAILABLE)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _tensors, taker, body)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads behind what they read."""
        self._threads.shutdown(wait=False)


def _tensors(taker: PictureInput, body: bytes) -> Mapping[str, NDArray[Any]]:
    try:
        from PIL import Image
    except ImportError:
        raise Refused(
            "this server reads no pictures", Status.UNSUPPORTED, "pip install 'ortune[images]'"
        ) from None
    try:
        with Image.open(io.BytesIO(body), formats=FORMATS) as picture:
            wide, high = picture.size
            if wide * high > MOST_PIXELS:
                raise BadData(
                    f"the picture has {wide}x{high} pixels, and {MOST_PIXELS} are the most",
                    fix="make it smaller before it is sent",
                )
            return taker.tensors({taker.taken.spec.name: picture})
    except OrtuneError:
        raise
    except Exception:  # whatever Pillow raises of a broken file
        raise BadData("the body is no JPEG or PNG", fix="send a file of one of these") from None
