"""A model is compared with itself: with no optimizer of the runtime, and run twice."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.unit import wrong_models

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.self_agreement import SelfAgreement
from ortune.data import synthetic
from ortune.data.stream import Stream
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.process import WorkerFailed, ask_once, single_model_job
from ortune.measurement.self_agreement import compare_with_itself
from ortune.measurement.worker.self_agreement import find_culprits


def saved(text: str, folder: Path) -> Path:
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


CPU = Cpu()


def compared(path: Path, backend: Cpu | Openvino = CPU) -> tuple[SelfAgreement, Path]:
    facts = read_facts(file.load(path))
    feeds = synthetic.generate_feeds(facts.inputs, path.parent, shapes={}, ranges={})
    return compare_with_itself(path, facts, feeds.stream, backend), feeds.stream


CASES = wrong_models.WRONG | wrong_models.UNLOADABLE | wrong_models.FAILING


@pytest.mark.parametrize("case", CASES)
def test_the_optimizer_that_makes_a_model_wrong_is_named(case: str, tmp_path: Path) -> None:
    text, names = CASES[case]
    path = saved(text, tmp_path)
    agreement, stream = compared(path)
    assert agreement.disable == names
    assert agreement.level is None and not agreement.random
    runs = case in wrong_models.WRONG
    assert (agreement.decibels is not None) == (not agreement.failure) == runs
    without = Cpu().leave_out(agreement.disable, agreement.level)
    said = agreement.describe("m.onnx", Cpu())
    assert ", ".join(names) in said and f'--on "{without}"' in said
    feeds = Stream(stream)[0]
    with Cpu(level="disabled").open(path) as plain, without.open(path) as session:
        expected, actual = plain.run(feeds)["y"], session.run(feeds)["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", [wrong_models.SOUND, wrong_models.CHAOTIC])
def test_nothing_is_left_out_of_a_model_that_only_rounds(text: str, tmp_path: Path) -> None:
    agreement, _ = compared(saved(text, tmp_path))
    assert agreement.disable == () and agreement.level is None
    assert agreement.decibels is not None
    assert (agreement.decibels < 60) is (text == wrong_models.CHAOTIC)
    assert agreement.describe("m.onnx", Cpu()) == ""


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (wrong_models.NOISY, True),
        (wrong_models.SEEDED, False),
        (wrong_models.TOSSED, False),
        (wrong_models.NOISY_BODY, False),
    ],
)
@pytest.mark.parametrize("backend", [Cpu(), Openvino()])
def test_a_model_that_draws_random_numbers_is_said_to(
    text: str, rest: bool, backend: Cpu | Openvino, tmp_path: Path
) -> None:
    agreement, _ = compared(saved(text, tmp_path), backend)
    assert agreement.random == ("y",) and agreement.rest is rest
    said = agreement.describe("m.onnx", Cpu(), ())
    assert "does not agree with itself" in said and "'y'" in said
    assert ("--ignore-output y" in said) is rest
    assert agreement.describe("m.onnx", Cpu(), ("y",)) == ""


def test_of_a_model_that_does_not_run_only_the_reason_is_known(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) {'
    agreement, _ = compared(saved(text + " y = own.odd(x) }", tmp_path))
    assert agreement == SelfAgreement(failure=agreement.failure)
    assert "own:odd" in agreement.failure


@pytest.mark.parametrize("case", wrong_models.UNLOADABLE | wrong_models.FAILING)
def test_what_keeps_a_model_from_running_is_named_where_it_is_opened(
    case: str, tmp_path: Path
) -> None:
    text, names = CASES[case]
    path = saved(text, tmp_path)
    _, stream = compared(path)
    with pytest.raises(WorkerFailed) as caught:
        ask_once(single_model_job(path, Cpu(), stream, tmp_path, "plain"), ("first", {}))
    assert (
        f"without onnxruntime's optimizer {', '.join(names)} it does"
        in caught.value.failure.reason
    )
    mended = Cpu(disable=names)
    assert f'--on "{mended}"' in caught.value.failure.fix
    ask_once(single_model_job(path, mended, stream, tmp_path, "mended"), ("first", {}))


@pytest.mark.parametrize("guilty", [{"c"}, {"a", "e"}, {"b", "c", "d"}])
def test_halving_finds_just_what_is_guilty(guilty: set[str]) -> None:
    tries: list[Sequence[str]] = []

    def is_right(names: Sequence[str]) -> bool:
        tries.append(names)
        return guilty <= set(names)

    found = find_culprits("abcdefgh", is_right)
    assert found is not None and set(found) == guilty
    assert len(tries) < 20
    assert find_culprits("xyz", is_right) is None


def test_settings_that_are_there_stay() -> None:
    backend = Cpu(disable=("Pad_Fusion", "GeluFusionL1"), level="extended")
    assert backend.leave_out(("Pad_Fusion",), None) == backend
    assert backend.leave_out((), "disabled").level == "disabled"
    assert Openvino().leave_out(("Pad_Fusion",), "disabled") == Openvino()
