"""QwT-v2's compensation of quantized blocks (arXiv 2505.20932), tried beside the accuracy kit.

    python -m benchmarks.compensation [efficientnet-lite0] [minilm]

Behind every block of an int8 file its output ``y`` becomes ``y + d``, where ``d`` is fitted by
least squares to what rounding lost on the calibration samples, block after block:

- ``bias``: ``d = b``, a number a channel;
- ``affine``: ``d = a y + b``, QwT-v2's module;
- ``matrix``: ``d = M x + b`` of the block's input ``x``, QwT's first form (ridge regression).

Printed: signal to noise of the answers over the scored samples, their score, floating-point
operations and bytes that the module adds. See ``docs/decisions/0018-qwt-v2-left-out.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tests.real.jobs import efficientnet_lite0, minilm
from tests.real.samples import written

from benchmarks.precision import runner
from ortune.core.reading import step
from ortune.core.step import Recipe
from ortune.data.feeds import load
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.recipe.build import build

KINDS = ("bias", "affine", "matrix")
RIDGE = 1e-4
"""Of the mean square of the inputs, added to it."""
SAMPLES, ROWS = 24, 4096
"""Calibration samples that are run, and rows of them that a fit takes."""
JOBS = {"efficientnet-lite0": efficientnet_lite0, "minilm": minilm}
RECIPES = {
    "efficientnet-lite0": (
        ("int8-static",),
        ("bias-correction", "int8-static"),
        ("adaptive-rounding", "int8-static"),
    ),
    "minilm": (
        ("int8-static",),
        ("int8-static(smooth=0.75, split=4)",),
        ("smooth-quant", "adaptive-rounding", "int8-static"),
    ),
}

Array = NDArray[Any]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class Block:
    """A part of the network.

    Attributes:
        end: What it makes, before the residual is added.
        start: What it reads.
        axis: Of the channels.
    """

    end: str
    start: str
    axis: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(JOBS))
    parser.add_argument("--recipe", type=int, help="only the recipe of that number")
    asked = parser.parse_args()
    for name in asked.names or JOBS:
        wanted = RECIPES[name] if asked.recipe is None else (RECIPES[name][asked.recipe],)
        with TemporaryDirectory(prefix="ortune-") as folder:
            tried(name, wanted, Path(folder))


def tried(name: str, recipes: Sequence[Sequence[str]], folder: Path) -> None:
    """Print one line a recipe and kind of compensation."""
    home = written(name)
    samples = list(_feeds(home / "calibration"))[:SAMPLES]
    judged = list(_feeds(home / "data"))
    original = _made(home, folder / "float.onnx", ())
    run = runner(original)
    wanted = [next(iter(run(**feeds).values())).astype(np.float64) for feeds in judged]
    blocks = list(_blocks(original))
    print(f"{name}: {len(blocks)} blocks, float score {_score(name, original):.4f}", flush=True)
    for index, steps in enumerate(recipes):
        made = _made(home, folder / f"{index}.onnx", steps)
        _say(" ".join(steps), name, made, judged, wanted, "")
        for kind in KINDS:
            path = folder / f"{index}-{kind}.onnx"
            cost = compensated(original, made, blocks, kind, samples, path)
            _say(f"  {kind}", name, path, judged, wanted, cost)


def compensated(
    original: Path, made: Path, blocks: Sequence[Block], kind: str, samples: list[Feeds], out: Path
) -> str:
    """Write the file with compensation behind every block; return what that costs."""
    proto = onnx.load(made)
    known = {name for node in proto.graph.node for name in node.output}
    flops = extra = count = 0
    aims = _tensors(onnx.load(original), [block.end for block in blocks], samples)
    for block, aim in zip(blocks, aims, strict=True):
        if block.end not in known or (kind == "matrix" and block.start not in known):
            continue
        names = [block.end, *([block.start] if kind == "matrix" else [])]
        found = _tensors(proto, names, samples)
        rows = [_rows(one, block.axis) for one in (aim, *found)]
        if any(len(one) != len(rows[0]) for one in rows):
            continue  # a block that makes the image smaller has no matrix
        picked = np.random.default_rng(0).permutation(len(rows[0]))[:ROWS]
        matrix, bias = _fit(kind, *(one[picked].astype(np.float64) for one in rows))
        _insert(proto, block, kind, matrix, bias)
        count += 1
        flops += 2 * matrix.size * len(rows[0]) // len(samples)
        extra += 4 * (matrix.size + bias.size)
    onnx.save(proto, out)
    return f"{count} blocks, {flops / 1e6:.1f} MFLOP a sample, {extra / 1e6:.2f} MB"


def _fit(kind: str, aim: Array, made: Array, read: Array | None = None) -> tuple[Array, Array]:
    """Return what is multiplied and what is added, float64."""
    lost = aim - made
    if kind == "bias":
        return np.zeros(0), lost.mean(0)
    if kind == "affine":
        spread = made - made.mean(0)
        slope = (spread * lost).sum(0) / (np.square(spread).sum(0) * (1 + RIDGE) + 1e-12)
        return slope, lost.mean(0) - slope * made.mean(0)
    assert read is not None
    spread = read - read.mean(0)
    square = spread.T @ spread
    square += np.eye(len(square)) * RIDGE * np.trace(square) / len(square)
    matrix = np.linalg.solve(square, spread.T @ (lost - lost.mean(0)))
    return matrix, lost.mean(0) - read.mean(0) @ matrix


def _insert(proto: onnx.ModelProto, block: Block, kind: str, matrix: Array, bias: Array) -> None:
    """Put the module behind a block's end; all that read the end read the sum."""
    graph, stem = proto.graph, f"{block.end}_compensated"
    image = block.axis == 1
    nodes: list[onnx.NodeProto] = []

    def constant(name: str, array: Array) -> str:
        held = numpy_helper.from_array(array.astype(np.float32), f"{stem}_{name}")
        graph.initializer.append(held)
        return str(held.name)

    def node(op: str, name: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{stem}_{name}"], f"{stem}_{name}"))
        return f"{stem}_{name}"

    shape = (-1, 1, 1) if image else (-1,)
    added = constant("b", bias.reshape(shape))
    if kind == "affine":
        scaled = node("Mul", "scaled", block.end, constant("a", 1 + matrix.reshape(shape)))
        node("Add", "out", scaled, added)
    elif kind == "bias":
        node("Add", "out", block.end, added)
    else:
        kernel = matrix.T[..., None, None] if image else matrix
        op = "Conv" if image else "MatMul"
        product = node(op, "product", block.start, constant("m", kernel))
        node("Add", "out", node("Add", "sum", block.end, product), added)
    at = next(k for k, one in enumerate(graph.node) if block.end in one.output)
    for one in graph.node:
        for index, name in enumerate(one.input):
            if name == block.end:
                one.input[index] = f"{stem}_out"
    for offset, one in enumerate(nodes, 1):
        graph.node.insert(at + offset, one)


def _blocks(path: Path) -> Iterator[Block]:
    """Yield what ends in a residual Add or a projection, with what the block reads."""
    graph = onnx.load(path).graph
    maker = {name: node for node in graph.node for name in node.output}
    read: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            read.setdefault(name, []).append(node)
    weights = {one.name for one in graph.initializer}
    for node in graph.node:
        end = node.output[0]
        behind = read.get(end, [])
        if node.op_type == "Conv" and all(one.op_type not in ("Clip", "Relu") for one in behind):
            yield Block(end, _start(node, maker), 1)
        elif node.op_type == "Add" and set(node.input) & weights:
            product = next((maker[one] for one in node.input if one in maker), None)
            sums = [one.op_type in ("Add", "SkipLayerNormalization") for one in behind]
            if product is not None and product.op_type == "MatMul" and any(sums):
                rest = [name for one in behind for name in one.input if name != end]
                start = next((name for name in rest if name in maker), "")
                yield Block(end, start, -1)


def _start(node: onnx.NodeProto, maker: dict[str, onnx.NodeProto]) -> str:
    """Follow a chain of convolutions back to what the block reads."""
    name = node.input[0]
    while name in maker and maker[name].op_type in ("Conv", "Clip", "Relu"):
        before = maker[name].input[0]
        if maker[name].op_type == "Conv" and before in maker:
            linear = maker[before].op_type in ("Add", "Conv")
            if linear:
                return str(before)
        name = before
    return str(name)


def _tensors(proto: onnx.ModelProto, names: Sequence[str], samples: list[Feeds]) -> list[Array]:
    """Return tensors of a model over all samples, one behind the other."""
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = _session(watched.SerializeToString())
    inputs = {one.name for one in session.get_inputs()}
    found: list[list[Array]] = [[] for _ in names]
    for feeds in samples:
        given = {name: array for name, array in feeds.items() if name in inputs}
        for kept, array in zip(found, session.run(list(names), given), strict=True):
            kept.append(array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array)
    return [np.concatenate(kept) for kept in found]


def _rows(array: Array, axis: int) -> Array:
    """Return values as rows of channels."""
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])


