"""Workers that do as a script says, and a context whose plans run on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Edit, Quantizer, Recipe
from ortune.core.trial import Plan
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.turns import Deadlines
from ortune.search.experiment import evaluate, measure
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.experiment.measure import Files

SEARCH, FINAL = tuple(range(100)), tuple(range(100, 200))
LOSSY = Plan(Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu(threads=1))
BASE_NS = 30_000_000
EDITS = (Edit("int8-dynamic", 2),)


@dataclass
class Script:
    """What candidates do, and a diary of all workers.

    Attributes:
        ratio: Their latency over the original's; `ratios` has that of single backends.
        sizes: Bytes of the files of single backends; those of the others have 12.
        noise: Sample -> what is added to their answer; `louder` has how many times as much that
            is of single backends.
        fails: Request at which a worker dies: ("baseline" or "candidate", request).
        passes: Called whenever a candidate loads.
        waits: Share of its time that each run of the original waits for a CPU.
    """

    ratio: float = 0.5
    ratios: dict[Backend, float] = field(default_factory=dict)
    sizes: dict[Backend, int] = field(default_factory=dict)
    noise: Callable[[int], float] = lambda index: 0.001
    louder: dict[Backend, float] = field(default_factory=dict)
    fails: tuple[str, str] = ("", "")
    passes: Callable[[], None] = lambda: None
    waits: float = 0.0
    diary: list[tuple[str, str, Any]] = field(default_factory=list)

    def asked(self, do: str, side: str) -> list[Any]:
        return [what for who, done, what in self.diary if (who, done) == (side, do)]


class Scripted:
    """A worker that does as its script says."""

    reproduce = "run it again"
    alive = True

    def __init__(self, script: Script, side: str, backend: Backend) -> None:
        self.script, self.side = script, side
        ratio = script.ratios.get(backend, script.ratio)
        self.louder = script.louder.get(backend, 1.0)
        self.ns = round(BASE_NS * (1.0 if side == "baseline" else ratio))

    def __enter__(self) -> "Scripted":
        self.script.diary.append((self.side, "starts", None))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.script.diary.append((self.side, "ends", None))

    def take_turns_with(self, other: Any) -> None:
        """What is loaded here is small."""

    def unload(self) -> None:
        """Likewise."""

    def ask(self, do: str, *, runs: int = 0, **more: Any) -> dict[str, Any]:
        if do == "record":
            return {"missing": "a script has no profile", "remedy": "run a model"}
        self.script.diary.append((self.side, do, more.get("indices")))
        if self.script.fails == (self.side, do):
            worker: Any = self
            raise WorkerFailed(Failure(f"the {self.side} died", "run it again"), worker)
        if (self.side, do) == ("candidate", "load"):
            self.script.passes()
        if do == "score":
            rows = {key: more.get(key, ()) for key in ("metrics", "beside")}
            return {
                told: [self.rows(metric, more["indices"]) for metric in rows[key]]
                for key, told in (("metrics", "records"), ("beside", "beside"))
            }
        return {
            "latency_ns": [self.ns] * runs,
            "waited": [self.script.waits if self.side == "baseline" else 0.0] * runs,
            "spent_ns": max(200_000_000, self.ns * runs),
            "alike": True,
            "load_ns": 3,
            "first_ns": 2,
            "peak_rss": 1,
            "placement": {"CPU": 4},
        }

    def rows(self, metric: Any, indices: list[int]) -> list[list[float]]:
        wanted = [{"y": np.array([1.0, 0.0], np.float32)} for _ in indices]
        noise = [self.louder * self.script.noise(at) for at in indices]
        given = [{"y": np.array([1.0, added], np.float32)} for added in noise]
        rows: list[list[float]] = metric.records(wanted, given, None).tolist()
        return rows


def scripted(root: Path, patch: pytest.MonkeyPatch, script: Script) -> Context:
    """Return a context of 100 samples to search on and 100 that are held out."""

    def start(context: Context, models: Any, backend: Backend, label: str) -> Scripted:
        return Scripted(script, "baseline" if label == "baseline" else "candidate", backend)

    def build(context: Context, plan: Plan, sink: Any) -> Files:
        size = script.sizes.get(plan.backend, 12)
        return Files({"": source}, EDITS, size, bool(plan.recipe.steps), "artefacts/0123")

    source = studies.write_model(root / "toy.onnx", studies.MODEL)
    patch.setattr(measure, "start_worker", start)
    patch.setattr(evaluate, "build_all", build)
    parts = {
        name: ScoredPart(name, of, root / "none", np.ones((len(of), 1)), proof=proof)
        for name, of, proof in (("search", SEARCH, ()), ("final", FINAL, tuple(range(100))))
    }
    return Context(
        *(root, studies.job(source), studies.FACTS, {"": source}, {}, {}, parts, ""),
        timeout_s=1.0,
        deadlines=Deadlines(run_ns=BASE_NS),
    )
