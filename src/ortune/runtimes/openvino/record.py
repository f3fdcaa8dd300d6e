"""OpenVINO's own profile: performance counters of the compiled graph's layers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.session import Executed, Operand, Recorded, Recording, Tensors
from ortune.runtimes.openvino import native

_SKIPPED = 2
"""The first runs compile kernels for the shapes they see."""
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
_DTYPES |= {"boolean": "bool"}
_WHOLE = "times are means over all profiled runs: the counters are sums"


class _Counting(native.Compiled):
    """A compiled model whose layers are counted; the counters are means over all runs so far."""

    def __init__(self, compiled: Any) -> None:
        super().__init__(compiled)
        self._graph = compiled.get_runtime_model()
        self._walls: list[int] = []
        self._before: dict[str, float] = {}

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        start = time.perf_counter_ns()
        found = super().run(feeds)
        self._walls.append(time.perf_counter_ns() - start)
        if len(self._walls) == _SKIPPED:
            self._before = self._counters()
        return found

    def _counters(self) -> dict[str, float]:
        """Return layer -> microseconds of all runs so far; those that were not run are left out.

        The mean is cut to whole microseconds: half of one is put back.
        """
        return {
            one.node_name: (one.real_time.total_seconds() * 1e6 + 0.5) * len(self._walls)
            for one in self.request.get_profiling_info()
            if one.status == one.Status.EXECUTED
        }

    def recorded(self, runs: int) -> Recorded:
        """Read the counters; all runs but the first two count, whatever `runs` says."""
        after = self._counters()
        counted = max(1, len(self._walls) - _SKIPPED)
        taken = {n: max(0.0, t - self._before.get(n, 0.0)) / counted for n, t in after.items()}
        wall = float(np.mean(self._walls[_SKIPPED:] or self._walls))
        nodes, constants = executed(self._graph, taken, self.provider)
        return Recorded(
            nodes=nodes,
            runs=counted,
            wall_ns=wall,
            run_ns=wall,
            constants=constants,
            placement={self.provider: tuple(node.name for node in nodes if node.calls)},
            notes=(_WHOLE,),
        )


def executed(
    graph: Any, taken: Mapping[str, float], provider: str = native.PROVIDER
) -> tuple[tuple[Executed, ...], tuple[str, ...]]:
    """Read a runtime graph.

    Args:
        taken: Layer -> microseconds of a run.
        provider: What ran them.

    Returns:
        Its layers in order of execution, and the names of its constants.
    """
    nodes: list[tuple[int, Executed]] = []
    constants: list[str] = []
    for op in graph.get_ordered_ops():
        info = {key: _text(op.get_rt_info()[key]) for key in op.get_rt_info()}
        name, kind = op.get_friendly_name(), _layer(op)
        if kind == "Const":
            constants.append(_tensor(op))
        if kind in ("Const", "Input", "Parameter", "Output", "Result"):
            continue
        sources = [port.get_source_output() for port in op.inputs()]
        spent = 1e3 * taken.get(name, 0.0)
        one = Executed(
            name,
            kind,
            provider=provider,
            reads=tuple(_tensor(port.get_node(), port.get_index()) for port in sources),
            writes=tuple(_tensor(op, index) for index in range(len(op.outputs()))),
            known=tuple(part for part in info.get("originalLayersNames", "").split(",") if part),
            calls=int(name in taken),
            span_ns=spent,
            kernel_ns=spent,
            inputs=_operands(sources),
            outputs=_operands(op.outputs()),
        )
        nodes.append((int(info.get("execOrder", "0") or 0), one))
    nodes.sort(key=lambda item: (not item[1].calls, item[0]))
    return tuple(node for _, node in nodes), tuple(constants)


@contextmanager
def session(path: Path, options: Mapping[str, str], device: str = "CPU") -> Iterator[Recording]:
    """Compile a model with counters on."""
    yield _Counting(native.compiled(path, {**options, "PERF_COUNT": "YES"}, device))


def _tensor(op: Any, index: int = 0) -> str:
    """Name an output apart from the values of the model: layers have the names of nodes."""
    name: str = op.get_friendly_name()
    return name if _layer(op) in ("Input", "Parameter") else f"layer {name}:{index}"


def _layer(op: Any) -> str:
    return _text(op.get_rt_info()["layerType"])


def _text(value: Any) -> str:
    return str(value.astype(str) if hasattr(value, "astype") else value)


def _operands(ports: Iterable[Any]) -> tuple[Operand, ...]:
    """Describe tensors; none of them when a shape is only known in a run."""
    known = list(ports)
    if any(port.get_partial_shape().is_dynamic for port in known):
        return ()
    return tuple(_operand(port) for port in known)


def _operand(port: Any) -> Operand:
    shape = tuple(int(size) for size in port.get_shape())
    kind = port.get_element_type()
    name = kind.get_type_name()
    dtype = _DTYPES.get(name, re.sub(r"^(u?)i?(?=\d+$)", r"\1int", name))
    return Operand(
        dtype, shape, math.prod(shape) * kind.bitwidth // 8, _layer(port.get_node()) == "Const"
    )
