"""What an installation takes: size on disk, and the time to import and to show help.

    make wheel && python -m benchmarks.speed.installed [--wheel dist/....whl] [--runs 21]

Clean environments below ``build/installed`` get the wheel alone and the wheel with ``[openvino]``,
as pip installs them, byte code included. Sizes are of the files that pip lists. Times are CPU
seconds of a fresh process, the median of the runs behind a first one: the wall clock would also
show what else runs. Results: ``benchmarks/results/installed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.result_files import result_file, write_results
from ortune.measurement.machine.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "installed"
RESULTS = result_file("installed")
LOCK = ROOT / "requirements" / "dev.lock"
"""The versions that all results are of."""
EXTRAS = {"alone": "", "with openvino": "[openvino]"}
TIMED = {
    "python": ("-c", "pass"),
    "import ortune": ("-c", "import ortune"),
    "ortune --help": ("-m", "ortune.cli.main", "--help"),
    "from ortune import optimize": ("-c", "from ortune import optimize"),
}
_SIZES = """
import importlib.metadata as m, json
found = {}
for one in m.distributions():
    files = [f.locate() for f in one.files or ()]
    found[one.name] = sum(f.stat().st_size for f in files if f.is_file())
print(json.dumps(found))
"""
_NOT_OURS = ("pip", "setuptools")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--runs", type=int, default=21)
    asked = parser.parse_args()
    wheel = (asked.wheel or newest()).resolve()
    found: dict[str, Any] = {"machine": describe_machine(), "wheel": wheel.stat().st_size}
    for name, extra in EXTRAS.items():
        python = _environment(name, f"{wheel}{extra}")
        sizes = json.loads(_said(python, "-c", _SIZES))
        counted = {k: size for k, size in sizes.items() if k.lower() not in _NOT_OURS}
        found[name] = {"bytes": sum(counted.values()), "packages": dict(sorted(counted.items()))}
    python = WORK / "alone" / "bin" / "python"
    found["interpreter"] = _said(python, "--version").strip()
    found["version"] = _said(python, "-m", "ortune.cli.main", "--version").strip()
    found["cpu_s"] = {name: _cpu_s(python, words, asked.runs) for name, words in TIMED.items()}
    write_results(RESULTS, found)
    print(json.dumps({key: found[key] for key in ("wheel", "version", "cpu_s")}, indent=1))


def newest() -> Path:
    """Return the wheel that was built last.

    Raises:
        SystemExit: There is none.
    """
    wheels = sorted((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit("there is no wheel in dist/: run `make wheel` first")
    return wheels[-1]


def _environment(name: str, requirement: str) -> Path:
    """Make a clean environment with a requirement, and return its interpreter."""
    home = WORK / name.replace(" ", "-")
    python = home / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, "-c", LOCK, requirement], env=_bare(), check=True)
    return python


def _bare() -> dict[str, str]:
    """Return this environment without what leads Python to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _said(python: Path, *words: str) -> str:
    """Return what a process says that sees nothing of the checkout."""
    done = subprocess.run(
        [python, *words], cwd=WORK, env=_bare(), stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout


def _cpu_s(python: Path, words: tuple[str, ...], runs: int) -> float:
    """Return CPU seconds of a process; the first run, which writes caches, does not count."""
    taken = []
    for _ in range(runs + 1):
        before = _children()
        _said(python, *words)
        taken.append(_children() - before)
    return round(median(taken[1:]), 4)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
