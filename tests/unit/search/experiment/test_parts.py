"""What is fixed before the first candidate: parts, and what a proof may rest on."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.cli.main import main
from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Event, Note
from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Verdict
from ortune.measurement.job import MAIN
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import read_header, write_header
from ortune.search.experiment.prepare import prepare_context
from ortune.search.experiment.scores import score_plan
from ortune.search.request import ExperimentRequest

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""
FUNCTIONS = """
import numpy as np

ROWS = np.random.default_rng(0).standard_normal((300, 1, 4)).astype(np.float32)

def pairs(run):
    for at in range(0, 300, 3):  # two calls a sample, three samples a group, one call in between
        run(x=ROWS[at])
        y = run(x=ROWS[at + 1])["y"]
        yield float(np.isfinite(y).all()), at // 9
        run(x=ROWS[at + 2])

pairs.bounds = (0, 1)

def alone(run):
    for row in ROWS[:200]:
        yield float(np.isfinite(run(x=row)["y"]).all()), None

alone.bounds = (0, 1)

def listed(run):
    return [float(np.isfinite(run(x=row)["y"]).all()) for row in ROWS[:100]]

listed.bounds = (0, 1)

def sized(expected, actual, label):
    return 7.0

sized.bounds = (0, 1)

def some(run):
    yield float(run(x=ROWS[0])["y"].sum()), "a"
    yield 1.0

calls = []

def other(run):
    calls.append(1)
    for at, row in enumerate(ROWS[:20]):
        run(x=row)
        yield 1.0, f"{at // 2} {len(calls) > 1}"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(here: Path, finalists: int = 3, **given: object) -> tuple[Context, list[str]]:
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            said.append(event.text)

    experiment = ExperimentRequest(here / "toy.onnx", **given).read_experiment()  # type: ignore[arg-type]
    (here / "run").mkdir()
    return prepare_context(experiment, here / "run", listen, finalists=finalists), said


