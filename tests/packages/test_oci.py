"""Other people's tools read the image layout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ortune.bundle.package import package
from ortune.targets.oci import OciImage
from tests.packages.tools import program
from tests.unit import packaged


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    bundle = packaged.bundle(folder)
    first = package([bundle], folder / "first", OciImage(replayed=False))
    base = str(first.path / "image")
    return package([bundle], folder / "second", OciImage(base=base, replayed=False)).path / "image"


def test_skopeo_inspects_it(image: Path) -> None:
    skopeo = program("skopeo", install="apt-get install skopeo")
    held = json.loads(said([skopeo, "inspect", f"oci:{image}:latest"]))
    assert held["Os"] == "linux" and len(held["Layers"]) == 2
    config = json.loads(said([skopeo, "inspect", "--config", f"oci:{image}:latest"]))
    assert config["config"]["Entrypoint"] == ["python", "/app/app.py"]


def test_skopeo_copies_it(image: Path, tmp_path: Path) -> None:
    skopeo = program("skopeo", install="apt-get install skopeo")
    copied = tmp_path / "copied"
    # Digests of layers and of the unpacked layers are checked on the way.
    said([skopeo, "--insecure-policy", "copy", f"oci:{image}:latest", f"oci:{copied}:latest"])
    held = json.loads((copied / "index.json").read_bytes())["manifests"][0]["digest"]
    assert held == json.loads((image / "index.json").read_bytes())["manifests"][0]["digest"]


def said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
