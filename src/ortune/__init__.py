"""Make an ONNX model faster within an accuracy budget, and prove it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortune.bundle.pack import pack as pack
    from ortune.core.budget import Budget as Budget
    from ortune.core.errors import OrtuneError as OrtuneError
    from ortune.core.profile import Profile as Profile
    from ortune.core.step import Recipe as Recipe
    from ortune.core.step import Stage as Stage
    from ortune.core.step import Transform as Transform
    from ortune.core.steps import step as step
    from ortune.core.study import Study as Study
    from ortune.core.trial import Plan as Plan
    from ortune.core.trial import Trial as Trial
    from ortune.data.feeds import Feeds as Feeds
    from ortune.engine.load import Engine as Engine
    from ortune.engine.load import load as load
    from ortune.model.rule import rule as rule
    from ortune.recipe.build import build as build
    from ortune.reporting.write import report as report
    from ortune.study.bench import bench as bench
    from ortune.study.calibrating import calibrate as calibrate
    from ortune.study.compare import compare as compare
    from ortune.study.compare_observers import compare_observers as compare_observers
    from ortune.study.extract import extract as extract
    from ortune.study.inspect import inspect as inspect
    from ortune.study.ledger import read_study as read_study
    from ortune.study.optimize import optimize as optimize
    from ortune.study.pricing import cost as cost
    from ortune.study.profile import profile as profile
    from ortune.study.profile_files import to_dataframe as to_dataframe
    from ortune.study.roofline import verdicts as verdicts
    from ortune.study.timeline import timeline as timeline
    from ortune.study.trying import suggested as suggested
    from ortune.study.trying import tried as tried
    from ortune.study.tune import tune as tune
    from ortune.study.verify import verify as verify

__version__ = "0.1.0"

_HOME = {
    "Budget": "core.budget",
    "Engine": "engine.load",
    "Feeds": "data.feeds",
    "OrtuneError": "core.errors",
    "Plan": "core.trial",
    "Profile": "core.profile",
    "Recipe": "core.step",
    "Stage": "core.step",
    "Study": "core.study",
    "Transform": "core.step",
    "Trial": "core.trial",
    "bench": "study.bench",
    "build": "recipe.build",
    "calibrate": "study.calibrating",
    "compare": "study.compare",
    "compare_observers": "study.compare_observers",
    "cost": "study.pricing",
    "extract": "study.extract",
    "inspect": "study.inspect",
    "load": "engine.load",
    "optimize": "study.optimize",
    "pack": "bundle.pack",
    "profile": "study.profile",
    "read_study": "study.ledger",
    "report": "reporting.write",
    "rule": "model.rule",
    "step": "core.steps",
    "suggested": "study.trying",
    "to_dataframe": "study.profile_files",
    "timeline": "study.timeline",
    "tried": "study.trying",
    "tune": "study.tune",
    "verdicts": "study.roofline",
    "verify": "study.verify",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that ``ortune --help`` is instant."""
    if name not in _HOME:
        raise AttributeError(f"module 'ortune' has no attribute '{name}'")
    return getattr(importlib.import_module(f"ortune.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