def test_a_generators_samples_are_divided_with_their_calls(here: Path) -> None:
    context, said = prepared(here, evaluate="functions:pairs", budget="score>=base-0.2")
    held = "100 samples in 34 independent groups: "
    assert said[-1].startswith(held)
    assert said[-1].endswith(" groups would let it be proved")
    search, final = context.parts["search"], context.parts["final"]
    material = context.materials[MAIN]
    observed = {(call + 1) // 3 for call in material.calibration}
    every = [*search.indices, *final.indices]
    assert not observed & set(every)
    assert len(every) == len(set(every))
    assert {at // 3 for at in search.indices}.isdisjoint(at // 3 for at in final.indices)
    assert {at // 3 for at in observed}.isdisjoint(at // 3 for at in every)
    assert material.feeds.count == 300
    assert search.proof == ()
    assert final.proof == tuple(range(len(final.indices)))
    assert final.groups is not None


def test_the_settings_beside_images_are_kept(here: Path) -> None:
    """What lies beside other data is not meant for this; a bundle of the run brings them along."""
    (here / "preprocess.toml").write_text("scale = 2")
    prepared(here, evaluate="functions:pairs", budget="score>=base-0.2")
    assert not (here / "run" / "preprocess.toml").exists()
    shutil.rmtree(here / "run")
    (here / "data").mkdir()
    (here / "data" / "preprocess.toml").write_text("scale = 1")
    np.savez(here / "data" / "a.npz", x=np.ones((8, 4), np.float32))
    prepared(here, data="data")
    assert (here / "run" / "preprocess.toml").read_text() == "scale = 1"


def test_a_search_profiles_the_original_once(here: Path) -> None:
    prepared(here)
    header = read_header(here / "run")
    assert header.by_operator == {"Mul": 1.0}
    write_header(here / "run", replace(header, by_operator={"Conv": 1.0}))
    experiment = ExperimentRequest(here / "toy.onnx").read_experiment()
    prepare_context(experiment, here / "run", lambda event: None, finalists=3)
    assert read_header(here / "run") == replace(header, by_operator={"Conv": 1.0})


def test_what_takes_too_long_to_profile_is_said(here: Path) -> None:
    _, said = prepared(here, time="0.001s")
    assert any(text.startswith("the original is not profiled: it would take") for text in said)


def test_a_group_of_none_stands_alone(here: Path) -> None:
    context, said = prepared(here, evaluate="functions:alone", budget="score>=base-0.1")
    assert "enough to prove" in said[-1]
    assert context.parts["final"].groups is None
    assert judged(context) is Verdict.PROVED


def test_a_list_is_likely_at_best(here: Path) -> None:
    context, said = prepared(here, evaluate="functions:listed", budget="score>=base-0.2")
    assert said[-1].startswith("--evaluate returns a list")
    assert context.parts["search"].indices == tuple(range(60))
    assert judged(context) is Verdict.LIKELY


def test_data_calibrate_and_yields_are_scored(here: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((40, 4)).astype(np.float32)
    np.savez(here / "data.npz", x=rows)
    context, _ = prepared(
        here, data=here / "data.npz", evaluate="functions:alone", budget="score>=base-0.1"
    )
    assert len(context.materials[MAIN].calibration) == 10
    search, final = context.parts["search"], context.parts["final"]
    assert sorted(search.indices + final.indices) == list(range(200))
    assert final.proof


def test_no_output_is_ignored_where_a_function_scores(here: Path) -> None:
    with pytest.raises(BadSettings, match="--ignore-output has no effect"):
        prepared(here, evaluate="functions:alone", ignore_output=("y",))


def judged(context: Context) -> Verdict | None:
    """Judge the original as if it were a finalist."""
    plan = Plan(AS_IS, context.job.baseline)
    with measure.start_worker(context, context.models, plan.backend, "test") as worker:
        wait_until_ready(worker)
        return score_plan(context, worker, plan, *context.evaluation_parts())[0].verdict


@pytest.mark.parametrize(
    ("function", "match"),
    [("some", "yields a group with 1 of 2 records"), ("other", "not those from the original")],
)
def test_groups_are_of_all_samples_and_stay(here: Path, function: str, match: str) -> None:
    with pytest.raises(BadData, match=match):
        context, _ = prepared(here, evaluate=f"functions:{function}", budget="score>=base-0.2")
        plan = Plan(AS_IS, context.job.baseline)
        with measure.start_worker(context, context.models, plan.backend, "test") as worker:
            wait_until_ready(worker)
            worker.ask("evaluate", function=context.evaluate)
            score_plan(context, worker, plan, *context.evaluation_parts())


def test_few_samples_are_shared_and_prove_nothing(here: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    np.savez(here / "few.npz", x=rows)
    context, said = prepared(here, data=here / "few.npz", budget="cosine>=0.9")
    assert said[-1] == (
        "5 samples: none is held out, too few to prove the accuracy budget; "
        "120 samples would let it be proved"
    )
    assert all(part.proof == () for part in context.parts.values())


def test_equal_samples_count_once_for_a_proof(here: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    np.savez(here / "twice.npz", x=np.concatenate([rows, rows]))
    context, _ = prepared(here, data=here / "twice.npz", budget="cosine>=0.9")
    final = context.parts["final"]
    assert 2 * len(final.proof) == len(final.indices)


@pytest.mark.parametrize(("budget", "held_out"), [("cosine>=0.9", 80), ("snr(share=0)>=30", 50)])
def test_few_plans_are_judged_on_more_of_what_time_thins(
    here: Path, budget: str, held_out: int
) -> None:
    rows = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    np.savez(here / "many.npz", x=rows)
    context, said = prepared(here, data=here / "many.npz", budget=budget, time=0.000001)
    assert len(context.parts["final"].indices) == held_out
    assert len(context.parts["search"].indices) == 20
    assert any(text.startswith("using 20 of ") and "search samples" in text for text in said)
    assert not any("held-out samples" in text for text in said)


def test_quantizers_observe_no_sample_that_is_scored(here: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)
    np.savez(here / "many.npz", x=rows)
    context, _ = prepared(here, data=here / "many.npz", budget="cosine>=0.9")
    header, calibration = read_header(here / "run"), context.materials[MAIN].calibration
    assert header is not None and calibration == header.parts["calibration"]
    for part in context.parts.values():
        assert set(calibration).isdisjoint(part.indices), part.name
    assert len({*calibration, *context.parts["search"].indices}) < 120


def test_parts_grow_with_the_time_and_keep_what_they_had(here: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    np.savez(here / "many.npz", x=rows)
    given = {"data": here / "many.npz", "budget": "cosine>=0.9"}

    def divide(seconds: float) -> dict[str, set[int]]:
        request = ExperimentRequest(here / "toy.onnx", time=seconds, **given)  # type: ignore[arg-type]
        context = prepare_context(
            request.read_experiment(), here / "run", lambda event: None, finalists=3
        )
        header = read_header(here / "run")
        assert {name: header.parts[name] for name in context.parts} == {
            name: part.indices for name, part in context.parts.items()
        }
        return {name: set(part) for name, part in header.parts.items()}

    (here / "run").mkdir()
    small = divide(1e-6)
    assert len(small["search"]) == 20
    assert divide(1e-6) == small
    grown = divide(100.0)
    assert divide(1e-6) == grown, "less time takes nothing away"
    assert len(grown["search"]) > 20
    assert all(part <= grown[name] for name, part in small.items())
    assert not grown["search"] & grown["final"] and not grown["calibration"] & grown["final"]
    shutil.rmtree(here / "run")
    (here / "run").mkdir()
    assert divide(100.0) == grown, "as a fresh run has them"


def test_bounds_that_the_original_itself_leaves_are_refused_before_the_search(here: Path) -> None:
    with pytest.raises(BadData, match=r"gave 7, outside its bounds 0 and 1"):
        prepared(here, budget="functions:sized>=0.5")


def test_a_missing_file_of_ranges_is_told_before_anything_is_said_of_the_samples(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", "toy.onnx", "--ranges-from", "none.json"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("ortune optimize: cannot read none.json: No such file")
    assert len(said.err.splitlines()) == 2 and not said.out


@pytest.mark.parametrize("verb", ["optimize", "verify"])
def test_strict_refuses_a_figure_over_all_samples(
    here: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["toy.onnx"] * (2 if verb == "verify" else 1)
    assert main([verb, *models, "--budget", "snr(share=0)>=30", "--strict"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[0].endswith("proof, and no number of samples proves 'snr(share=0)>=30'")
    assert len(said) == 2
    assert not (here / "ortune-run").exists()
