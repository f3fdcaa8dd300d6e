"""A model that computes for as long as an input says: its loop may have any number of turns."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

FOR_EVER = 2**60


def write_loop(path: Path, turns: int | None = None) -> Path:
    """Write y = sin(sin(... x)) of four numbers; without `turns`, input ``n`` says how often."""
    float_, bool_, int_ = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Sin", ["v"], ["w"])],
        "body",
        [info("i", int_, []), info("go", bool_, []), info("v", float_, [4])],
        [info("go_on", bool_, []), info("w", float_, [4])],
    )
    count = [] if turns is None else [helper.make_tensor("n", int_, [], [turns])]
    inputs = [info("x", float_, [4]), *([info("n", int_, [])] if turns is None else [])]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "loop",
        inputs,
        [info("y", float_, [4])],
        count,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path
