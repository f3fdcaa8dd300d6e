"""Write an OCI image layout: layers as tar+gzip, configuration, manifest and index.

The same files give the same bytes: no dates, no owners, names in order. Layout 1.0.0 of the
specification: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ortune.core.errors import BadSettings

_OCI = "application/vnd.oci.image"
_EPOCH = "1970-01-01T00:00:00Z"
_CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REF = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Base:
    """An image that layers are put upon.

    Attributes:
        config: Its configuration.
        layers: Descriptors of its layers, lowest first.
    """

    config: Mapping[str, Any] = field(
        default_factory=lambda: {"architecture": "amd64", "os": "linux"}
    )
    layers: tuple[Mapping[str, Any], ...] = ()


class _Hashed:
    """A file that digests what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def base_of(folder: Path, out: Path) -> Base:
    """Read the image of another layout and copy its layers into this one.

    Raises:
        BadSettings: It is no layout, holds several images, or a blob is not what its digest says.
    """
    try:
        (listed,) = json.loads((folder / "index.json").read_bytes())["manifests"]
        manifest = json.loads(_blob(folder, listed["digest"]).read_bytes())
        config = json.loads(_blob(folder, manifest["config"]["digest"]).read_bytes())
        layers = tuple(manifest["layers"])
        for layer in layers:
            target = _blob(out, layer["digest"])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_blob(folder, layer["digest"]), target)
            _demand(target, layer["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadSettings(
            f"'{folder}' is no image layout of one image: {type(error).__name__}: {error}",
            fix="make one: skopeo copy docker://IMAGE@DIGEST oci:FOLDER:latest",
        ) from error
    return Base(config, layers)


def write(
    out: Path,
    layers: Sequence[Mapping[str, Path | bytes]],
    config: Mapping[str, Any],
    *,
    base: Base | None = None,
    tag: str = "latest",
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Write a layout of one image and return the digest of its manifest.

    Args:
        out: A folder.
        layers: Each path in the image -> its content.
        config: What a container is started with: Entrypoint, Env and so on.
        base: What lies below.
        tag: The image's name in the layout.
        annotations: Of the manifest.
    """
    base = base or Base()
    made = [_layer(out, files) for files in layers]
    held = base.config
    own = {**held.get("config", {}), **config}
    own["Env"] = [*held.get("config", {}).get("Env", ()), *config.get("Env", ())]
    described = {
        **held,
        "created": _EPOCH,
        "config": own,
        "rootfs": {
            "type": "layers",
            "diff_ids": [
                *held.get("rootfs", {}).get("diff_ids", ()),
                *(found for found, _ in made),
            ],
        },
        "history": [
            *held.get("history", ()),
            *({"created": _EPOCH, "created_by": "ortune pack"} for _ in made),
        ],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _json(out, described, f"{_OCI}.config.v1+json"),
        "layers": [*base.layers, *(descriptor for _, descriptor in made)],
        "annotations": dict(annotations or {}),
    }
    descriptor = _json(out, manifest, f"{_OCI}.manifest.v1+json")
    platform = {key: described[key] for key in ("architecture", "os")}
    index = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.index.v1+json",
        "manifests": [{**descriptor, "platform": platform, "annotations": {REF: tag}}],
    }
    (out / "index.json").write_bytes(_bytes(index))
    (out / "oci-layout").write_bytes(_bytes({"imageLayoutVersion": "1.0.0"}))
    return str(descriptor["digest"])


def extract(layout: Path, out: Path) -> None:
    """Unpack the image's last layer: that of the application.

    Raises:
        BadSettings: A blob is not what its digest says.
    """
    (listed,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads(_blob(layout, listed["digest"]).read_bytes())
    digest = manifest["layers"][-1]["digest"]
    _demand(_blob(layout, digest), digest)
    with tarfile.open(_blob(layout, digest), "r:gz") as layer:
        layer.extractall(out, filter="data")


def _layer(out: Path, files: Mapping[str, Path | bytes]) -> tuple[str, dict[str, Any]]:
    """Write one layer; return the digest of the tar and the descriptor of the packed blob."""
    folder = out / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / "draft"
    with draft.open("wb") as file:
        packed = _Hashed(file)
        with gzip.GzipFile("", "wb", 6, packed, mtime=0) as stream:
            plain = _Hashed(stream)  # type: ignore[arg-type]
            with tarfile.open(mode="w|", fileobj=plain, format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
                for name in _folders(files):
                    tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
                for name, content in sorted(files.items()):
                    _add(tar, name, content)
    digest = packed.digest.hexdigest()
    draft.replace(folder / digest)
    descriptor = {
        "mediaType": f"{_OCI}.layer.v1.tar+gzip",
        "digest": f"sha256:{digest}",
        "size": packed.size,
    }
    return f"sha256:{plain.digest.hexdigest()}", descriptor


def _folders(files: Mapping[str, Path | bytes]) -> list[str]:
    parents = {str(one) for name in files for one in PurePosixPath(name).parents}
    return sorted(parents - {"."})


def _add(tar: tarfile.TarFile, name: str, content: Path | bytes) -> None:
    entry = _entry(name, tarfile.REGTYPE, 0o644)
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    entry.size = content.stat().st_size
    with content.open("rb") as file:
        tar.addfile(entry, file)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _json(out: Path, value: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = _bytes(value)
    digest = hashlib.sha256(data).hexdigest()
    path = _blob(out, f"sha256:{digest}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _blob(folder: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"no sha256 digest: {digest[:80]}")
    return folder / "blobs" / "sha256" / digest.partition(":")[2]


def _demand(path: Path, digest: str) -> None:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    if f"sha256:{found.hexdigest()}" != digest:
        raise BadSettings(
            f"blob {path.name[:12]} of the image is not what its digest says",
            fix="copy the image again",
        )
