"""Workers are processes of their own: they find the tests' plugins, and Ctrl-C reaches them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

PLUGINS = str(Path(__file__).parent / "plugins")

os.environ["PYTHONPATH"] = os.pathsep.join(
    p for p in (PLUGINS, os.environ.get("PYTHONPATH", "")) if p
)

# A shell starts what it puts in the background with Ctrl-C ignored, and programs inherit that; a
# handler of our own they do not.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
