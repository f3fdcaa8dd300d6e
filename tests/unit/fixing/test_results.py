"""Fixes about runs, bundles and what is measured are followed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import pytest

import ortune as ot
from ortune.analysis.profiling import profile
from ortune.backends.cpu import Cpu
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import package
from ortune.bundle.target import Replay
from ortune.cli.main import main
from ortune.core.errors import OrtuneError
from ortune.core.progress import time_limit
from ortune.core.session import Executed, Recorded
from ortune.core.settings import demand_typed
from ortune.core.step import Recipe
from ortune.core.trial import Plan
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.job import MAIN, Failure, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed
from ortune.search import optimize
from ortune.search.experiment.ledger import Ledger
from ortune.targets.onnx import OnnxFile
from tests.unit import studies, texts
from tests.unit.bundle.test_package import Notes
from tests.unit.fixing.kit import (
    RANDOM,
    SITUATIONS,
    Pair,
    check_situation,
    demand,
    follow,
    make_bundle,
    make_own_bundle,
    prepare,
    save,
    save_text,
)
from tests.unit.following import Room, end_at
from tests.unit.search.test_fixed_shapes import STEP


@follow("analysis/profiling/profile:require_placement", "--allow-fallback", "--on")
def a_provider_that_takes_no_node(room: Room) -> Iterator[Pair]:
    """What was recorded says that the CPU ran everything."""
    model = save(room.folder / "m.onnx", RANDOM)
    node = Executed("n", "Add", calls=1, span_ns=9e3, kernel_ns=9e3, provider=Cpu.provider)
    runs = profile.Runs(Recorded((node,), 2, 1e4, 1e4), 1e4, 2)
    room.patch.setattr(profile, "require_backend", lambda _: None)
    room.patch.setattr(profile, "profile_model", lambda *_, **__: runs)

    def act(**more: Any) -> None:
        ot.profile(model, on="cuda", ceilings=False, **more)

    yield act, lambda: act(allow_fallback=True)


@follow("bundle/engine/load:load_engine", "--allow-custom-ops")
def libraries_for_a_bundle_that_brings_its_own(room: Room) -> Iterator[Pair]:
    bundle = make_own_bundle(room.folder / "own.ortune")

    def act(custom_ops: Any) -> None:
        with pytest.warns(RuntimeWarning, match="the original runs"):
            load_engine(bundle, custom_ops=custom_ops).close()

    yield lambda: load_engine(bundle, custom_ops="ops.so"), lambda: act(True)


@follow("core/settings:demand_typed", "--help")
def a_setting_of_another_type(room: Room) -> Iterator[Pair]:
    def look() -> None:
        with redirect_stdout(io.StringIO()) as said:
            assert main(["optimize", "--help"]) == 0
        assert "--time" in said.getvalue()

    yield lambda: demand_typed(room.folder / "ortune.toml", "time", True, (str,)), look


@follow("analysis/benchmark/compare:read_run#4", "--json")
def rows_without_times(room: Room) -> Iterator[Pair]:
    content = {"rows": [{"model": "m.onnx", "backend": "cpu"}]}
    path = save_text(room.folder / "x.json", json.dumps(content))
    with prepare(room.folder, "M J") as places:
        yield (
            lambda: demand("compare X X", {"X": str(path)}),
            lambda: demand("bench M --sets 1 --time 0.1s --json J", places),
        )


@follow("search/optimize:_require_free_shapes", "--fixed-shapes")
def a_run_whose_plans_take_one_shape(room: Room) -> Iterator[Pair]:
    """What comes next is not waited for."""

    def refuse(*_: object) -> None:
        raise OrtuneError("the search begins", fix="wait")

    root, plan = room.folder / "run", Plan(Recipe("fixed shapes", (STEP,)), Cpu())
    (root / "workers").mkdir(parents=True)
    Ledger(root).append(replace(studies.baseline(), plan=plan))
    room.patch.setattr(optimize, "plan_calibration", refuse)
    with prepare(room.folder, "M") as places:
        asked = {"on": "cpu", "out": root}
        yield (
            lambda: ot.optimize(places["M"], **asked),
            end_at(
                "the search begins", lambda: ot.optimize(places["M"], fixed_shapes=True, **asked)
            ),
        )


@follow("cli/run:_make_source", "--text-pair")
def a_question_without_a_text(room: Room) -> Iterator[Pair]:
    pytest.importorskip("tokenizers")
    texts.write_reader(room.folder / "f", "BertForQuestionAnswering")
    places = {"F": str(room.folder / "f")}
    yield (
        lambda: demand("run F here", places),
        lambda: demand("run F here --text-pair 'a cat sat here'", places),
    )


@follow("cli/run:_make_source#2", "--text-pair")
def two_texts_for_a_model_that_takes_one(room: Room) -> Iterator[Pair]:
    pytest.importorskip("tokenizers")
    texts.write_reader(room.folder / "f", "BertForTokenClassification", id2label={"0": "animal"})
    places = {"F": str(room.folder / "f")}
    yield (
        lambda: demand("run F here --text-pair cat", places),
        lambda: demand("run F here cat", places),
    )


@follow("analysis/conversion/convert:_check_loading", "--opt-level", "--precision")
def a_result_that_does_not_load(room: Room) -> Iterator[Pair]:
    """No kernel for float16 is there."""
    real = Worker.__init__

    def start(worker: Worker, job: WorkerJob, **settings: Any) -> None:
        if job.models and "float16" in read_facts(file.load(job.models[MAIN])).precisions:
            raise WorkerFailed(Failure("no kernel", ""), worker)
        real(worker, job, **settings)

    room.patch.setattr(Worker, "__init__", start)
    with prepare(room.folder, "M NEW") as places:
        yield (
            lambda: demand("convert M NEW --precision fp16", places),
            lambda: demand("convert M NEW --opt-level basic", places),
        )


@follow("bundle/pack:_require_gain", "--original", "--on")
def a_package_no_faster_than_the_original(room: Room) -> Iterator[Pair]:
    def refuse(_: object, source: Any) -> str:
        return "" if "as-is" in source.plan.plan else "no"

    room.patch.setattr(OnnxFile, "refuses", refuse)
    with prepare(room.folder, "RUN NEW") as places:
        yield (
            lambda: demand("pack RUN --for onnx -o NEW", places),
            lambda: demand("pack RUN --for onnx -o NEW --original", places),
        )


@follow("bundle/pack:_require_equivalence#2", "--plan", "--for")
def a_package_slower_than_its_limit(room: Room) -> Iterator[Pair]:
    bundle, slow = make_bundle(room.folder / "a.ortune"), Replay("a test", 90.0, (1.9, 1.8, 2.0))

    def act(limit: float) -> None:
        package([bundle], room.folder / "out", Notes(found=slow, limit=limit))

    yield lambda: act(0.5), lambda: act(1.9)


@follow("core/progress/time_limit:check_time", "--time")
def a_build_that_is_out_of_time(room: Room) -> Iterator[Pair]:
    def build(seconds: float) -> None:
        with time_limit.at_most(seconds):
            time_limit.check_time()

    yield lambda: build(0), lambda: build(60)


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
