"""The main job on nine shapes: ortune's winner beside what a careful person would try by hand.

    python -m benchmarks.speed.main_job [name ...] [--time 3m] [--prepare] [--found [--twice]]

Every ratio is to the original on onnxruntime's CPU provider, one thread, from fresh pairs of
processes. Budgets: ``shapes.json`` beside it. Of each model: the contestants' files and scores
(``--prepare`` stops there; no quiet machine is needed for them), two searches, one short pilot
pair of everybody, then the race of those that can still win: five fresh pairs each, in turns,
their seconds fixed from the pilot. A race on a machine that is too noisy for a verdict is run
again, at most three times, and all are kept. What is done lies in ``build/main_job/NAME``, and
the same command goes on where it was stopped. Results: ``benchmarks/results/main_job.json``;
tables by ``python -m benchmarks.tables``. An idle machine; ten minutes a model once prepared.

``--found`` asks how near the search comes to the best there is: a search of 60 s, with ``--twice``
the first one again, and the best plan of the model's table (`benchmarks.search.record`) race too;
of all these only who keeps the budget, on all backends alone. The table must be of this kind of
CPU. Six real jobs can be named too. Results lie in ``found.json``, whatever CPU the main job was
raced on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ortune as ot
from benchmarks.result_files import result_file, write_results
from benchmarks.search.table import TABLES, read
from benchmarks.speed.budgets import REAL, SHAPES, Shape
from benchmarks.speed.contestants import Contestant, contestants
from benchmarks.speed.fresh import Kept
from benchmarks.speed.neighbour import to_itself
from benchmarks.speed.race import RACE_S, Race
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.trial import Verdict
from ortune.core.version import read_commit
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.search.experiment.golden import find_built_model

ROOT = Path(__file__).resolve().parents[2]
RESULTS = result_file("main_job")
FOUND = RESULTS.with_name("found.json")
FILES = ROOT / ".cache" / "main_job"
WORK = ROOT / "build" / "main_job"
THREADS = 1
EVERY = SHAPES | REAL
LABELS = ("all backends", "cpu")
FOUND_S = 150.0
"""For all who race of what a search found, starts included."""
SHORT, SECOND = "in 60 s", "a second time"
OF_TABLE = "ortune's table"
WITHOUT = "without regions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(EVERY))
    parser.add_argument("--time", default="3m", help="of each search")
    parser.add_argument("--prepare", action="store_true", help="make and score the files only")
    parser.add_argument("--found", action="store_true", help="more searches, and the table's best")
    parser.add_argument(
        "--twice", action="store_true", help="with --found: the first search again"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    asked = parser.parse_args()
    if real := [name for name in asked.names if name in REAL and not asked.found]:
        parser.error(f"real jobs are raced with --found alone: {', '.join(real)}")
    for name in asked.names or SHAPES:
        if asked.fresh:
            shutil.rmtree(WORK / name, ignore_errors=True)
        began = time.monotonic()
        searches = dict.fromkeys(LABELS, asked.time)
        if asked.found:
            searches = {LABELS[0]: asked.time, SHORT: "60s"}
            searches |= {SECOND: asked.time} if asked.twice else {}
        work = WORK / name
        found = run(EVERY[name], searches, work, prepare=asked.prepare, found=asked.found)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        if found is not None:
            write(FOUND if asked.found else RESULTS, name, found, threads=THREADS)


def write(path: Path, name: str, found: dict[str, Any], **about: Any) -> None:
    """Put one model's results beside the others'; what is `about` all of them stands above.

    Models of another list than this benchmark's come behind its own, in the order of their races.
    """
    known = json.loads(path.read_text())["cases"] if path.is_file() else {}
    known[name] = {**found, "commit": read_commit()}
    order = {one: at for at, one in enumerate(EVERY)}
    ordered = dict(
        sorted(known.items(), key=lambda case: order.get(case[0].partition(",")[0], len(order)))
    )
    machine = {"machine": describe_machine(), "versions": package_versions()}
    write_results(path, {**machine, **about, "cases": ordered})


def run(
    shape: Shape,
    searches: Mapping[str, str],
    work: Path,
    *,
    threads: int = THREADS,
    prepare: bool = False,
    found: bool = False,
) -> dict[str, Any] | None:
    """Prepare, search, and race; None when only prepared.

    Args:
        searches: Label -> time of each search, on all backends but that labelled ``cpu``.
        threads: Of every session; 0 for as many as the machine has.
        found: Ask how near the searches come to the best: who keeps the budget races, and the
            best of the model's table too.
    """
    made = shape.write()
    entries = contestants(shape, made, FILES / shape.name, threads)
    scores = Kept(work / "scores.jsonl")
    for entry in entries:
        _scored(shape, made, entry, scores)
    if prepare:
        return None
    told = {}
    for label, limit in searches.items():
        with to_itself():
            told[label] = searched(shape, made, label, limit, work, threads)
    winners = [winner(made, label, about) for label, about in told.items()]
    if found:
        winners += _of_table(shape.name, made)
    for one in winners:
        _scored(shape, made, one, scores)
    known = {row["key"]: row for row in scores.rows()}
    rows = [
        _row(entry, known.get(_key(shape, entry), {"error": entry.error, "holds": []}))
        for entry in (*entries, *winners)
    ]
    with to_itself():
        race_s = FOUND_S if found else RACE_S
        race = Race(entries[0], made / "data", work, race_s=race_s, within=found)
        attempts = race.run([(e, row) for e, row in zip((*entries, *winners), rows, strict=True)])
    return {
        "budget": shape.budget,
        "cpu_budget": shape.cpu_budget,
        "machine": describe_machine(),
        "versions": package_versions(),
        "noise": noise.read_current_state(),
        "rows": rows,
        "attempts": attempts,
        "searches": told,
    }


def _row(entry: Contestant, score: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "backend": str(entry.backend),
        "error": score["error"],
        "size": entry.model.stat().st_size if entry.model.is_file() else None,
        "scores": score.get("scores", {}),
        "holds": score["holds"],
    }


def _key(shape: Shape, entry: Contestant) -> str:
    """What a score hangs on: budgets, the entry, and when its file was made."""
    changed = entry.model.stat().st_mtime_ns if entry.model.is_file() else 0
    return f"{shape.budget}, {shape.cpu_budget}: {entry.name} @ {entry.backend} {changed}"


def _scored(shape: Shape, made: Path, entry: Contestant, kept: Kept) -> None:
    """Keep the scores of an entry by the budgets' own metrics, whoever made the file."""
    if entry.error or any(row["key"] == _key(shape, entry) for row in kept.rows()):
        return
    row: dict[str, Any] = {"key": _key(shape, entry), "error": "", "scores": {}, "holds": []}
    for budget in dict.fromkeys((shape.budget, shape.cpu_budget)):
        try:
            found = ot.verify(
                made / "model.onnx", entry.model, **_judged_by(shape, made), budget=budget or None,
                on=str(entry.backend),
            )  # fmt: skip
        except OrtuneError as error:
            told = error.what.splitlines()[0].replace(str(entry.model), entry.model.name)
            row["error"] = told[:200]
            break
        row["scores"] |= {one.metric: one.value for one in found.scores}
        row["holds"] += [budget] if found.verdict is not Verdict.FAILS else []
    kept.add(row)
    print(f"{shape.name}: {entry.name}: {row['error'] or row['scores']}", flush=True)