def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _made(home: Path, out: Path, steps: Sequence[str]) -> Path:
    with TemporaryDirectory(prefix="ortune-") as folder:
        model = home / "model.onnx"
        feeds = load(str(home / "calibration"), facts(file.load(model)).inputs, Path(folder))
        recipe = Recipe("tried", tuple(step(text) for text in ("simplify", *steps)))
        return build(model, recipe, out, feeds=feeds).path


def _feeds(folder: Path) -> Iterator[Feeds]:
    for path in sorted(folder.glob("*.npz")):
        yield {k: v for k, v in np.load(path).items() if k not in ("label", "group")}


def _score(name: str, path: Path) -> float:
    found: float = JOBS[name].score(runner(path))
    return found


def _say(
    what: str, name: str, path: Path, judged: list[Feeds], wanted: list[Array], cost: str
) -> None:
    run = runner(path)
    signal = wrong = 0.0
    for feeds, aim in zip(judged, wanted, strict=True):
        signal += float(np.square(aim).sum())
        wrong += float(np.square(aim - next(iter(run(**feeds).values()))).sum())
    noise = 10 * np.log10(signal / max(wrong, 1e-300))
    print(f"{what:48} {noise:6.2f} dB  score {_score(name, path):.4f}  {cost}", flush=True)


if __name__ == "__main__":
    main()
