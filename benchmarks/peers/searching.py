"""What `ortune optimize` finds on a model: for each budget, and on which backends."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import ortune as ot
from benchmarks.peers.cases import Case, calibration
from benchmarks.peers.environments import CACHE, cpu_time
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.search.experiment.golden import find_built_model


def found(
    case: Case, folder: Path, threads: int, limit: str, *, kept: bool
) -> list[tuple[Path, Backend, dict[str, Any]]]:
    """Search for each budget on the CPU provider, for the first one on all backends too.

    Args:
        case: The model.
        folder: Its files.
        threads: Of every plan.
        limit: Time of a search, as `ortune optimize --time` takes it.
        kept: Take what the last run found where it is there.

    Returns:
        A winner's file, its backend, and what the table says of it.
    """
    cpu = f"cpu(threads={threads})"
    asked = [(budget, cpu) for budget in case.budgets]
    if Openvino().missing() is None:
        asked.append((case.budgets[0], f"{cpu},openvino(threads={threads})"))
    made = []
    for count, (budget, on) in enumerate(asked):
        out = CACHE / "ortune" / case.name / str(count)
        known = out.with_suffix(".json")
        if not (kept and known.is_file()):
            known.unlink(missing_ok=True)
            shutil.rmtree(out, ignore_errors=True)
            known.write_text(json.dumps(_search(case, folder, out, budget, on, limit)))
        facts = json.loads(known.read_text())
        path = out / facts.pop("file") if facts["file"] else folder / "model.onnx"
        made.append((path, parse_plugin(Backend, facts.pop("on")), facts))
    return made


def _search(
    case: Case, folder: Path, out: Path, budget: str, on: str, limit: str
) -> dict[str, Any]:
    model = folder / "model.onnx"
    start, before = time.monotonic(), cpu_time()
    study = ot.optimize(
        model,
        data=None if case.evaluate else folder / "data",
        evaluate=case.evaluate,
        calibration=calibration(case.name, folder),
        budget=budget,
        on=on,
        time=limit,
        out=out,
    )
    best = study.best
    path = find_built_model(Path(study.root), best, model)
    print(f"{case.name}, {budget} on {on}: {best.plan}", flush=True)
    return {
        "tool": "ortune",
        "recipe": str(best.plan),
        "budget": budget,
        "seconds": round(time.monotonic() - start, 1),
        "cpu_s": round(cpu_time() - before, 1),
        "finished": study.finished,
        "on": str(best.plan.backend),
        "file": "" if path == model else str(path.relative_to(out.resolve())),
    }
