"""A container image that serves the bundle: a Dockerfile, and an OCI image layout."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from urllib.parse import quote

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import stored
from ortune.deployment.oci import layout, served
from ortune.deployment.replay import by_call

_ENTRY = ("python", "/app/app.py")
_PORT = 8000
_PINNED = ("numpy", "onnxruntime", "onnxruntime-ep-openvino", "openvino")
_CARRIED = "reader.py"
_READER = "ortune.engine.reader"
_READ = ("cpu", "openvino")
"""Backends whose plans the reader in one file runs as they were measured."""
_VERSION = re.compile(r"[0-9][\w.+!-]*", re.ASCII)
_TAG = re.compile(r"[\w.:/@+-]+", re.ASCII)


@dataclass(frozen=True)
class OciImage(Target):
    """``Dockerfile``, ``requirements.txt`` and ``app/``, and ``image/``, an OCI image layout.

    Attributes:
        replayed: Start what the image starts, from its layer, and send it the golden samples.
        limit: Not used: the engine is the bundle's own.
        python: The image that the Dockerfile begins with.
        base: Image layout below this one's layer, with Python and the packages of
            ``requirements.txt``; without it the layout holds the application alone.
    """

    places: ClassVar[tuple[str, ...]] = ("base",)

    python: str = "python:3.11.9-slim-bookworm"
    base: str = ""

    def __post_init__(self) -> None:
        if not _TAG.fullmatch(self.python):
            raise BadSettings(f"'{self.python}' is no image", fix="give one as python:3.11.9-slim")

    def refuses(self, source: Source) -> str:
        """Libraries of custom operators are built for one system."""
        return "it needs libraries of custom operators" if source.plan.custom_ops else ""

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the context and the layout."""
        app = folder / "app"
        app.mkdir()
        shutil.copyfile(source.bundle, app / "model.ortune")
        (app / "app.py").write_bytes((files("ortune.deployment.oci") / "app.py.txt").read_bytes())
        if reader := _reader(source):
            (app / _CARRIED).write_bytes(reader)
        needed = _requirements(source)
        (folder / "requirements.txt").write_text(needed, encoding="utf-8")
        (folder / "Dockerfile").write_text(_dockerfile(self.python), encoding="utf-8")
        image = folder / "image"
        base = layout.base_of(Path(self.base), image) if self.base else None
        held: dict[str, Path | bytes] = {f"app/{one.name}": one for one in app.iterdir()}
        layout.write(
            image,
            [held],
            _config(),
            base=base,
            annotations={
                "org.opencontainers.image.title": source.name,
                "org.opencontainers.image.description": source.plan.plan,
                "org.opencontainers.image.version": source.manifest.ortune,
            },
        )
        lines = [
            f"docker build -t {source.name.lower()} .",
            f"docker run -p {_PORT}:{_PORT} {source.name.lower()}",
            "skopeo inspect oci:image:latest",
        ]
        if base is None:
            lines.append("image/ holds the application's layer alone: give oci(base=LAYOUT)")
        return lines

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Unpack the layer, start its program with this Python, and ask it over HTTP."""
        with (
            TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as temporary,
            served.serving(folder / "image", Path(temporary)) as address,
        ):
            return by_call(
                source,
                "app.py of the image's layer, over HTTP",
                lambda name, feeds: served.ask(f"{address}/{quote(name, safe='')}", feeds),
            )

    def unrun(self, replay: Replay | None) -> str:
        """No container is started here."""
        return "the image in a container" if replay else "app.py, the image in a container"


def _reader(source: Source) -> bytes:
    """Return the reader in one file; empty where the plan or this version needs all of ortune."""
    if _CARRIED in source.manifest.members:
        return (source.folder / _CARRIED).read_bytes()
    if source.backend.name() not in _READ or find_spec(_READER) is None:
        return b""
    text: str = import_module(f"{_READER}.generate").source()
    return text.encode()


def _requirements(source: Source) -> str:
    """Return the versions that the plan was measured with; ortune itself without a reader.

    Raises:
        BadModel: One is no version: a line of that file could name another index.
    """
    known = {name: source.manifest.versions.get(name, "") for name in _PINNED}
    known["ortune"] = "" if _reader(source) else source.manifest.ortune
    for name, version in known.items():
        if version and not _VERSION.fullmatch(version):
            raise BadModel(f"{version!r} is no version of {name}", fix=stored.DISTRUST)
    return "".join(f"{name}=={version}\n" for name, version in known.items() if version)


def _config() -> dict[str, object]:
    return {
        "Entrypoint": list(_ENTRY),
        "Env": ["PYTHONUNBUFFERED=1"],
        "ExposedPorts": {f"{_PORT}/tcp": {}},
        "User": "65532:65532",
        "WorkingDir": "/app",
        "Healthcheck": {
            "Test": ["CMD", *_ENTRY, "--health"],
            "Interval": 30_000_000_000,
            "Timeout": 10_000_000_000,
            "StartPeriod": 60_000_000_000,
            "Retries": 3,
        },
    }


def _dockerfile(python: str) -> str:
    check = json.dumps([*_ENTRY, "--health"])
    return f"""FROM {python}
COPY requirements.txt /app/requirements.txt
RUN pip install --no-cache-dir -r /app/requirements.txt
COPY app/ /app/
ENV PYTHONUNBUFFERED=1
WORKDIR /app
USER 65532:65532
EXPOSE {_PORT}
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD {check}
ENTRYPOINT {json.dumps(list(_ENTRY))}
"""
