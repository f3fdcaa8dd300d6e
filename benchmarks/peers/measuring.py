"""One race of all files beside the original, and the same scores for all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.making import Made, last_line
from benchmarks.peers.scoring import Scored, scored
from ortune.analysis.benchmark.bench import race_contestants
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.plugins import codec
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions

THREADS = 1
CPU = Cpu(threads=THREADS)
ON_OPENVINO = (("nncf", "default"), ("nncf", "hinted"), ("ort", "static, per channel"))
"""Files that OpenVINO gets too: NNCF writes for it."""


@dataclass(frozen=True)
class Runner:
    """One entry of the race.

    Attributes:
        facts: What the table says of how it was made.
    """

    model: Path
    backend: Backend
    facts: dict[str, Any]


def about() -> dict[str, Any]:
    """Return the machine, the versions and the settings that hold for all models."""
    return {
        "machine": describe_machine(),
        "versions": package_versions(),
        "threads": THREADS,
        "noise": noise.read_current_state(),
    }


def measure(
    case: Case,
    folder: Path,
    made: list[Made],
    own: list[tuple[Path, Backend, dict[str, Any]]],
    seconds: float,
) -> dict[str, Any]:
    """Return the rows of one model: peers' files, ortune's winners, and what could not be made."""
    model, data = folder / "model.onnx", folder / "data"
    runners = [Runner(model, CPU, {"tool": "", "recipe": "original"})]
    runners += _peers(case, made)
    runners += [Runner(*one) for one in own]
    raced = codec.encode(
        race_contestants(
            [(one.model, one.backend) for one in runners],
            data=data,
            time=seconds,
            self_check=True,
            sets=3,
        )
    )
    again = raced["self_check"]["row"]
    both = zip(raced["rows"], raced["ratios"], strict=True)
    timed = [pair for k, pair in enumerate(both) if k != again]
    rows = [
        _row(case, folder, one, row, ratio)
        for one, (row, ratio) in zip(runners, timed, strict=True)
    ]
    rows += [asdict(one) for one in made if one.error]
    return {
        "budgets": list(case.budgets),
        "samples": len(list(data.glob("*.npz"))),
        "rows": rows,
        "self_check": raced["self_check"],
        "noise": raced["noise"],
        "judgement": raced["judgement"],
    }


def _peers(case: Case, made: list[Made]) -> list[Runner]:
    files = {(one.tool, one.recipe): one for one in made if not one.error}
    found = [Runner(one.path(case.name), CPU, asdict(one)) for one in files.values()]
    if Openvino().missing() is None:
        native = Openvino(threads=THREADS)
        found += [
            Runner(files[which].path(case.name), native, asdict(files[which]))
            for which in ON_OPENVINO
            if which in files
        ]
    return found


def _row(case: Case, folder: Path, one: Runner, row: dict[str, Any], ratio: Any) -> dict[str, Any]:
    """Add the race's figures and the scores to what is known of a file."""
    found = Scored(error=row["error"])
    if not row["error"]:
        found = scored(case, folder, one.model, one.backend)
    return one.facts | {
        "backend": str(one.backend),
        "ratio": ratio,
        "error": last_line(found.error) if found.error else "",
        "p50_ns": row.get("p50_ns"),
        "size": row["size"],
        "peak_rss": row.get("peak_rss"),
        "scores": found.values,
        "holds": found.holds,
    }
