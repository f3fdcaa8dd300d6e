"""Triton's own perf_analyzer, unmodified, started through the libraries that it was built for.

Its wheel is for glibc 2.38 and later. On an older Debian the libraries of release 13 are unpacked
beside it, and its binary is started by their loader.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packages.tools import PACKAGES

WHEEL = "perf-analyzer==2.60.0"
_FOLDER = PACKAGES / "perf_analyzer"
_LIBRARIES = ("libc6", "libstdc++6", "libgcc-s1", "libssl3t64", "zlib1g")
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LIMIT_S = 120


@dataclass(frozen=True)
class Analysis:
    """What it found.

    Attributes:
        per_second: Requests that were answered.
        failed: Requests that were not.
        said: All that it printed.
    """

    per_second: float
    failed: int
    said: str


def command() -> list[str]:
    """Return how it is started; fetched now if it is not there. Skips where it cannot be had."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("perf_analyzer is a binary for Linux on x86-64")
    binary = _FOLDER / "perf_analyzer" / "bin" / "perf_analyzer"
    try:
        if not binary.is_file():
            _fetch_wheel()
            (binary,) = _FOLDER.rglob("bin/perf_analyzer")
        binary.chmod(0o755)
        if tuple(map(int, platform.libc_ver()[1].split("."))) >= (2, 38):
            return [str(binary)]
        return [*_loader(), str(binary)]
    except (subprocess.CalledProcessError, FileNotFoundError, ValueError) as error:
        pytest.skip(f"perf_analyzer cannot be had here: {error}")


def run(
    command: Sequence[str],
    protocol: str,
    address: str,
    model: str,
    concurrency: int,
    shapes: Sequence[str] = (),
) -> Analysis:
    """Let it load a model for a few seconds.

    Args:
        shapes: Of inputs with free dimensions, such as ``x:256``.

    Raises:
        AssertionError: It ends with an error; with what it said.
    """
    words = [*command, "-m", model, "-i", protocol, "-u", address]
    words += ["--concurrency-range", str(concurrency), "-p", "1000", "-s", "1000", "-r", "3"]
    for shape in shapes:
        words += ["--shape", shape]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"exit {done.returncode}:\n{said[-4000:]}"
    found = re.search(r"Throughput: ([\d.e+]+) infer/sec", said)
    assert found, said
    failed = re.search(r"Failed request count: (\d+)", said, re.IGNORECASE)
    return Analysis(float(found[1]), int(failed[1]) if failed else 0, said)


def _fetch_wheel() -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    words = "download --quiet --no-deps --only-binary :all: --platform manylinux_2_38_x86_64"
    pip = [sys.executable, "-m", "pip", *words.split(), "--disable-pip-version-check"]
    subprocess.run([*pip, "--dest", str(_FOLDER), WHEEL], check=True)
    (wheel,) = _FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(_FOLDER)


def _loader() -> list[str]:
    """Return the loader of Debian 13 with its libraries, fetched by apt into a folder."""
    root = _FOLDER / "debian13"
    if not (root / _LOADER).exists():
        _fetch_libraries(root)
    folders = [root / "usr" / "lib" / "x86_64-linux-gnu", root / "usr" / "lib64"]
    return [str(root / _LOADER), "--library-path", ":".join(map(str, folders))]


def _fetch_libraries(root: Path) -> None:
    state = _FOLDER / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    sources = state / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYS}] {_mirror()} trixie main\n")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *_LIBRARIES], check=True, cwd=state)
    for package in state.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)


def _mirror() -> str:
    """Return where this system has its Debian from.

    Raises:
        ValueError: It has none.
    """
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = [line.split()[0] for line in said.splitlines() if line.endswith(" Debian")]
    if not found:
        raise ValueError("apt knows no mirror of Debian")
    return found[0]
