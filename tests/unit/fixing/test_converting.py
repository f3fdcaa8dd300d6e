"""Fixes about steps, precisions and what they leave are followed; and about what a run holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.analysis.conversion.convert import check_types
from ortune.analysis.costs.cost import of_study
from ortune.backends.cpu import Cpu
from ortune.backends.reference import Reference
from ortune.cli.main import main
from ortune.core.custom_ops import add_custom_ops
from ortune.core.outputs import check_output_folder
from ortune.graph.io.protobuf import read_identity
from ortune.measurement.workloads.generate import Generate
from ortune.measurement.workloads.throughput import Throughput
from ortune.quantizers.common.weights.blockwise import compute_order
from ortune.quantizers.int4_weights import Int4Weights
from ortune.search.experiment import golden
from ortune.search.experiment.experiment import name_models
from ortune.search.experiment.ledger import read_study
from tests.unit import studies
from tests.unit.analysis.conversion import test_judged as judged
from tests.unit.analysis.conversion.test_convert import FACTS, order
from tests.unit.fixing.kit import (
    MODEL,
    OWN,
    SITUATIONS,
    Pair,
    W,
    check_situation,
    demand,
    fill_folder,
    follow,
    prepare,
    run,
    save,
    save_text,
)
from tests.unit.following import Room, end_at

LOOP = """g (float[b, 4] x) => (float[b, 4] y) {
    trips = Constant<value_int = 2>()
    on = Constant<value_ints = [1]>()
    go = Cast<to = 9>(on)
    y = Loop(trips, , x) <body = one (int64 i, bool c, float[b, 4] v) =>
        (bool d, float[b, 4] w) { d = Identity(c) u = Relu(v) w = Neg(u) }>
}"""
PARTS = "g (float[b, 32] x) => (float[b, 32] y) { s = SequenceConstruct(x) \
    zero = Constant<value_int = 0>() y = SequenceAt(s, zero) }"


@follow("analysis/conversion/convert:judge_scores", "--force")
def a_result_that_differs_too_much(room: Room) -> Iterator[Pair]:
    model = judged.write(room.folder, judged.OUTLIER)
    text = f"convert {model} new.onnx --precision int8"
    yield lambda: demand(text, {}), lambda: demand(f"{text} --force", {})


@follow("analysis/conversion/convert:check_types", "--precision")
def a_file_without_the_precision_that_was_ordered(room: Room) -> Iterator[Pair]:
    yield lambda: check_types(order("fp16"), FACTS), lambda: check_types(order("fp32"), FACTS)


@follow("analysis/conversion/apply:refuse_broken_answers", "--force")
def a_result_that_does_not_run(room: Room) -> Iterator[Pair]:
    """Its body in the standard mixes types then, which no check of ours sees."""
    text = """<ir_version: 8, opset_import: ["": 9]>
        g (float[1,2,3,3] x) => (float[1,2,3,3] y) { y = MeanVarianceNormalization(x) }"""
    save(room.folder / "m.onnx", text)
    left = judged.narrow.FIXED - {"MeanVarianceNormalization"}
    room.patch.setattr(judged.narrow, "FIXED", left)
    yield (
        lambda: demand("apply m.onnx fp16 -o o.onnx", {}),
        lambda: demand("apply m.onnx fp16 -o o.onnx --force", {}),
    )


@follow("analysis/costs/cost:of_study", "--workload")
def a_run_that_was_not_for_latency(room: Room) -> Iterator[Pair]:
    study = studies.study(room.folder / "s")
    other = replace(
        study, header=replace(study.header, job=replace(study.job, workload=Throughput()))
    )
    yield lambda: of_study(other), lambda: of_study(study)


@follow("analysis/costs/cost:of_study#2", "ortune optimize")
def a_run_without_a_measured_baseline(room: Room) -> Iterator[Pair]:
    study = studies.study(room.folder / "s")
    trials = tuple(
        replace(trial, measurement=None) if trial.key == study.baseline.key else trial
        for trial in study.trials
    )
    yield lambda: of_study(replace(study, trials=trials)), lambda: of_study(study)


@follow("search/experiment/golden:ensure_outputs", "ortune optimize")
def a_run_without_golden_samples(room: Room) -> Iterator[Pair]:
    """The search that is run again writes them at its end."""
    study = studies.study(room.folder / "a")
    golden.outputs_path(room.folder / "a" / "run", "", study.best).unlink()
    path = golden.inputs_path(room.folder / "a" / "run", "")
    held = path.read_bytes()
    path.unlink()
    text = f"pack {studies.write_run(study)} -o new.ortune"

    def finish() -> None:
        path.write_bytes(held)
        demand(text, {})

    yield lambda: demand(text, {}), finish


@follow("search/optimize:_require_storable", "ortune bench")
def a_setting_that_a_run_may_not_hold(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "m.onnx", MODEL, w=W)
    on = 'cpu(config=["session.collect_node_memory_stats_to_file=x"])'
    yield (
        lambda: ot.optimize(path, on=on, out=room.folder / "run"),
        lambda: demand("bench m.onnx --sets 1 --time 0.1s --on ON", {"ON": on}),
    )


@follow("measurement/workloads/generate:Generate.drive", "--evaluate")
def several_models_for_a_workload_of_one(room: Room) -> Iterator[Pair]:
    def drive(*models: object) -> None:
        lane = SimpleNamespace(calls=lambda _: [(model, {}) for model in models])
        rig: Any = SimpleNamespace(lanes=[lane])
        span: Any = SimpleNamespace(at=0, drop=0)
        Generate().drive(rig, span)

    one = SimpleNamespace(run=None)
    yield lambda: drive(one, one), end_at("decoder|input", lambda: drive(one))


@follow("quantizers/common/weights/blockwise:compute_order", "ortune verify", "hqq")
def inputs_of_a_layer_that_are_not_finite(room: Room) -> Iterator[Pair]:
    with prepare(room.folder, "M") as places:
        yield (
            lambda: compute_order(np.full((4, 4), np.nan), 0.01, act_order=True),
            lambda: demand("apply M int4-weights(method=hqq) -o o.onnx", places),
        )


@follow("quantizers/common/weights/blockwise:_Orders.find_order", "--data")
def values_that_were_not_observed(room: Room) -> Iterator[Pair]:
    from tests.unit.quantizing import model_of

    model = model_of(MODEL, {"w": W})
    with prepare(room.folder, "M D") as places:
        yield (
            lambda: Int4Weights(method="gptq").apply(model, {}),
            lambda: demand("apply M int4-weights(method=gptq) --data D -o o.onnx", places),
        )


@follow("analysis/verification/extract:_Run._demand_reached#2", "--data")
def a_piece_inside_of_a_loop(room: Room) -> Iterator[Pair]:
    save(room.folder / "m.onnx", LOOP)
    np.savez("d.npz", x=np.ones((8, 4), np.float32))
    text = "extract m.onnx --from u --to w -o o.onnx"
    yield lambda: demand(f"{text} --data d.npz", {}), lambda: demand(text, {})


@follow("analysis/verification/extract:_Run._demand_reached", "--data")
def a_piece_that_depends_on_a_loop(room: Room) -> Iterator[Pair]:
    save(room.folder / "m.onnx", LOOP)
    np.savez("d.npz", x=np.ones((8, 4), np.float32))
    text = "extract m.onnx --to u -o o.onnx"
    yield lambda: demand(f"{text} --data d.npz", {}), lambda: demand(text, {})


@follow("analysis/verification/extract:_Run.record_inputs", "--data")
def a_piece_that_takes_a_sequence(room: Room) -> Iterator[Pair]:
    save(room.folder / "m.onnx", PARTS)
    np.savez("d.npz", x=np.ones((8, 32), np.float32))
    text = "extract m.onnx --from s -o o.onnx"
    yield lambda: demand(f"{text} --data d.npz", {}), lambda: demand(text, {})


@follow("graph/parts/extract:_check_types", "--data")
def a_piece_of_no_known_type(room: Room) -> Iterator[Pair]:
    """Shapes are not inferred past an operator of onnxruntime's own."""
    text = "g (float[b, 32] x) => (float[b, 32] y) { t = com.microsoft.QuickGelu(x) y = Relu(t) }"
    save(room.folder / "m.onnx", OWN + text)
    np.savez("d.npz", x=np.ones((8, 32), np.float32))
    text = "extract m.onnx --from t -o o.onnx"
    yield lambda: demand(text, {}), lambda: demand(f"{text} --data d.npz", {})


