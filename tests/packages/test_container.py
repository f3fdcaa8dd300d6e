"""The Dockerfile, built without a container engine and run, with what Debian's packages give.

buildah asks no registry of images: mmdebstrap makes what ``debian:trixie-slim`` holds, and some
more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.tools import PACKAGES

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/debian:trixie-slim"
LOCAL_AUTHORITIES = Path("usr/local/share/ca-certificates")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
MOST_BYTES = 900_000_000

pytestmark = pytest.mark.skipif(
    not (shutil.which("buildah") and shutil.which("mmdebstrap") and os.getuid() == 0),
    reason="needs buildah and mmdebstrap, and to be root",
)


def buildah(*words: str | Path) -> str:
    """Run a command of it, with its images and layers below the tests' own folder."""
    store = (PACKAGES / "containers").resolve()
    kept = ["--root", store / "images", "--runroot", store / "run", "--storage-driver", "vfs"]
    done = subprocess.run(["buildah", *kept, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


def make_base(folder: Path) -> None:
    """Give the Dockerfile its base under its usual name, with what this machine trusts."""
    tree = folder / "base.tar"
    place = folder / LOCAL_AUTHORITIES
    place.mkdir(parents=True)
    shutil.copy(AUTHORITIES, place / "host.crt")  # of a proxy that stands before the index
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "trixie", tree], check=True)
    base = buildah("from", "scratch")
    buildah("add", base, tree, "/")
    buildah("add", base, place, f"/{LOCAL_AUTHORITIES}")
    buildah("commit", "--rm", base, BASE)
    tree.unlink()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container of the image that the Dockerfile gives."""
    make_base(tmp_path_factory.mktemp("base"))
    clone = tmp_path_factory.mktemp("clone")
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    buildah("build", "--isolation", "chroot", "--pull-never", "-t", "ortune", clone)
    name = buildah("from", "--pull-never", "ortune")
    yield name
    buildah("rm", name)


def run(container: str, *words: str) -> str:
    return buildah("run", "--isolation", "chroot", container, "--", *words)


def test_the_image_is_small_and_knows_its_commit(container: str) -> None:
    size = run(container, "du", "-sbx", "/usr", "/opt")
    assert sum(int(line.split()[0]) for line in size.splitlines()) < MOST_BYTES, size
    commit = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    assert f"(commit {commit.stdout.strip()})" in run(container, "ortune", "--version")


def test_its_user_is_nobody_special_and_the_demo_runs(container: str) -> None:
    assert run(container, "id", "-u") == "1000"
    assert "demo" in run(container, "ortune", "demo", "--time", "30s")
    assert "openvino" in run(container, "ortune", "doctor")
    assert "Usage: ortune serve" in run(container, "ortune", "serve", "--help")
