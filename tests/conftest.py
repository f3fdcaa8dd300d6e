"""Workers are processes of their own: they find the tests' plugins, and Ctrl-C reaches them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGINS = str(Path(__file__).parent / "plugins")

os.environ["PYTHONPATH"] = os.pathsep.join(
    p for p in (PLUGINS, os.environ.get("PYTHONPATH", "")) if p
)

# A shell starts what it puts in the background with Ctrl-C ignored, and programs inherit that; a
# handler of our own they do not.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def quiet() -> Iterator[None]:
    """onnx_ir remarks on shapes it cannot write; conformance cases and drawn graphs are full."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