@follow("cli/ui:command", "ortune optimize MODEL --data SAMPLES -o")
def a_run_that_is_not_there(room: Room) -> Iterator[Pair]:
    with prepare(room.folder, "RUN") as places:
        yield (
            lambda: demand("ui new", places),
            end_at("port", lambda: demand("ui RUN --port TAKEN", places)),
        )


@follow("core/plugins/user_file:_run_module", "python ")
def a_file_of_ones_own_that_does_not_run(room: Room) -> Iterator[Pair]:
    path = save_text(room.folder / "rules.py", "import not_there\n")
    with prepare(room.folder, "M D") as places:
        text = f"apply M {path}:Mine -o o.onnx"

        def correct() -> None:
            save_text(path, "x = 1\n")
            end_at("Mine", lambda: demand(text, places))()

        yield lambda: demand(text, places), correct


@follow("core/plugins/user_function:import_function", "python ")
def a_function_of_ones_own_that_does_not_run(room: Room) -> Iterator[Pair]:
    path = save_text(room.folder / "judge_it.py", "import not_there\n")
    with prepare(room.folder, "M D") as places:
        text = f"verify M M --evaluate {path}:judge"

        def correct() -> None:
            save_text(path, "def judge(*_, **__):\n    return 1.0\n")
            code, what, _ = run(text, places)
            assert code == 0 or "import" not in what, what

        yield lambda: demand(text, places), correct


