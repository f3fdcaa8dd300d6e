"""The package claims the CPythons that it was run on, and carries what the demo needs."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path

from ortune.core.version import read_commit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RAN = json.loads((ROOT / "benchmarks" / "results" / "pythons.json").read_text())


def test_it_claims_the_pythons_that_it_ran_on_and_no_others() -> None:
    told = "\n".join(PROJECT["project"]["classifiers"])
    claimed = re.findall(r"Python :: (3\.\d+)$", told, re.MULTILINE)
    passed = [
        minor
        for minor, one in RAN.items()
        if " on " not in minor  # a processor's own run, of some tests
        and one["demo"]
        and one["unit tests"]["passed"]
        and not one["failed"]
    ]
    assert claimed == passed
    assert PROJECT["project"]["requires-python"] == f">={claimed[0]}", "no upper bound"
    said = " or ".join(filter(None, (", ".join(claimed[:-1]), claimed[-1])))
    assert f"CPython {said}, from" in (ROOT / "README.md").read_text()


def test_a_build_finds_the_commit() -> None:
    """The build's hook runs the file of the version by itself and calls what it names."""
    (name,) = re.findall(r'run_path\(str\(VERSION\)\)\["(\w+)"\]', (ROOT / "setup.py").read_text())
    version = runpy.run_path(str(ROOT / "src" / "ortune" / "core" / "version.py"))
    assert version[name]() == read_commit()


def test_the_demo_of_the_wheel_showed_something() -> None:
    for minor, one in RAN.items():
        assert one["version"].startswith("ortune 0.1.0 (commit ")
        emulated = " on " in minor  # its times say nothing
        assert emulated or one["demo"]["speedup"]["low"] > 1 or one["demo"]["too noisy"]


def test_every_file_of_the_package_that_is_no_code_is_in_the_wheel() -> None:
    package = ROOT / "src" / "ortune"
    kept = {
        path
        for pattern in PROJECT["tool"]["setuptools"]["package-data"]["ortune"]
        for path in package.glob(pattern)
    }
    there = {p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert {p for p in there if p.suffix not in (".py", ".pyc")} == kept
