"""Run the wheel's demo and the unit tests on every CPython at hand.

    make pythons
    python -m tools.pythons dist/ortune-0.1.0-py3-none-any.whl [--seconds N] [--fast] [PYTHON...]
    python -m tools.pythons dist/ortune-0.1.0-py3-none-any.whl --tests core,graph,data,bundle

Each interpreter gets a clean environment of its own in ``build/pythons``, where nothing of the
checkout is seen. There the demo runs with nothing but the wheel, on the locked packages and, in
an environment of its own, on the newest ones; then the tests' packages are installed, without
torch, and every folder of ``tests/unit`` runs. What is done is kept for the
same code, so that a run that was stopped, or is given ``--seconds``, goes on where it ended.
Results: ``benchmarks/results/pythons.json``. The package's metadata claims those, and no others.

With ``--tests``, those folders of the unit tests alone run, and the results stand under the
processor as well: so a processor that is emulated shows that things work there, and no more.
With ``--fast``, as at landing, the tests are those of `FAST`, none for the Python that runs this,
whose suite `make test` runs, and no results are written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "pythons"
RESULTS = ROOT / "benchmarks" / "results" / "pythons.json"
OLDEST, NEWEST = 11, 19
FAST = (
    *("core", "graph", "data", "metrics", "serving/server", "test_python_api.py"),
    "test_python_api.py",
)
"""Where Pythons have differed: classes and their signatures, logging, asyncio, gRPC, files."""
_ASK = (
    "import ensurepip, venv, platform as p; print(p.python_implementation(), p.python_version())"
)
_PACKAGES = """
import importlib.metadata as m, json, pathlib, sysconfig
names = ("onnxruntime", "onnx", "onnx-ir", "numpy")
size = sum(p.stat().st_size for p in pathlib.Path(sysconfig.get_path("purelib")).rglob("*")
           if p.is_file())
print(json.dumps({"packages": {name: m.version(name) for name in names}, "bytes": size}))
"""
_PIP = ("-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-compile")


def main() -> int:
    """Run what is not done yet; return 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="*", help="default: those on PATH and of pyenv")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--fast", action="store_true", help="the wheel, its demo and few tests")
    parser.add_argument("--tests", default="", help="folders of tests/unit: a processor's own run")
    asked = parser.parse_intermixed_args()
    names = FAST if asked.fast else [one for one in asked.tests.split(",") if one]
    until = time.monotonic() + asked.seconds
    found = interpreters(asked.pythons)
    every = [
        Environment(asked.wheel.resolve(), minor, one, _list_tests(minor, names))
        for minor, one in found.items()
    ]
    left = sum(one.run(until) for one in every)
    where = f" on {platform.machine()}" if asked.tests else ""
    results = {f"{one.minor}{where}": one.summary() for one in every}
    print(json.dumps(results, indent=1))
    if left:
        print(f"{left} steps are left: the same command goes on")
    elif not asked.fast:
        kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps(dict(sorted((kept | results).items())), indent=1) + "\n")
    return int(left > 0 or any(one["failed"] for one in results.values()))


