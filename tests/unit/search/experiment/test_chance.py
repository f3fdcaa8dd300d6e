"""Budgets that nothing can miss, and originals that do not know the answers."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.cli.main import main
from ortune.core.budget import Budget
from ortune.core.errors import BadSettings
from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Verdict
from ortune.measurement.accuracy import judge_accuracy
from ortune.measurement.timing.turns import wait_until_ready
from ortune.metrics.top1 import Top1
from ortune.metrics.top5 import Top5
from ortune.search.experiment import measure
from ortune.search.experiment.budget import budget_for, budget_for_evaluate
from ortune.search.experiment.prepare import prepare_context
from ortune.search.experiment.scores import score_plan
from ortune.search.request import ExperimentRequest

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""
DEAD = """
<ir_version: 8, opset_import: ["": 17]>
dead (float[N,4] x) => (float[N,4] y) { no = Constant<value = float {0.0}>() y = Mul(x, no) }
"""
CLASSES = np.arange(400) % 4
FUNCTIONS = """
def bounded(run):
    return [1.0] * 8

bounded.bounds = (0, 1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that answers with the class that its input has most of."""
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    onnx.save(onnx.parser.parse_model(DEAD), tmp_path / "dead.onnx")
    noise = np.random.default_rng(0).uniform(0, 0.5, (400, 4))
    np.savez(tmp_path / "data.npz", x=(np.eye(4)[CLASSES] + noise).astype(np.float32))
    (tmp_path / "chance_functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "likely"),
    [
        ("top1>=base-1", "top1>=base-0.01"),
        ("top5>=base-5", "top5>=base-0.05"),
        ("top1>=0", "top1>=base-0.01"),
        ("agreement>=-0.5", "agreement>=base-0.01"),
        ("map>=base-2", "map>=base-0.02"),
    ],
)
def test_a_limit_that_no_score_can_miss_is_refused(text: str, likely: str) -> None:
    with pytest.raises(BadSettings, match="no score can miss the budget") as caught:
        budget_for(Budget.parse(text), None, [1], {})  # type: ignore[arg-type]
    assert f'write "{likely}"' in caught.value.fix
    assert Budget.parse(likely).can_be_missed()


@pytest.mark.parametrize(("text", "fix"), [("cosine>=-1", "-1 and 1"), ("snr>=-200", "-200 and")])
def test_what_the_likely_meaning_is_not_known_of_names_the_reach(text: str, fix: str) -> None:
    with pytest.raises(BadSettings, match="no score can miss the budget") as caught:
        budget_for(Budget.parse(text), None, None, {})  # type: ignore[arg-type]
    assert fix in caught.value.fix


@pytest.mark.parametrize("text", ["top1>=base-0.99", "cosine>=-0.99", "snr>=0", "max-error<=9"])
def test_a_limit_that_some_score_misses_is_taken(text: str) -> None:
    assert budget_for(Budget.parse(text), None, [1], {})[0] == Budget.parse(text)  # type: ignore[arg-type]


def test_bounds_that_an_evaluate_function_declares_count(here: Path) -> None:
    with pytest.raises(BadSettings, match="no score can miss"):
        budget_for_evaluate("chance_functions:bounded", Budget.parse("score>=base-1"))
    budget_for_evaluate("chance_functions:bounded", Budget.parse("score>=base-0.5"))


def test_what_one_same_answer_scores() -> None:
    assert Top1().chance([0, 1, 1, 2]) == 0.5
    assert Top5().chance(list(range(10))) == 0.5
    assert Top1().chance([[0, 0], [1, 0]]) == 0.75


def verify(
    capsys: pytest.CaptureFixture[str], other: str, labels: np.ndarray, budget: str
) -> tuple[int, dict[str, object]]:
    np.save("labels.npy", labels)
    words = ["verify", "toy.onnx", other, "--data", "data.npz", "--labels", "labels.npy"]
    code = main([*words, "--budget", budget, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_labels_that_are_shifted_prove_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shifted = (CLASSES + 1) % 4
    code, answer = verify(capsys, "dead.onnx", shifted, "top1>=base-0.01")
    assert (code, answer["verdict"]) == (1, "likely")
    assert str(answer["doubt"]).startswith("the original itself scores 0 on 400 samples")
    main(["verify", "toy.onnx", "dead.onnx", "--data", "data.npz", "--labels", "labels.npy",
          "--budget", "top1>=base-0.01"])  # fmt: skip
    assert capsys.readouterr().out.startswith("the original itself scores 0")


def test_labels_that_fit_prove_as_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = verify(capsys, "toy.onnx", CLASSES, "top1>=base-0.01")
    assert (code, answer["verdict"], answer["doubt"]) == (0, "proved", "")
    code, answer = verify(capsys, "dead.onnx", CLASSES, "top1>=base-0.01")
    assert (code, answer["verdict"]) == (1, "fails")


def test_a_limit_that_a_constant_answer_keeps_proves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = verify(capsys, "dead.onnx", CLASSES, "top1>=base-0.8")
    assert (code, answer["verdict"]) == (1, "likely")
    assert "a constant answer scores 0.25" in str(answer["doubt"])


def test_a_limit_below_the_worst_score_is_refused_once_the_original_is_scored(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.where(np.arange(400) % 8 < 4, CLASSES, (CLASSES + 1) % 4)  # half of them wrong
    code, answer = verify(capsys, "dead.onnx", labels, "top1>=base-0.4")
    assert (code, answer["verdict"]) == (1, "likely"), "all zeros are class 0, right for a quarter"
    words = ["verify", "toy.onnx", "dead.onnx", "--data", "data.npz", "--labels", "labels.npy"]
    assert main([*words, "--budget", "top1>=base-0.6"]) == 2
    error = capsys.readouterr().err
    assert "no score can miss the budget top1>=base-0.6" in error
    assert "the original scores 0.5" in error


def test_a_limit_that_zeros_keep_proves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", "toy.onnx", "dead.onnx", "--data", "data.npz", "--budget", "snr>=0"]
    assert main(words) == 1
    assert "the budget snr>=0 allows 0" in capsys.readouterr().out


def test_a_score_near_chance_is_said_first_and_still_judged(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = np.arange(400) < 120  # the rest is numbered otherwise: 120 of 400 right, chance 100
    labels = np.where(few, CLASSES, (CLASSES + 1) % 4)
    code, answer = verify(capsys, "toy.onnx", labels, "top1>=base-0.01")
    assert (code, answer["verdict"]) == (0, "proved")
    assert "hardly above chance" in str(answer["doubt"])


def test_labels_that_are_not_used_are_said_first(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortune.core.event import Event, Note

    notes: list[Note] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event)

    np.save("labels.npy", (CLASSES + 1) % 4)
    request = ExperimentRequest(here / "toy.onnx", data="data.npz", labels="labels.npy")
    experiment = request.read_experiment()
    (here / "run").mkdir()
    context = prepare_context(experiment, here / "run", listen)
    assert not context.budget.metric.needs_labels
    assert context.doubt.startswith("the labels are not used: 'y' [1, 4] gives the labelled class")
    assert next(note.text for note in notes if note.warning) == context.doubt
    np.save("labels.npy", CLASSES)
    (here / "other").mkdir()
    context = prepare_context(experiment, here / "other", listen)
    assert (str(context.budget), context.doubt) == ("top1>=base-0.01", "")


def test_exact_steps_are_not_proved_against_a_useless_original(here: Path) -> None:
    np.save("labels.npy", (CLASSES + 1) % 4)
    request = ExperimentRequest(
        here / "toy.onnx", data="data.npz", labels="labels.npy", budget="top1>=base-0.01"
    )
    experiment = request.read_experiment()
    (here / "run").mkdir()
    context = prepare_context(experiment, here / "run", lambda event: None)
    plan = Plan(AS_IS, experiment.baseline)
    with measure.start_worker(context, context.models, experiment.baseline, "plain") as worker:
        wait_until_ready(worker)
        (score, *_) = score_plan(context, worker, plan, *context.evaluation_parts())
    assert not context.provable
    assert score.verdict is Verdict.LIKELY
    assert score.basis == "the original does not know the answers"


def test_a_useless_original_still_fails_what_is_outside_the_budget() -> None:
    ones, zeros = np.ones((300, 1)), np.zeros((300, 1))
    budget = Budget.parse("top1>=base-0.01")
    assert judge_accuracy(budget, ones, ones).verdict is Verdict.PROVED
    assert judge_accuracy(budget, ones, ones, provable=False).verdict is Verdict.UNDECIDED
    assert judge_accuracy(budget, zeros, ones, provable=False).verdict is Verdict.FAILS
