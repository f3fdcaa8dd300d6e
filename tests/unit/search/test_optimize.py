"""The verb's own part: what a search begins with is in its run's folder, and nowhere else."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies
from tests.unit.search.driver import record
from tests.unit.search.scenarios import SCENARIOS

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings
from ortune.core.study import Study
from ortune.search import optimize
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.ledger import Ledger, read_header, write_ending, write_header
from ortune.search.recipe.space import SearchTarget
from ortune.search.request import Optimize

OFFERED = Capabilities(versions={"onnxruntime": "1.31.1"}, machine={"cpu": "A CPU"})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """A search of which everything but the verb's own part is scripted."""
    made = studies.study(tmp_path / "made")

    def prepare(asked: Experiment, root: Path, *_: object, **__: object) -> Context:
        if read_header(root) is None:
            write_header(root, replace(made.header, by_operator={"Relu": 1.0}))
        return Context(root, made.job, studies.FACTS, {}, {}, {}, {}, "", 1.0)

    def search(context: Context, *_: object) -> None:
        contexts.append(context)
        ledger = Ledger(context.root)
        for trial in made.trials:
            ledger.append(trial)
        write_ending(context.root, replace(made.ending, finished=ends[-1]))

    for name, instead in {"prepare_context": prepare, "run_search": search}.items():
        monkeypatch.setattr(optimize, name, instead)
    monkeypatch.setattr(optimize.golden, "write_golden_samples", lambda study, context: None)
    monkeypatch.setattr(optimize.golden, "write_inputs", lambda context: None)
    monkeypatch.setattr(optimize, "read_targets", lambda *_: [SearchTarget(Cpu(), OFFERED)])

    def run(out: str, finished: str = "done", **asked: Any) -> Study:
        ends.append(finished)
        return optimize.run(Optimize("toy.onnx", out=tmp_path / out, **asked))

    contexts.clear()
    return run


contexts: list[Context] = []
ends: list[str] = []


@pytest.mark.parametrize("regions", [True, False])
def test_a_search_begins_with_what_its_header_says(
    run: Callable[..., Study], regions: bool
) -> None:
    run("one", regions=regions)
    assert contexts[0].by_operator == {"Relu": 1.0} and contexts[0].by_region is regions


def test_a_search_leaves_nothing_outside_of_its_folder(
    run: Callable[..., Study], cache_home: Path
) -> None:
    old = cache_home / "ortune" / "paid" / "0123.json"
    old.parent.mkdir(parents=True)
    old.write_text("a record of ortune 0.1.0")
    run("one")
    assert [path for path in cache_home.rglob("*") if path.is_file()] == [old]
    assert old.read_text() == "a record of ortune 0.1.0"


# A run that is killed at any place goes on with the proposals that it would have made.


KILLED = (
    "crashes",
    "rescue-two-quantizers",
    "time-in-plans",
    "time-in-runtime",
    "target-in-rescue",
)


@pytest.mark.parametrize("name", KILLED)
def test_five_kills_change_no_proposal(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    whole = record(scenario, tmp_path / "whole")
    lines = len((tmp_path / "whole" / "ledger.jsonl").read_text().splitlines())
    assert lines == len(whole["proposals"]) > 2
    places = random.Random(name).sample(range(1, lines), min(5, lines - 1))
    for kept in sorted({*places, lines - 1}):  # the last one lies among the finals or behind them
        again = replace(scenario, kept=kept)
        resumed = record(again, tmp_path / str(kept), before=tmp_path / "whole")
        assert resumed["proposals"] == whole["proposals"][kept:], f"killed after {kept}"
        assert (resumed["best"], resumed["finished"]) == (whole["best"], whole["finished"])


def test_the_folder_of_an_encoder_decoder_needs_samples(tmp_path: Path) -> None:
    folder = tmp_path / "t5"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    with pytest.raises(BadSettings, match="answers are compared: no data"):
        optimize.run(Optimize(folder, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
