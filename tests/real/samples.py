"""The samples that the package itself writes; exports are made once and kept under ``.cache``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

from ortune.core.plugins import catalog, codec
from ortune.core.sample import Sample

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "samples"


def sample(name: str) -> Sample:
    """Return a packaged sample."""
    return catalog.load_plugin(Sample, name)()


def written(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration``.

    A changed sample or onnx version writes anew; a broken-off write leaves nothing behind.
    """
    key = codec.digest([catalog.source_digest(sample(name)), version("onnx")])
    folder = CACHE / f"{name}-{key}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(dir=CACHE))
        _write(name, draft)
        try:
            draft.rename(folder)
        except OSError:
            shutil.rmtree(draft)
    return folder


def _write(name: str, folder: Path) -> None:
    """Write in a process of its own: exporters log, and keep much memory."""
    code = (
        "import sys; from pathlib import Path; from tests.real.samples import sample; "
        "sample(sys.argv[1]).write(Path(sys.argv[2]))"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code, name, str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder)
        raise RuntimeError(f"the sample {name} is not written: {done.stderr[-2000:]}")
