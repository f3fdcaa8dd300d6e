"""Make an ONNX model faster within an accuracy budget, and prove it.

    import ortune as ot

    study = ot.optimize("model.onnx", data="samples/")
    ot.pack(study, "model.ortune")

Verbs, each a command of the same name too; ``help(ortune.optimize)`` lists its arguments:

    apply        Apply STEPs to MODEL in the order given and write the result.
    bench        Time MODELS on backends in turns, in fresh processes; raw samples are kept.
    calibrate    Find the ranges that static quantization needs, and whether the data is enough.
    compare      Compare each of FILES with the first, row by row; exit code 1 if one regressed.
    convert      Convert MODEL to OUT exactly as asked; `ortune optimize` finds out what pays.
    cost         Price what RUN measured: an `optimize -o` folder, a file of `bench` or `loadtest`.
    diff         Show which nodes and weights of A are matched, fused, split, changed or gone in B.
    explain      Explain why the search of RUN, a folder of `ortune optimize`, chose its winner.
    export       Write a PyTorch module as ONNX, with the exporter whose file answers like it.
    extract      Cut the part of MODEL between named tensors out into a model of its own.
    inspect      Show what MODEL consists of, what is wrong with it, and which backends run it.
    load         Open a bundle with exactly the settings it was measured with, or a plain model.
    loadtest     Put load on TARGET, a server or a model to serve; report rates and latencies.
    optimize     Find the fastest version of MODEL that keeps the answers, and prove it.
    pack         Pack the winner: model, original, settings, recipe, evidence, golden samples.
    profile      Show where the time of a run of MODEL goes: by operator, by node and by region.
    recheck      Run a bundle's golden samples and its benchmark again: is it as it was packed?
    report       Write the report as one offline file: HTML, or Markdown if the name ends in .md.
    sensitivity  Measure what each region of MODEL costs in accuracy and saves in time, one by one.
    serve        Serve MODELS by the Open Inference Protocol v2, HTTP and gRPC, until stopped.
    tune         Find the runtime settings that MODEL runs fastest with on one backend.
    verify       Judge whether OTHER answers like REFERENCE, within the budget.

``make docs`` writes a page of all public names.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from ortune.core.deferred_imports import defer_imports

# onnxruntime reads it as it is imported, and asks a host of its maker's 9 s later without it.
# Whatever runs or starts a session of ours imports this first; processes inherit it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

if TYPE_CHECKING:
    from ortune.analysis.benchmark.bench import bench as bench
    from ortune.analysis.calibration_quality.calibrate import calibrate as calibrate
    from ortune.analysis.calibration_quality.compare_observers import (
        compare_observers as compare_observers,
    )
    from ortune.analysis.conversion.apply import apply as apply
    from ortune.analysis.conversion.convert import convert as convert
    from ortune.analysis.costs.cost import cost as cost
    from ortune.analysis.inspection.inspect import diff as diff
    from ortune.analysis.inspection.inspect import inspect as inspect
    from ortune.analysis.padding.buckets import buckets as buckets
    from ortune.analysis.profiling.advice import evaluate_suggestions as evaluate_suggestions
    from ortune.analysis.profiling.advice import suggest as suggest
    from ortune.analysis.profiling.roofline import verdicts as verdicts
    from ortune.analysis.tuning.tune import tune as tune
    from ortune.analysis.verification.extract import extract as extract
    from ortune.analysis.verification.verify import verify as verify
    from ortune.bundle.engine.archive import verify_signature as verify_signature
    from ortune.bundle.engine.engine import Engine as Engine
    from ortune.bundle.engine.load import load_engine as _load_engine
    from ortune.bundle.pack import pack as pack
    from ortune.core.budget import Budget as Budget
    from ortune.core.errors import OrtuneError as OrtuneError
    from ortune.core.judgement import judge_steps as judge_steps
    from ortune.core.profile import Profile as Profile
    from ortune.core.reading import read_step as _read_step
    from ortune.core.step import Recipe as Recipe
    from ortune.core.step import Stage as Stage
    from ortune.core.step import Transform as Transform
    from ortune.core.study import Study as Study
    from ortune.core.trial import Plan as Plan
    from ortune.core.trial import Trial as Trial
    from ortune.data.feeds import Feeds as Feeds
    from ortune.exporters.export import export as export
    from ortune.reporting.explanation.explain import explain as explain
    from ortune.reporting.html import report as report
    from ortune.reporting.python.compare import compare as compare
    from ortune.reporting.python.profile import profile as profile
    from ortune.reporting.python.recheck import recheck as recheck
    from ortune.reporting.python.sensitivity import sensitivity as sensitivity
    from ortune.reporting.python.timeline import timeline as timeline
    from ortune.search.experiment.ledger import read_study as read_study
    from ortune.search.optimize import optimize as optimize
    from ortune.search.recipe.build import build as build
    from ortune.serving.load_testing.loadtest import loadtest as loadtest
    from ortune.serving.server.serve import serve as serve
    from ortune.transforms.common.user_rule import rule as rule

    load, step = _load_engine, _read_step

from ortune.core.version import __version__ as __version__

defer_imports()

_HOME = {
    "Budget": "core.budget",
    "Engine": "bundle.engine.engine",
    "Feeds": "data.feeds",
    "OrtuneError": "core.errors",
    "Plan": "core.trial",
    "Profile": "core.profile",
    "Recipe": "core.step",
    "Stage": "core.step",
    "Study": "core.study",
    "Transform": "core.step",
    "Trial": "core.trial",
    "apply": "analysis.conversion.apply",
    "bench": "analysis.benchmark.bench",
    "buckets": "analysis.padding.buckets",
    "build": "search.recipe.build",
    "calibrate": "analysis.calibration_quality.calibrate",
    "compare": "reporting.python.compare",
    "compare_observers": "analysis.calibration_quality.compare_observers",
    "convert": "analysis.conversion.convert",
    "cost": "analysis.costs.cost",
    "diff": "analysis.inspection.inspect",
    "evaluate_suggestions": "analysis.profiling.advice",
    "explain": "reporting.explanation.explain",
    "export": "exporters.export",
    "extract": "analysis.verification.extract",
    "inspect": "analysis.inspection.inspect",
    "judge_steps": "core.judgement",
    "load": "bundle.engine.load:load_engine",
    "loadtest": "serving.load_testing.loadtest",
    "optimize": "search.optimize",
    "pack": "bundle.pack",
    "profile": "reporting.python.profile",
    "read_study": "search.experiment.ledger",
    "recheck": "reporting.python.recheck",
    "report": "reporting.html",
    "rule": "transforms.common.user_rule",
    "sensitivity": "reporting.python.sensitivity",
    "serve": "serving.server.serve",
    "step": "core.reading:read_step",
    "suggest": "analysis.profiling.advice",
    "timeline": "reporting.python.timeline",
    "tune": "analysis.tuning.tune",
    "verdicts": "analysis.profiling.roofline",
    "verify": "analysis.verification.verify",
    "verify_signature": "bundle.engine.archive",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that ``ortune --help`` is instant."""
    if name not in _HOME:
        raise AttributeError(f"module 'ortune' has no attribute '{name}'")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(importlib.import_module(f"ortune.{module}"), attribute or name)


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
