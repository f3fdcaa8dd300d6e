"""What must hold of every search on a real model: never slower, never wrong, explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime

import ortune as ot
from ortune.backends.cpu import Cpu
from ortune.core.trial import Status, Trial, Verdict
from tests.real.task import Run, Task

BUGS = ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError")
"""A plan may fail; a message of these kinds says that ortune's own code did."""


def check(study: ot.Study, task: Task, folder: Path) -> None:
    """Assert the promises on a study, and score its winner from outside."""
    assert study.finished in ("done", "time")
    for trial in study.trials:
        assert trial.why, f"{trial.plan} has no reason"
        assert not trial.why.startswith(BUGS), f"{trial.plan}: {trial.why}"
    best = study.best
    if best.key != study.baseline.key:
        assert best.status is Status.OK
        assert best.ratio is not None
        assert best.ratio.high < 1
        assert best.score is not None
        assert best.score.verdict in (Verdict.PROVED, Verdict.LIKELY)
    base = task.score(_plain({path.stem: path for path in task.models}, Cpu()))
    for trial in _verified(study):
        with run_trial(study, trial, folder / f"{trial.key}.ortune") as run:
            found = task.score(run)
        assert found >= base - task.allowed, f"{trial.plan}: {found:.4f}, the original {base:.4f}"


def _verified(study: ot.Study) -> list[Trial]:
    """Return the winner and the quickest finalist that kept the budget, won or not.

    Before the finals a plan is judged on a part of the samples: all of them may say otherwise.
    """
    changed = [
        t
        for t in study.final
        if t.status is Status.OK and t.score and t.ratio and t.key != study.baseline.key
    ]
    quickest = sorted(changed, key=lambda t: t.ratio.value if t.ratio else 1.0)[:1]
    return list({t.key: t for t in (study.best, *quickest)}.values())


@contextmanager
def run_trial(study: ot.Study, trial: Trial, bundle: Path) -> Iterator[Any]:
    """Give a trial's files as Run or Runs: on bare onnxruntime if it can, else from a bundle."""
    if isinstance(trial.plan.backend, Cpu):
        yield _plain(_files(study, trial), trial.plan.backend)
        return
    with ot.load(ot.pack(study, bundle, trial=trial.key, unconfirmed=True)) as engine:
        assert not engine.fallback
        yield engine if engine.models == ("",) else {name: engine[name] for name in engine.models}


def _files(study: ot.Study, trial: Trial) -> dict[str, Path]:
    sources = [Path(path) for path in study.models.values()]
    built = {p.stem: Path(study.root) / (trial.artefact or "") / f"{p.stem}.onnx" for p in sources}
    return {p.stem: built[p.stem] if built[p.stem].is_file() else p for p in sources}


def _plain(files: Mapping[str, Path], backend: Cpu) -> Any:
    """Return a Run, or Runs by stem, on bare onnxruntime sessions with a plan's options."""
    runs = {name: _run(path, backend) for name, path in files.items()}
    return runs if len(runs) > 1 else next(iter(runs.values()))


def _run(path: Path, backend: Cpu) -> Run:
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = backend.threads
    options.graph_optimization_level = {
        "disabled": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[backend.level]
    session = onnxruntime.InferenceSession(
        str(path),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(backend.disable),
    )
    names = [value.name for value in session.get_outputs()]

    def run(**inputs: Any) -> dict[str, Any]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run
