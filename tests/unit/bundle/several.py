"""A study with confirmed plans of two backends; what bundles of several plans are tested on."""

from dataclasses import replace
from pathlib import Path

from ortune_toys.backends.scripted import Scripted
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.step import Recipe
from ortune.core.study import Study
from ortune.core.trial import Interval, Plan

CPU, TOY, OTHER = "aa11" * 4, "ee55" * 4, "ff66" * 4
"""Keys of the finalists: the study's own, a faster one elsewhere, and a slower one on the CPU."""


def study(folder: Path) -> Study:
    """Write a run whose winner runs on another backend than its second."""
    made = studies.study(folder)
    made = with_plan(made, TOY, Scripted(slow=0.9), 0.4)
    return with_plan(made, OTHER, Cpu(level="basic"), 0.8, artefact="artefacts/0456")


def with_plan(
    made: Study, key: str, backend: Backend, ratio: float, artefact: str = "artefacts/0123"
) -> Study:
    """Add a finalist; plans of one artefact have the same model."""
    built = Path(made.root) / artefact / "toy.onnx"
    if not built.is_file():
        studies.write_model(built, studies.TUNED.replace("g (", "other ("))
    trial = studies.trial(key, Plan(Recipe("clean"), backend), ratio, artefact=artefact)
    final = replace(trial, part="final", ratio=Interval(ratio, ratio - 0.01, ratio + 0.01))
    studies.write_golden(made, final, built)
    return replace(made, trials=(*made.trials, trial, final))
