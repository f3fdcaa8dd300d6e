"""The main job on real shapes: ortune's winner beside what a careful person would try by hand.

    python -m benchmarks.main_job [name ...] [--time 3m]

Every ratio is to the original on onnxruntime's CPU provider, one thread. Winner and contestants
run in one interleaved race. Results: ``benchmarks/results/main_job.json``. Needs an idle machine
and about half an hour.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.samples import written

import ortune as ot
from benchmarks.contestants import Contestant, contestants
from ortune.analysis.benchmark.bench import race
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec
from ortune.core.trial import Verdict
from ortune.experiment.golden import built_model
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import machine, versions

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".cache" / "main_job"
THREADS = 1


@dataclass(frozen=True)
class Case:
    """A model and the budgets it is judged by: on all backends, and on the CPU provider alone."""

    write: Callable[[str], Path]
    name: str
    budget: str
    cpu_budget: str
    aim: float
    cpu_aim: float


def _shape(name: str) -> Path:
    from benchmarks.shapes import write

    return write(name)


CASES = {
    "efficientnet-lite0": Case(
        written, "efficientnet-lite0", "top1>=base-0.01", "top1>=base-0.01", 0.55, 0.55
    ),
    "minilm": Case(
        written, "minilm", "cosine>=0.999", "benchmarks.sentences:cosine>=0.99", 0.25, 0.55
    ),
    "resnet50": Case(_shape, "resnet50", "snr>=30", "snr>=30", 0.40, 0.40),
    "bert": Case(_shape, "bert", "snr>=30", "snr>=30", 0.30, 0.30),
    "lstm": Case(_shape, "lstm", "snr>=30", "snr>=30", 0.55, 0.55),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    parser.add_argument("--time", default="3m", help="of each search")
    asked = parser.parse_args()
    path = HERE / "results" / "main_job.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text())["cases"] if path.is_file() else {}
    for name in asked.names or CASES:
        known[name] = run(CASES[name], asked.time)
        about = {"machine": machine(), "versions": versions(), "noise": noise.now()}
        path.write_text(json.dumps({**about, "threads": THREADS, "cases": known}, indent=1) + "\n")
    for name, case in known.items():
        show(name, case)


def run(case: Case, seconds: str) -> dict[str, Any]:
    """Search twice, then race the winners against the contestants."""
    made = case.write(case.name)
    model, data, calibration = made / "model.onnx", made / "data", made / "calibration"
    found = {
        "all backends": _search(case, made, "auto", case.budget, seconds),
        "cpu": _search(case, made, f"cpu(threads={THREADS})", case.cpu_budget, seconds),
    }
    entries = contestants(model, calibration, WORK / case.name / "files", THREADS)
    usable = [entry for entry in entries if not entry.error]
    winners = [_winner(label, study, model) for label, study in found.items()]
    runners = [*usable, *winners]
    raced = codec.encode(race([(r.model, r.backend) for r in runners], data=data, seconds=90))
    rows = [
        _row(case, entry, row, ratio, model, data)
        for entry, row, ratio in zip(runners, raced["rows"], raced["ratios"], strict=True)
    ]
    rows += [{"name": entry.name, "error": entry.error} for entry in entries if entry.error]
    return {
        "budget": case.budget,
        "cpu_budget": case.cpu_budget,
        "aim": case.aim,
        "cpu_aim": case.cpu_aim,
        "rows": rows,
        "searches": {label: _summary(study) for label, study in found.items()},
    }


def _search(case: Case, made: Path, on: str, budget: str, seconds: str) -> ot.Study:
    backends = "cpu(threads=1),openvino(threads=1)" if on == "auto" else on
    out = WORK / case.name / ("all" if on == "auto" else "cpu")
    shutil.rmtree(out, ignore_errors=True)
    start = time.monotonic()
    study = ot.optimize(
        made / "model.onnx",
        data=made / "data",
        calibration=made / "calibration",
        budget=budget,
        on=backends,
        time=seconds,
        out=out,
    )
    print(f"{case.name} on {on}: {study.best.plan}, {time.monotonic() - start:.0f} s", flush=True)
    return study


def _winner(label: str, study: ot.Study, model: Path) -> Contestant:
    best = study.best
    path = built_model(Path(study.root), best, model)
    return Contestant(f"ortune, {label}: {best.plan.recipe.name}", path, best.plan.backend)


def _row(
    case: Case, entry: Contestant, row: dict[str, Any], ratio: Any, model: Path, data: Path
) -> dict[str, Any]:
    """Add accuracy to a raced entry: the budgets' own metrics, whoever made the file."""
    made: dict[str, Any] = {
        "name": entry.name,
        "backend": str(entry.backend),
        "ratio": ratio,
        "error": row["error"],
        "p50_ns": row.get("p50_ns"),
        "size": row["size"],
        "scores": {},
        "holds": [],
    }
    for budget in dict.fromkeys((case.budget, case.cpu_budget)):
        try:
            found = ot.verify(model, entry.model, data=data, budget=budget, on=str(entry.backend))
        except OrtuneError as error:
            made["error"] = error.what
            break
        made["scores"] |= {s.metric: s.value for s in found.scores}
        made["holds"].append(budget if found.verdict is not Verdict.FAILS else "")
    return made


def _summary(study: ot.Study) -> dict[str, Any]:
    best = study.best
    ratio = best.ratio
    return {
        "plan": str(best.plan),
        "plans": len({t.key for t in study.trials}),
        "finished": study.finished,
        "ratio": None if ratio is None else [ratio.value, ratio.low, ratio.high],
        "score": None if best.score is None else [best.score.value, str(best.score.verdict)],
        "noise": dict(study.noise),
    }


def show(name: str, case: dict[str, Any]) -> None:
    """Print one case as a table, and how each winner stands to the best that holds the budget."""
    print(f"\n{name}: {case['budget']}; cpu alone {case['cpu_budget']}")
    for row in sorted(case["rows"], key=lambda r: (r.get("ratio") or {}).get("value", 9.0)):
        if row.get("error"):
            print(f"  {row['name']:45} {row['error'][:70]}")
            continue
        scores = ", ".join(f"{k} {v:.4g}" for k, v in row["scores"].items())
        value, low, high = (row["ratio"][key] for key in ("value", "low", "high"))
        print(f"  {row['name'][:60]:60} {value:.3f} [{low:.3f}, {high:.3f}]  {scores}")
    for label, key, aim in (("all backends", "budget", "aim"), ("cpu", "cpu_budget", "cpu_aim")):
        own, best = _standing(case, label, case[key])
        if own and best:
            mine, theirs = own["ratio"]["value"], best["ratio"]["value"]
            print(f"  {label}: {mine:.3f} (aim {case[aim]}), {mine / theirs:.3f} of the best")
            print(f"    contestant within the budget: {best['name']} {theirs:.3f}")


def _standing(case: dict[str, Any], label: str, budget: str) -> tuple[Any, Any]:
    usable = [r for r in case["rows"] if r.get("ratio") and not r.get("error")]
    own = next((r for r in usable if r["name"].startswith(f"ortune, {label}")), None)
    rivals = [r for r in usable if not r["name"].startswith("ortune") and budget in r["holds"]]
    if label == "cpu":
        rivals = [r for r in rivals if r["backend"].startswith("cpu")]
    return own, min(rivals, key=lambda r: r["ratio"]["value"], default=None)


if __name__ == "__main__":
    main()
