"""Networks from packages are divided as a person would: a layer with what follows it."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

import onnx_ir as ir
import pytest

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.search.mixed_precision.grouping import find_regions
from ortune.search.recipe.build import build
from ortune.search.recipe.space import make_clean_recipe


def model(name: str, folder: Path, *, cleaned: bool) -> ir.Model:
    job = import_module(f"tests.real.jobs.{name}")
    if why := job.missing():
        pytest.skip(why)
    path = job.task(folder).models[0]
    if cleaned:
        recipe = make_clean_recipe(read_facts(file.load(path)), Cpu(), Capabilities())
        path = build(path, recipe, folder / "clean.onnx").path
    return file.load(path)


@pytest.mark.parametrize("cleaned", [False, True])
def test_minilm_has_six_equal_blocks(tmp_path: Path, cleaned: bool) -> None:
    found = find_regions(model("minilm", tmp_path, cleaned=cleaned))
    blocks = [one for one in found if "Gather" not in one.ops and "Embed" not in one.name]
    kinds = Counter(one.pattern for one in blocks)
    assert {count for count in kinds.values() if count > 1} == {6}
    assert len(kinds) <= 6
    assert len({one.name for one in found}) == len(found)
    assert max(one.bytes for one in found) == 30522 * 384 * 4


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_digit_network_has_a_region_a_layer(tmp_path: Path, cleaned: bool) -> None:
    found = find_regions(model("digit_cnn", tmp_path, cleaned=cleaned))
    assert [one.ops for one in found] == [("Conv",)] * 3 + [("Gemm",)] * 2
    assert [len(one.nodes) for one in found[:4]] == [2] * 4
