"""A run goes on with what was asked for now; what only its ledger names is not run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.metric import Metric
from ortune.core.study import Study
from ortune.core.trial import Plan
from ortune.metrics.function import Function
from ortune.metrics.map import Map
from ortune.metrics.score import EvaluateScore
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.ledger import Ledger, write_header
from ortune.search.optimize import optimize, require_requested
from ortune.search.request import Optimize


def written(study: Study, batch: int = 0) -> Path:
    root = Path(study.root)
    write_header(root, study.header)
    folder = root / "batches" / str(batch) if batch else root
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder)
    for trial in study.trials:
        ledger.append(trial)
    return root


def asked(study: Study, **fields: Any) -> Experiment:
    return Optimize(study.job.model, out=study.root, **fields).read_experiment()


def on(study: Study, backend: Backend) -> Study:
    plans = (replace(t, plan=Plan(t.plan.recipe, backend)) for t in study.trials)
    return replace(study, trials=tuple(plans))


@pytest.mark.parametrize("batch", [0, 8])
def test_code_that_nobody_named_now(tmp_path: Path, batch: int) -> None:
    study = on(studies.study(tmp_path), Cpu(custom_ops=("./mine.so",)))
    root = written(study, batch)
    with pytest.raises(BadData, match=r"names code that was not asked for: './mine\.so'"):
        require_requested(root, asked(study), [Cpu()], effective_cpus())
    require_requested(root, asked(study), [Cpu(custom_ops=("./mine.so",))], effective_cpus())


@pytest.mark.parametrize(
    "metric", [Function(path="mine:fn"), EvaluateScore(path="mine:fn"), Map(decode="mine:fn")]
)
def test_a_metric_that_nobody_named_now(
    tmp_path: Path, metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("open('ran', 'w')\ndef fn(*_): return 1\n")
    monkeypatch.chdir(tmp_path)
    study = studies.study(tmp_path)
    study = studies.changed(study, job=replace(study.job, budget=Budget(metric, 0.9)))
    root = written(study)
    with pytest.raises(BadData, match="names code that was not asked for: 'mine:fn'"):
        require_requested(root, asked(study), [Cpu()], effective_cpus())
    assert not (tmp_path / "ran").exists()
    budget = "mine:fn>=0.9" if not isinstance(metric, Map) else f"{metric}>=0.9"
    require_requested(root, asked(study, data="d", budget=budget), [Cpu()], effective_cpus())


def test_threads_that_nobody_asked_for_now(tmp_path: Path) -> None:
    here = effective_cpus()
    study = on(studies.study(tmp_path), Cpu(threads=here + 1))
    root = written(study)
    with pytest.raises(BadData, match=f"a plan of {here + 1} threads.*{here} CPU"):
        require_requested(root, asked(study), [Cpu()], effective_cpus())
    require_requested(root, asked(study), [Cpu(threads=here + 1)], here)


def test_a_folder_without_a_run_passes(tmp_path: Path) -> None:
    require_requested(tmp_path, asked(studies.study(tmp_path)), [Cpu()], effective_cpus())


@pytest.mark.parametrize("field", ["on", "baseline"])
def test_a_search_takes_no_setting_that_its_own_run_could_not_hold(
    tmp_path: Path, field: str
) -> None:
    model = studies.write_model(tmp_path / "m.onnx", studies.MODEL)
    given = {field: 'cpu(config=["session.collect_node_memory_stats_to_file=x"])'}
    with pytest.raises(BadSettings, match="is a setting that a file") as caught:
        optimize(model, out=tmp_path / "run", **given)
    assert "ortune bench" in caught.value.fix
    assert not (tmp_path / "run").exists()