@follow("cli/terminal/command:refuse_retired", "ortune doctor env")
def a_verb_that_went_into_another(room: Room) -> Iterator[Pair]:
    def obey(fix: str) -> None:
        verb, word = fix.split("`")[1].removeprefix("ortune ").split()
        demand(f"{verb} {word} list", {})

    yield lambda: demand("env list", {}), obey


@follow("cli/main:Verbs.resolve_command", "ortune --help")
def a_verb_that_is_not_there(room: Room) -> Iterator[Pair]:
    def look() -> None:
        assert main(["--help"]) == 0

    yield lambda: demand("benhc m.onnx", {}), look


@follow("analysis/conversion/steps:_make_preprocess_step", "--data")
def a_preprocess_file_that_is_not_there(room: Room) -> Iterator[Pair]:
    with prepare(room.folder, "M") as places:
        text = "convert M new.onnx --fold-preprocess p.toml"

        def give() -> None:
            save_text(room.folder / "p.toml", "")
            code, what, _ = run(text, places)
            assert code == 0 or "no file" not in what, what

        yield lambda: demand(text, places), give


@follow("core/custom_ops:add_custom_ops", "--on cpu")
def custom_operators_for_another_runtime(room: Room) -> Iterator[Pair]:
    yield (lambda: add_custom_ops("openvino", ("a.so",)), lambda: add_custom_ops("cpu", ("a.so",)))


@follow("core/outputs:check_output_folder", "--force", "-o")
def samples_in_the_place_of_other_files(room: Room) -> Iterator[Pair]:
    fill_folder(room.folder / "full")
    yield (
        lambda: check_output_folder(room.folder / "full", force=False),
        lambda: check_output_folder(room.folder / "full", force=True),
    )


@follow("search/experiment/experiment:name_models#2", "--evaluate")
def several_models_without_a_function(room: Room) -> Iterator[Pair]:
    paths = [Path("a.onnx"), Path("b.onnx")]
    yield lambda: name_models(paths, "", None), lambda: name_models(paths, "x.py:f", None)


@follow("search/experiment/ledger:_build_study", "-o folder of an `ortune optimize`")
def a_folder_without_a_run(room: Room) -> Iterator[Pair]:
    fill_folder(room.folder / "full")
    with prepare(room.folder, "RUN") as places:
        yield lambda: read_study(room.folder / "full"), lambda: read_study(places["RUN"])


@follow("analysis/costs/cost:of_bench#2", "--workload")
def rows_that_are_no_latencies(room: Room) -> Iterator[Pair]:
    with prepare(room.folder, "M J RATES") as places:
        yield (
            lambda: demand("cost RATES --price 1/h", places),
            lambda: demand("bench M --sets 1 --time 0.1s --json J", places),
        )


@follow("core/backend:Backend.takes", "--on cpu")
def a_backend_that_does_not_tell_what_it_takes(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "m.onnx", MODEL, w=W)
    yield lambda: Reference().takes(path), lambda: Cpu().takes(path)


@follow("graph/io/protobuf:read_identity", "ortune inspect")
def a_file_that_cannot_be_read(room: Room) -> Iterator[Pair]:
    path = save_text(room.folder / "x.onnx", "")
    yield (lambda: read_identity(path), end_at("is empty", lambda: demand("inspect x.onnx", {})))


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
