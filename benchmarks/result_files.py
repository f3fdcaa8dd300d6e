"""Where results lie: ``results/MACHINE/NAME.json``, with the commit that was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.core.atomic_write import open_draft
from ortune.core.version import read_commit
from ortune.measurement.machine.machine import describe_machine

RESULTS = Path(__file__).with_name("results")
"""What depends on no machine (replays, populations, mutants) lies here itself."""
_UNITS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx2")


def machine_name(about: Mapping[str, str]) -> str:
    """Return the folder of a machine's results: its CPU and its widest integer unit.

    Args:
        about: As `ortune.measurement.machine.machine.describe_machine` returns it.
    """
    sets = about["instruction sets"].split()
    unit = next((name for name in _UNITS if name in sets), "")
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)|processor", "", about["cpu"].lower()))
    return "-".join([*words[:3], *unit.split("_")]).strip("-")


def result_file(name: str) -> Path:
    """Return the file of a benchmark's results on this machine."""
    return RESULTS / machine_name(describe_machine()) / f"{name}.json"


def find_results(name: str, folder: Path = RESULTS) -> list[Path]:
    """Return the files of a benchmark's results: of no machine, and of each."""
    return [*folder.glob(f"{name}.json"), *sorted(folder.glob(f"*/{name}.json"))]


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write results whole or not at all, with the commit of the code that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_draft(path) as draft:
        draft.write_text(json.dumps({**results, "commit": read_commit()}, indent=1) + "\n")