def interpreters(given: list[str]) -> dict[str, tuple[str, str]]:
    """Return minor version -> version and path of each CPython, the oldest first."""
    names = [shutil.which(f"python3.{k}") for k in range(OLDEST, NEWEST)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    paths = given or [*map(str, filter(None, names)), *map(str, pyenv.glob("3.*/bin/python"))]
    found = {}
    for path in paths:
        done = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{path} makes no environments: left out", file=sys.stderr)
        kind, _, version = done.stdout.strip().partition(" ")
        numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
        if done.returncode == 0 and kind == "CPython" and numbers >= (3, OLDEST):
            found[numbers] = (version, path)
    return {f"{a}.{b}": found[a, b] for a, b in sorted(found)}


class Environment:
    """One interpreter's environment, and what was done in it with a wheel."""

    def __init__(
        self, wheel: Path, minor: str, python: tuple[str, str], tests: Sequence[Path]
    ) -> None:
        self.minor = minor
        self._tests = tests
        self._wheel = wheel
        self._version, self._base = python
        self._home = WORK / f"{minor}-{_digest(wheel)[:12]}"
        self._kept = self._home / "done.json"
        self._python = self._home / "venv" / "bin" / "python"
        self._newest = self._home / "newest" / "bin" / "python"
        self._done: dict[str, Any] = (
            json.loads(self._kept.read_text()) if self._kept.is_file() else {}
        )

    def run(self, until: float) -> int:
        """Run the steps that are not done, while there is time; return how many are left."""
        steps = dict(self._steps())
        for name, step in steps.items():
            if name in self._done and not self._done[name].get("failed"):
                continue
            if time.monotonic() > until:
                break
            self._home.mkdir(parents=True, exist_ok=True)
            print(f"{self.minor} {name}", file=sys.stderr, flush=True)
            began = time.monotonic()
            self._done[name] = step() | {"seconds": round(time.monotonic() - began)}
            self._kept.write_text(json.dumps(self._done, indent=1))
        return len(steps.keys() - self._done.keys())

    def summary(self) -> dict[str, Any]:
        """Return what passed and what failed."""
        tests = [one for one in self._done.values() if "passed" in one]
        return {
            "python": self._version,
            "version": self._done.get("demo", {}).get("version"),
            "demo": self._done.get("demo"),
            "newest": self._done.get("demo on newest packages"),
            "unit tests": {key: sum(one[key] for one in tests) for key in ("passed", "skipped")},
            "failed": [line for name, one in self._done.items() if one.get("failed")
                       for line in _list_failures(name, one["failed"])],
        }  # fmt: skip

    def _steps(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        yield "install", self._install
        yield "demo", lambda: self._demo(self._python)
        if self._tests:
            yield "newest packages", self._install_newest
            yield "demo on newest packages", self._demo_newest
            yield "test packages", self._test_packages
        for path in self._tests:
            yield path.relative_to(ROOT).as_posix(), lambda path=path: self._run_tests(path)

    def _install(self) -> dict[str, Any]:
        """Install the wheel, whatever it claims, and the locked packages that it asks for."""
        pip, lock = [str(self._python), *_PIP], str(ROOT / "requirements" / "core.lock")
        return (
            self._call([self._base, "-m", "venv", str(self._home / "venv")])
            or self._call([*pip, "--no-deps", "--ignore-requires-python", str(self._wheel)])
            or self._call([*pip, "-r", lock])
        )

    def _install_newest(self) -> dict[str, Any]:
        """Install the wheel in a second environment with whatever packages pip chooses."""
        pip = [str(self._newest), *_PIP]
        return self._call([self._base, "-m", "venv", str(self._home / "newest")]) or self._call(
            [*pip, "--upgrade", str(self._wheel)]
        )

    def _demo_newest(self) -> dict[str, Any]:
        """Run the demo there; say which versions it ran on, and how many bytes they take."""
        said = self._output([str(self._newest), "-c", _PACKAGES], self._home).stdout
        return self._demo(self._newest) | json.loads(said)

    def _demo(self, python: Path) -> dict[str, Any]:
        """Run the demo as a user does, in an empty folder."""
        here = self._home / "demo"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        ortune = str(python.with_name("ortune"))
        version = self._output([ortune, "--version"], here).stdout.strip()
        done = self._output([ortune, "demo", "--json"], here)
        if done.returncode:
            return {"failed": done.stderr[-2000:]}
        found = json.loads(done.stdout)
        kept = {key: found["best"][key] for key in ("plan", "speedup")}
        return {"version": version, **kept, "too noisy": found["too_noisy"]}

    def _test_packages(self) -> dict[str, Any]:
        """Install the development lock without torch, whose wheel is another one everywhere."""
        lock = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
        wanted = self._home / "requirements.txt"
        wanted.write_text("\n".join(one for one in lock if not one.startswith("torch==")))
        return self._call([str(self._python), *_PIP, "-r", str(wanted)])

    def _run_tests(self, path: Path) -> dict[str, Any]:
        """Run one folder of the tests."""
        command = [str(self._python), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        done = self._output([*command, str(path)], ROOT)
        counts = {key: _count(done.stdout, key) for key in ("passed", "skipped")}
        failed = "" if done.returncode in (0, 5) else done.stdout[-2000:] + done.stderr[-500:]
        return counts | {"failed": failed}

    def _call(self, command: list[str]) -> dict[str, Any]:
        done = self._output(command, self._home)
        return {"failed": done.stderr[-2000:]} if done.returncode else {}

    def _output(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to which nothing of this environment is known."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment["XDG_CACHE_HOME"] = str(self._home / "cache")
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )


def _list_tests(minor: str, names: Sequence[str]) -> list[Path]:
    """Return the files and folders of the unit tests that run on a Python: all without names."""
    home = ROOT / "tests" / "unit"
    if names:
        is_tested = names is FAST and minor == "{}.{}".format(*sys.version_info)
        return [] if is_tested else [home / one for one in names]
    return [
        path
        for path in sorted(home.iterdir())
        # The metadata's test judges the results of this very run.
        if (path.name.startswith("test_") and path.name != "test_metadata.py")
        or (path.is_dir() and any(path.rglob("test_*.py")))
    ]


def _digest(wheel: Path) -> str:
    """Return a digest of the wheel's code: its metadata and commit may differ."""
    with zipfile.ZipFile(wheel) as file:
        members = [
            (one.filename, one.CRC)
            for one in file.infolist()
            if ".dist-info/" not in one.filename and one.filename != "ortune/core/commit.txt"
        ]
    return hashlib.sha256(repr(sorted(members)).encode()).hexdigest()


def _list_failures(step: str, said: str) -> list[str]:
    """Return the tests that pytest calls failed, or what was said where it names none."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE) or [
        f"{step}: {said}"
    ]


def _count(said: str, what: str) -> int:
    found = re.findall(rf"(\d+) {what}", said.splitlines()[-1] if said.strip() else "")
    return int(found[0]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
