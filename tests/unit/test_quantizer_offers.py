"""What each kind of network is offered on each kind of backend."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ortune.core import catalog
from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.step import Quantizer

CPU = frozenset({"int8", "int8-dynamic"})
OPENVINO = frozenset({"int8", "int8-weights"})
HALF = frozenset({"fp16"})


@dataclass(frozen=True)
class Made(Backend):
    can: frozenset[str] = frozenset()

    @property
    def arithmetic(self) -> frozenset[str]:
        return self.can

    def open(self, path, *, verbose=False):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def offers(can: frozenset[str], ops: dict[str, int]) -> list[str]:
    facts = Facts(ops, sum(ops.values()), 1, 1, {}, 17, 8, (), ())
    classes = [catalog.load(Quantizer, name) for name in catalog.names(Quantizer)]
    return [str(step) for cls in classes for step in cls.offers(facts, Made(can=can))]


CNN = {"Conv": 49, "Add": 9, "Gemm": 1}
TRANSFORMER = {"MatMul": 48, "Softmax": 6, "LayerNormalization": 12}
RECURRENT = {"LSTM": 2, "GRU": 1, "MatMul": 1}


@pytest.mark.parametrize(
    ("can", "ops", "expected"),
    [
        (
            CPU,
            CNN,
            [
                "int8-static",
                "int8-static(observer=percentile)",
                "int8-static(keep_first=3)",
            ],
        ),
        (CPU, {"Conv": 2, "Gemm": 1}, ["int8-static"]),
        (
            CPU,
            TRANSFORMER,
            [
                "int4-weights",
                "int4-weights(block=128)",
                "int8-dynamic",
                "int8-static(smooth=0.75, split=4)",
                "int8-static",
                "int8-weights(form=nbits)",
            ],
        ),
        (CPU, RECURRENT, ["int8-dynamic", "int8-dynamic(ops=[LSTM])"]),
        (
            OPENVINO,
            CNN | {"ConvTranspose": 2},
            [
                "int8-static(target=openvino)",
                "int8-static(target=openvino, observer=percentile)",
                "int8-static(target=openvino, keep_first=3)",
                "int8-weights",
            ],
        ),
        (HALF, CNN, ["fp16"]),
        (CPU, {"Relu": 3}, []),
        (frozenset(), TRANSFORMER, []),
        (CPU | OPENVINO | HALF, CNN | {"QuantizeLinear": 5}, ["drop-pairs"]),
        (CPU, CNN | {"ConvInteger": 5}, ["float-convs"]),
    ],
)
def test_offers(can: frozenset[str], ops: dict[str, int], expected: list[str]) -> None:
    assert offers(can, ops) == expected
