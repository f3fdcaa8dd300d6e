"""An image layout is what its digests say, the same every time, and stands on another."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.packaged import contents

from ortune.core.errors import BadSettings
from ortune.deployment.oci import layout

CONFIG = {"Entrypoint": ["python", "/app/app.py"], "Env": ["A=1"]}


def image(out: Path, **given: Any) -> Path:
    (out.parent / "file").write_bytes(b"weights")
    files: Mapping[str, Path | bytes] = {"app/b": out.parent / "file", "app/a": b"text"}
    layout.write(out, [files], CONFIG, **given)
    return out


def blob(folder: Path, descriptor: Mapping[str, Any]) -> bytes:
    """Return a blob, and check its digest and size."""
    kind, _, name = descriptor["digest"].partition(":")
    data = (folder / "blobs" / kind / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == name and len(data) == descriptor["size"]
    return data


def test_digests_and_sizes(tmp_path: Path) -> None:
    out = image(tmp_path / "image")
    assert json.loads((out / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (listed,) = json.loads((out / "index.json").read_bytes())["manifests"]
    assert listed["annotations"][layout.REF] == "latest"
    manifest = json.loads(blob(out, listed))
    config = json.loads(blob(out, manifest["config"]))
    (layer,) = manifest["layers"]
    plain = gzip.decompress(blob(out, layer))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    assert config["config"] == CONFIG and len(config["history"]) == 1
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert [(one.name, one.mode, one.mtime, one.uid) for one in tar] == [
            ("app", 0o755, 0, 0),
            ("app/a", 0o644, 0, 0),
            ("app/b", 0o644, 0, 0),
        ]
    held = {layer["digest"], listed["digest"], manifest["config"]["digest"]}
    assert {f"sha256:{one.name}" for one in (out / "blobs" / "sha256").iterdir()} == held


def test_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = (image(tmp_path / name / "image") for name in ("one", "two"))
    assert contents(first) == contents(second)


def test_it_stands_on_a_base(tmp_path: Path) -> None:
    below = tmp_path / "below"
    layout.write(below, [{"usr/bin/python": b"#!"}], {"Env": ["PATH=/usr/bin"], "User": "root"})
    out = image(tmp_path / "image", base=layout.base_of(below, tmp_path / "image"))
    (listed,) = json.loads((out / "index.json").read_bytes())["manifests"]
    manifest = json.loads(blob(out, listed))
    config = json.loads(blob(out, manifest["config"]))
    for layer, diff in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        plain = gzip.decompress(blob(out, layer))
        assert diff == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert len(manifest["layers"]) == 2
    assert config["config"]["Env"] == ["PATH=/usr/bin", "A=1"]
    layout.extract(out, tmp_path / "root")
    assert (tmp_path / "root" / "app" / "a").read_bytes() == b"text"


def test_a_changed_base_is_refused(tmp_path: Path) -> None:
    below = image(tmp_path / "below")
    (listed,) = json.loads((below / "index.json").read_bytes())["manifests"]
    (layer,) = json.loads(blob(below, listed))["layers"]
    place = below / "blobs" / "sha256" / layer["digest"].partition(":")[2]
    place.write_bytes(place.read_bytes() + b"x")
    with pytest.raises(BadSettings, match="is not what its digest says"):
        layout.base_of(below, tmp_path / "image")


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "md5:0", "sha256:" + "g" * 64])
def test_a_digest_names_no_other_file(tmp_path: Path, digest: str) -> None:
    held = {"manifests": [{"digest": digest}]}
    (tmp_path / "index.json").write_text(json.dumps(held), encoding="utf-8")
    with pytest.raises(BadSettings, match="is no image layout"):
        layout.base_of(tmp_path, tmp_path / "image")


def test_no_layout(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="is no image layout"):
        layout.base_of(tmp_path / "nowhere", tmp_path / "image")