def _judged_by(shape: Shape, made: Path) -> dict[str, Any]:
    return {"evaluate": shape.evaluate} if shape.evaluate else {"data": made / "data"}


def searched(
    shape: Shape, made: Path, label: str, limit: str, work: Path, threads: int = THREADS
) -> dict[str, Any]:
    """Return what a search found, searched now unless it is kept."""
    out = work / label.replace(" ", "-")
    kept = out.with_suffix(".json")
    if not kept.is_file():
        shutil.rmtree(out, ignore_errors=True)
        began = time.monotonic()
        study = _search(shape, made, label, limit, out, threads)
        wall = round(time.monotonic() - began, 1)
        kept.write_text(json.dumps(_summary(study, made / "model.onnx", wall)))
    found: dict[str, Any] = json.loads(kept.read_text())
    print(f"{shape.name}, {label}: {found['plan']}, {found['seconds']} s", flush=True)
    return found


def _search(shape: Shape, made: Path, label: str, limit: str, out: Path, threads: int) -> ot.Study:
    cpu = f"cpu(threads={threads})"
    own = made / "calibration"
    openvino = label != "cpu" and Openvino().missing() is None
    return ot.optimize(
        made / "model.onnx",
        **_judged_by(shape, made),
        calibration=None if shape.evaluate or own.is_symlink() else own,
        budget=(shape.cpu_budget if label == "cpu" else shape.budget) or None,
        on=f"{cpu},openvino(threads={threads})" if openvino else cpu,
        time=limit,
        regions=label != WITHOUT,
        out=out,
    )


def _summary(study: ot.Study, model: Path, wall: float) -> dict[str, Any]:
    """Return what is told of a search; `file` lies in its folder, or is empty for the original."""
    best, root = study.best, Path(study.root)
    path, ratio = find_built_model(root, best, model), best.ratio
    return {
        "plan": str(best.plan),
        "recipe": best.plan.recipe.name,
        "on": str(best.plan.backend),
        "file": "" if path == model else str(path),
        "plans": len({trial.key for trial in study.trials}),
        "seconds": round(sum(trial.seconds for trial in study.trials)),
        "wall": wall,
        "finished": study.finished,
        "ratio": None if ratio is None else [ratio.value, ratio.low, ratio.high],
        "score": None if best.score is None else [best.score.value, str(best.score.verdict)],
        "noise": dict(study.noise),
    }


def winner(made: Path, label: str, found: dict[str, Any]) -> Contestant:
    """Return the entry of what a search found; its file goes out of what is told."""
    path = Path(found.pop("file") or made / "model.onnx")
    name = f"ortune, {label}: {found['recipe']}"
    return Contestant(name, path, parse_plugin(Backend, found["on"]))


def _of_table(name: str, made: Path) -> list[Contestant]:
    """Return the best plan of a model's table, built here; none where no table was recorded.

    Raises:
        OrtuneError: The table is of another kind of CPU, where another plan may be the best.
    """
    path, model = TABLES / f"{name}.json.gz", made / "model.onnx"
    if not path.is_file():
        return []
    found = read(path)
    there, here = _arithmetic(found.about.machine), _arithmetic(describe_machine())
    if there != here:
        raise OrtuneError(
            f"the table of {name} is of another kind of CPU: {' '.join(sorted(there ^ here))}",
            fix="race it there, or record a table of this one",
        )
    plan, file = found.best.plan, WORK / name / "of-table.onnx"
    if not plan.recipe.steps:
        file = model
    elif not file.is_file():
        steps = [str(step) for step in plan.recipe.steps]
        ot.apply(model, steps, data=made / "calibration", out=file)
    return [Contestant(f"{OF_TABLE}: {plan.recipe.name}", file, plan.backend)]


def _arithmetic(about: Mapping[str, str]) -> frozenset[str]:
    """Return the instruction sets that decide; AVX-512's VNNI does all that AVX2's does."""
    return frozenset(about["instruction sets"].split()) - {"avx_vnni"}


if __name__ == "__main__":
    main()
