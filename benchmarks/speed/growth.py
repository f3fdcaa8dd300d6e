"""How the time of verbs that run nothing grows with the number of nodes, for graphs of each kind.

    python -m benchmarks.speed.growth [--sizes 1000,10000,100000] [--kinds NAME ...] [--limit S]

Seconds of processor time of a whole command, its start included, which the smallest size tells.
A cell that a run before has is kept: --kinds names what is measured anew. A command that takes
longer than the limit counts as null.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.result_files import result_file
from ortune.core.version import read_commit

SMALLEST = 100
SIZES = (1_000, 10_000, 100_000)
VERBS: Mapping[str, Sequence[str]] = {
    "inspect": ("inspect", "a.onnx"),
    "simplify": ("apply", "a.onnx", "simplify", "-o", "out.onnx", "--force"),
    "diff": ("diff", "a.onnx", "b.onnx"),
}
_CONSTANTS = {
    "one": np.float32(1),
    "low": np.float32(-1),
    "zeros": np.zeros(1, np.int64),
    "far": np.full(1, 99, np.int64),
    "to": np.array([2, 4], np.int64),
    "flat": np.array([8, -1], np.int64),
    "w": np.arange(8, dtype=np.float32).reshape(2, 4),
    "scale": np.float32(0.1),
    "zero": np.uint8(3),
}


def _node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"n_{output}", **attributes)


def chain(*steps: tuple[str, str, dict[str, object]], start: str = "x") -> Callable[[int], Nodes]:
    """Return what makes a chain of nodes that takes these steps in turn."""

    def make(count: int) -> Nodes:
        nodes, last = [], start
        for index in range(count):
            op, more, attributes = steps[index % len(steps)]
            inputs = more.replace("@", last) if "@" in more else f"{last} {more}"
            nodes.append(_node(op, inputs, f"v{index}", **attributes))
            last = f"v{index}"
        return [*nodes, _node("Add", f"{last} x", "y")], {}, 1

    return make


Nodes = tuple[list[onnx.NodeProto], dict[str, np.ndarray], int]
"""Nodes, initializers besides the common ones, and how many outputs y, y1, y2 there are."""


_JOINED = 1000
"""Leaves of a fan that one Sum adds up."""


def _fan(op: str, source: str) -> Callable[[int], Nodes]:
    def make(count: int) -> Nodes:
        nodes = [_node("Relu", "x", "r")]
        more = {"alpha": 0.1} if op == "LeakyRelu" else {}
        nodes += [
            _node(op, source, f"v{i}", **{key: value * i for key, value in more.items()})
            for i in range(count)
        ]
        sums = range(0, count, _JOINED)
        for first in sums:
            joined = " ".join(f"v{i}" for i in range(first, min(first + _JOINED, count)))
            nodes.append(_node("Sum", joined, f"s{first}"))
        return [*nodes, _node("Sum", " ".join(f"s{i}" for i in sums), "y")], {}, 1

    return make


def _initializers(content: Callable[[int], np.ndarray]) -> Callable[[int], Nodes]:
    def make(count: int) -> Nodes:
        nodes, last = [], "x"
        for index in range(count):
            nodes.append(_node("Add", f"{last} w{index}", f"v{index}"))
            last = f"v{index}"
        return [*nodes, _node("Relu", last, "y")], {f"w{i}": content(i) for i in range(count)}, 1

    return make


def _content_of(index: int) -> np.ndarray:
    """Weights that differ in one element alone."""
    array = np.zeros((2, 4), np.float32)
    array[1, 1] = index
    return array


def _constants(count: int) -> Nodes:
    nodes, last = [], "x"
    for index in range(count // 2):
        nodes.append(helper.make_node("Constant", [], [f"c{index}"], value_float=float(index)))
        nodes.append(_node("Add", f"{last} c{index}", f"v{index}"))
        last = f"v{index}"
    return [*nodes, _node("Relu", last, "y")], {}, 1


def _branches(count: int) -> Nodes:
    nodes, last = [_node("ReduceMax", "x", "m", keepdims=0), _node("Greater", "m one", "c")], "x"
    for index in range(count // 3):
        bodies = {
            f"{name}_branch": helper.make_graph(
                [_node(op, last, f"{name}{index}")],
                name,
                [],
                [helper.make_tensor_value_info(f"{name}{index}", TensorProto.FLOAT, None)],
            )
            for name, op in (("then", "Relu"), ("else", "Sigmoid"))
        }
        nodes.append(_node("If", "c", f"v{index}", **bodies))
        last = f"v{index}"
    return [*nodes, _node("Relu", last, "y")], {}, 1


def _large_body(count: int) -> Nodes:
    def body(name: str, op: str) -> onnx.GraphProto:
        steps = count // 2
        return helper.make_graph(
            [_node(op, f"{name}{i - 1}" if i else "x", f"{name}{i}") for i in range(steps)],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}{steps - 1}", TensorProto.FLOAT, None)],
        )

    head = [_node("ReduceMax", "x", "m", keepdims=0), _node("Greater", "m one", "c")]
    bodies = {"then_branch": body("t", "Relu"), "else_branch": body("e", "Sigmoid")}
    return [*head, _node("If", "c", "y", **bodies)], {}, 1


def _outputs(count: int) -> Nodes:
    """As many outputs as a model may have, each behind a chain."""
    width = min(10_000, count // 2)
    nodes, last = [], ["x"] * width
    for index in range(count - width):
        at = index % width
        nodes.append(_node("LeakyRelu", last[at], f"v{index}", alpha=index / count))
        last[at] = f"v{index}"
    nodes += [_node("Identity", last[i], f"y{i or ''}") for i in range(width)]
    return nodes, {}, width


KINDS: Mapping[str, Callable[[int], Nodes]] = {
    "Identity in a row": chain(("Identity", "", {})),
    "Identity of a constant": chain(("Identity", "", {}), start="w"),
    "Relu in a row": chain(("Relu", "", {})),
    "Sigmoid in a row": chain(("Sigmoid", "", {})),
    "Dropout in a row": chain(("Dropout", "", {})),
    "Neg and Abs of a constant": chain(("Neg", "", {}), ("Abs", "", {}), start="w"),
    "Cast and back": chain(("Cast", "", {"to": 11}), ("Cast", "", {"to": 1})),
    "Transpose and back": chain(("Transpose", "", {"perm": [1, 0]})),
    "Reshape in a row": chain(("Reshape", "flat", {}), ("Reshape", "to", {})),
    "Unsqueeze and Squeeze": chain(("Unsqueeze", "zeros", {}), ("Squeeze", "zeros", {})),
    "Slice in a row": chain(("Slice", "zeros far", {})),
    "Clip and Relu": chain(("Clip", "low one", {}), ("Relu", "", {})),
    "Add and Mul of one constant": chain(("Add", "w", {}), ("Mul", "w", {})),
    "Pairs": chain(("QuantizeLinear", "scale zero", {}), ("DequantizeLinear", "scale zero", {})),
    "Add of itself": chain(("Add", "@ @", {})),
    "Residual": chain(("Sigmoid", "", {}), ("Add", "x", {})),
    "Concat that grows": chain(("Concat", "x", {"axis": 0})),
    "Fan of different nodes": _fan("LeakyRelu", "r"),
    "Fan of equal nodes": _fan("Sigmoid", "r"),
    "Fan over a constant": _fan("Exp", "w"),
    "Initializers": _initializers(_content_of),
    "Equal initializers": _initializers(lambda index: np.ones((2, 4), np.float32)),
    "Constant nodes": _constants,
    "If in a row": _branches,
    "Two large bodies": _large_body,
    "Outputs": _outputs,
}


def write_models(kind: str, count: int, folder: Path) -> None:
    """Write a graph of about so many nodes, and one of which every seventh node differs."""
    nodes, more, outputs = KINDS[kind](count)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, [2, 4])],
        [info(f"y{i or ''}", TensorProto.FLOAT, None) for i in range(outputs)],
        [numpy_helper.from_array(a, key) for key, a in {**_CONSTANTS, **more}.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "a.onnx")
    for node in model.graph.node[::7]:
        node.name += "_changed"
        node.op_type = {"Relu": "Tanh", "Sigmoid": "Tanh"}.get(node.op_type, node.op_type)
    onnx.save(model, folder / "b.onnx")


def time_command(words: Sequence[str], folder: Path, limit: float) -> tuple[float | None, str]:
    """Return a command's seconds of processor time, None above the limit, and its last words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"import resource as r; r.setrlimit(r.RLIMIT_CPU, ({limit:.0f},) * 2); "
    code += "import sys; from ortune.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    refusal = done.stderr.strip().splitlines()[:1] if done.returncode == 2 else []
    return (None if done.returncode < 0 else round(took, 2)), refusal[0] if refusal else ""


def main() -> None:
    """Measure and write the results after each kind."""
    parser = argparse.ArgumentParser(prog="benchmarks.speed.growth", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[])
    parser.add_argument("--limit", type=float, default=300.0)
    asked = parser.parse_args()
    out = result_file("growth")
    result = json.loads(out.read_text()) if out.is_file() else {"kinds": {}}
    result["commit"] = read_commit()
    for kind in asked.kinds or KINDS:
        with tempfile.TemporaryDirectory() as name:
            row = {} if asked.kinds else result["kinds"].get(kind, {})
            for size in (SMALLEST, *map(int, asked.sizes.split(","))):
                if str(size) in row:
                    continue
                write_models(kind, size, Path(name))
                cells = {
                    verb: time_command(words, Path(name), asked.limit)
                    for verb, words in VERBS.items()
                }
                row[str(size)] = {verb: seconds for verb, (seconds, _) in cells.items()}
                refusals = {text for _, text in cells.values() if text}
                if refusals:
                    row[str(size)]["refused"] = min(refusals)
                sys.stdout.write(f"{kind:28} {size:7} {row[str(size)]}\n")
                sys.stdout.flush()
        result["kinds"][kind] = dict(sorted(row.items(), key=lambda cell: int(cell[0])))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
