"""Workers are processes of their own: they find the tests' plugins through PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path

PLUGINS = str(Path(__file__).parent / "plugins")

os.environ["PYTHONPATH"] = os.pathsep.join(
    p for p in (PLUGINS, os.environ.get("PYTHONPATH", "")) if p
)
