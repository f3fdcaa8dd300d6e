"""A Python that has numpy, onnxruntime and ortune and nothing else: what --no-deps installs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

_PACKAGES = ("numpy", "onnxruntime", "ortune")


def run_alone(folder: Path, code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter without site-packages; `folder` receives the links."""
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        home = Path(spec.origin).parent
        parts = [home, home.with_name(f"{name}.libs"), *home.parent.glob(f"{name}-*.dist-info")]
        for part in parts:
            if part.is_dir() and not (folder / part.name).exists():
                (folder / part.name).symlink_to(part)
    begin = f"import sys; sys.path.append({str(folder)!r})\n"
    command = [sys.executable, "-I", "-S", "-W", "always", "-c", begin + code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
