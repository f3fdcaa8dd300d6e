"""What diff finds between a real model and what the exact transforms made of it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.graph.analysis.facts import read_facts
from ortune.graph.diff.compare import diff_models
from ortune.graph.io import file
from ortune.search.recipe.space import make_clean_recipe
from tests.real.task import installed
from tests.unit.graph.diff.test_compare import disguised

MODELS = {
    "ppocr_cls": ("rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
    "ppocr_det": ("rapidocr", "models/PP-OCRv6_det_small.onnx"),
    "ppocr_rec": ("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
    "magika": ("magika", "models/standard_v3_3/model.onnx"),
}


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.long
@pytest.mark.parametrize("hidden", [False, True], ids=["named", "disguised"])
@pytest.mark.parametrize("name", list(MODELS))
def test_what_the_transforms_left_is_found_again(name: str, hidden: bool, tmp_path: Path) -> None:
    """Nodes that kept their name are the truth; in disguise the diff does not see the names."""
    package, relative = MODELS[name]
    path = installed(package, f"{package}/{relative}")
    model = file.load(path)
    for step in make_clean_recipe(read_facts(model), Cpu()).steps:
        step.apply(model)
    proto = onnx.load(file.save(model, tmp_path / "clean.onnx"))
    _remember(proto.graph)
    onnx.save(disguised(proto, 1) if hidden else proto, tmp_path / "after.onnx")
    after = file.load(tmp_path / "after.onnx")
    truth = {node.name: node.doc_string for node in after.graph.all_nodes()}

    found = diff_models(file.load(path), after)
    ids = {node.name: node.id for node in found.nodes[0]}
    wrong, right = [], 0
    for node in found.nodes[1]:
        if (was := truth[node.name]) in ids:
            if ids[was] in found.groups[node.group].a:
                right += 1
            else:
                wrong.append(was)
    assert right > 50 and not wrong


def _remember(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.doc_string = node.name
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _remember(attribute.g)
