"""onnx's own conformance cases: each a model, its inputs and the outputs the standard wants."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True)
class Case:
    """A model, one set of inputs by name, and the outputs in the order of the graph's."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def node_cases() -> list[Case]:
    """Return the cases of single operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    return [_node(test) for test in found]


def pick_distinct(cases: Iterable[Case]) -> list[Case]:
    """Return the last case of each set of operators with the names of their attributes."""
    picked = {}
    for case in cases:
        nodes = case.model.graph.node
        attributes = {(node.op_type, each.name) for node in nodes for each in node.attribute}
        picked[frozenset(node.op_type for node in nodes), frozenset(attributes)] = case
    return list(picked.values())


def _node(test: TestCase) -> Case:
    assert test.model is not None and test.data_sets, test.name
    given, wanted = (tuple(map(_array, values)) for values in test.data_sets[0])
    inputs = {v.name: a for v, a in zip(test.model.graph.input, given, strict=True)}
    return Case(test.name, test.model, inputs, wanted, test.rtol, test.atol)


def _array(value: Any) -> Any:
    """Types that NumPy lacks come as messages, and some tensors without an axis as numbers."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


QUICK = ("inception_v1", "shufflenet", "squeezenet")
"""The light cases that take a second: weights of others are up to hundreds of megabytes."""


def light_cases(names: tuple[str, ...] = ("",)) -> list[Case]:
    """Return old image classifiers, nine unless named; ConstantOfShape makes their weights up."""
    paths = sorted((_DATA / "light").glob("*.onnx"))
    return [_light(path) for path in paths if path.stem.endswith(names)]


def _light(path: Path) -> Case:
    model = onnx.load(path)
    held = {tensor.name for tensor in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in held]
    inputs = {value.name: Runner.generate_dummy_data(value) for value in given}
    expected = onnx.load_tensor(str(path.with_name(f"{path.stem}_output_0.pb")))
    return Case(path.stem, model, inputs, [numpy_helper.to_array(expected)], 2e-3, 1e-7)


def exported_cases() -> Iterator[Case]:
    """Yield small models that PyTorch wrote years ago, of IR 3 and opset 6, and their like."""
    for folder in ("pytorch-converted", "pytorch-operator", "simple"):
        for home in sorted((_DATA / folder).iterdir()):
            if (home / "model.onnx").is_file():
                model = onnx.load(home / "model.onnx")
                data = home / "test_data_set_0"
                inputs = _values(data, "input", model.graph.input)
                outputs = _values(data, "output", model.graph.output)
                if inputs is not None and outputs is not None:
                    wanted = tuple(outputs.values())
                    yield Case(f"{folder}/{home.name}", model, inputs, wanted, 1e-3, 1e-7)


def _values(
    folder: Path, kind: str, infos: Sequence[onnx.ValueInfoProto]
) -> dict[str, Any] | None:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    if any(not info.type.HasField("tensor_type") for info in infos[:count]):
        return None
    tensors = [onnx.load_tensor(str(folder / f"{kind}_{i}.pb")) for i in range(count)]
    pairs = zip(infos, tensors, strict=False)
    return {info.name: numpy_helper.to_array(tensor) for info, tensor in pairs}


def frozen(case: Case) -> Case | None:
    """Return the case with its inputs turned into constants, if all are tensors that can be."""
    tensors = []
    for value in case.model.graph.input:
        array = case.inputs.get(value.name)
        if not isinstance(array, np.ndarray) or not value.type.HasField("tensor_type"):
            return None
        tensors.append(numpy_helper.from_array(array, value.name))
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.initializer.extend(tensors)
    del model.graph.input[:]
    model.ir_version = max(4, model.ir_version)
    return Case(f"{case.name} frozen", model, {}, case.outputs, case.rtol, case.atol)


def on_runtime(case: Case, path: Path) -> list[Any]:
    """Run a file on onnxruntime's CPU provider, at the level it takes by itself."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return list(session.run(None, {name: case.inputs[name] for name in names}))


def on_reference(case: Case, path: Path) -> list[Any]:
    """Run a file on onnx's own evaluator."""
    evaluator = ReferenceEvaluator(str(path))
    names = [name for name in evaluator.input_names if name in case.inputs]
    return list(evaluator.run(None, {name: case.inputs[name] for name in names}))


RUNNERS = {"onnxruntime": on_runtime, "reference": on_reference}


def difference(case: Case, outputs: Sequence[Any]) -> str | None:
    """Return how outputs differ from the expected ones, or None when they do not."""
    compare = functools.partial(Runner.assert_similar_outputs, rtol=case.rtol, atol=case.atol)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(list(case.outputs), list(outputs))
    except Exception as error:  # the comparison raises what NumPy happens to on odd types
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def runs_on(case: Case, path: Path) -> str | None:
    """Return the first runner that gives the expected outputs for a file; None when none does."""
    for name, run in RUNNERS.items():
        try:
            if difference(case, run(case, path)) is None:
                return name
        except Exception:  # not implemented there
            continue
    return None
