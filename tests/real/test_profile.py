"""Real models: a profile adds up, and every kernel names nodes of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ortune.analysis.profiling.profile import profile
from tests.real.task import installed, missing


@dataclass(frozen=True)
class Case:
    requirement: str
    file: str
    shapes: dict[str, tuple[int, ...]]
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)


OCR = "rapidocr/models/PP-OCRv6_{}_small.onnx"
CASES = {
    "silero": Case(
        "silero-vad",
        "silero_vad/data/silero_vad.onnx",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
        {"sr": (16_000, 16_000)},
    ),
    "ppocr_det": Case("rapidocr", OCR.format("det"), {"x": (1, 3, 160, 160)}),
    "ppocr_rec": Case("rapidocr", OCR.format("rec"), {"x": (1, 3, 48, 160)}),
}
LEVELS = [
    "all",
    pytest.param("extended", marks=pytest.mark.long),
    pytest.param("disabled", marks=pytest.mark.long),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_times_add_up_and_sources_are_named(name: str, level: str) -> None:
    case = CASES[name]
    if reason := missing((case.requirement,)):
        pytest.skip(reason)
    path: Path = installed(case.requirement, case.file)
    found = profile(
        path,
        on=f"cpu(level={level}, threads=1)",
        shapes=case.shapes,
        ranges=case.ranges,
        ceilings=False,
        time=0.5,
    )
    assert 0.95 <= found.coverage <= 1.05
    assert found.mapped == 1
    claimed = {source for kernel in found.kernels for source in kernel.sources}
    assert not claimed & set(found.folded)
    assert sum(region.nodes for region in found.regions) == len(claimed) + len(found.folded)
