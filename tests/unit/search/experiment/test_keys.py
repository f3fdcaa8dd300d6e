"""When two searches are the same: what counts of a job, and how a difference is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.studies import MODEL, TUNED, job, write_model

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.acceptance import Goal
from ortune.core.budget import Budget
from ortune.core.plugins import catalog
from ortune.core.study import Job
from ortune.measurement.workloads.throughput import Throughput
from ortune.metrics.cosine import Cosine
from ortune.search.experiment.experiment import (
    describe_difference,
    job_key,
    model_digest,
    worker_environment,
)

COUNTS: list[tuple[dict[str, Any], str]] = [
    ({"model_digest": "other"}, "other model"),
    ({"data_digest": "other"}, "other data"),
    ({"versions": {"onnxruntime": "0"}}, "other versions"),
    ({"machine": {"cpu": "another"}}, "other machine"),
    ({"budget": Budget(Cosine(), 0.9)}, "its budget is cosine>=0.999, not cosine>=0.9"),
    ({"baseline": Cpu(threads=1)}, "its baseline is cpu, not cpu(threads=1)"),
    ({"on": "openvino"}, "its --on is , not openvino"),
    ({"environment": "other"}, "its environment is "),
    ({"workload": Throughput()}, "its workload is latency"),
]


@pytest.fixture
def one(tmp_path: Path) -> Job:
    return job(write_model(tmp_path / "toy.onnx", MODEL))


@pytest.mark.parametrize(("fields", "said"), COUNTS)
def test_what_results_depend_on_is_in_the_key_and_is_named(
    one: Job, fields: dict[str, Any], said: str
) -> None:
    other = replace(one, **fields)
    assert job_key(other) != job_key(one)
    assert describe_difference(one, other).startswith(said)
    assert (
        describe_difference(one, other).count("its ")
        + describe_difference(one, other).count("other ")
        == 1
    )


def test_by_what_the_winner_is_chosen_is_named_and_no_trial_depends_on_it(one: Job) -> None:
    other = replace(one, wanted=Goal("size"))
    assert job_key(other) == job_key(one)
    assert describe_difference(one, other) == "its winner is the fastest, not --prefer size"


@pytest.mark.parametrize("fields", [{"model": "elsewhere/toy.onnx"}, {"budget_rule": "given"}])
def test_where_the_model_lies_and_why_the_budget_is_so_do_not_count(
    one: Job, fields: dict[str, str]
) -> None:
    assert job_key(replace(one, **fields)) == job_key(one)


def test_equal_jobs_differ_in_nothing_and_several_differences_are_joined(one: Job) -> None:
    assert describe_difference(one, replace(one)) == ""
    other = replace(one, on="openvino", model_digest="x", machine={"cpu": "y"})
    assert describe_difference(one, other) == "its --on is , not openvino, other model and machine"


def test_an_edited_workload_is_another_job(one: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    before = job_key(one)
    monkeypatch.setattr(catalog, "source_digest", lambda plugin: "edited")
    assert job_key(one) != before


def test_a_models_content_and_name_count_and_its_place_does_not(tmp_path: Path) -> None:
    one, same, other = (
        write_model(tmp_path / name / "toy.onnx", text)
        for name, text in (("a", MODEL), ("b", MODEL), ("c", TUNED))
    )
    assert model_digest({"": one}) == model_digest({"": same}) != model_digest({"": other})
    assert model_digest({"x": one}) != model_digest({"y": one})


def test_workers_run_where_the_job_says_that_a_backend_does(one: Job) -> None:
    assert (
        worker_environment(one, Openvino())
        == "here"
        == worker_environment(replace(one, on="auto"), Cpu())
    )
    there = replace(one, on="auto,openvino in vino")
    assert (worker_environment(there, Openvino(threads=2)), worker_environment(there, Cpu())) == (
        "vino",
        "here",
    )
    assert worker_environment(there, Bucketed(inner=Openvino())) == "vino"
    assert job_key(there) != job_key(replace(one, on="auto,openvino in other"))
