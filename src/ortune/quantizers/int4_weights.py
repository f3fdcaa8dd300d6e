"""Matrix products and tables with weights of 4 bits: an eighth of the file and a little more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.step import Quantizer, Step
from ortune.quantization.block_grid import Spec
from ortune.quantization.weights.blockwise import Blockwise


@dataclass(frozen=True)
class Int4Weights(Quantizer):
    """Weights of 4 bits, one step for every block of a row; activations stay float.

    Made for what is bound by reading weights: large products of few rows, as in decoding token
    by token. Products of many rows gain little or lose. A table that is looked up and multiplied
    too (tied) is stored once.

    Attributes:
        block: Weights that share a step: 16, 32, 64, 128 or 256. Smaller is more exact and
            larger: 5 bits a weight at 32, 4.25 at 128.
        symmetric: Zero points in the middle, not stored; otherwise half a byte more a block.
        method: How weights are rounded. ``rtn``: each to the nearest. ``hqq``: on grids that are
            refined first, without data. ``gptq``: on these grids, later weights making up for the
            errors of earlier ones; needs calibration data.
        accuracy_level: What onnxruntime may round activations to inside a product: 0 and 1
            float32, 4 int8, which is faster. Of the form ``nbits``; for the other the session
            key ``session.qdq_matmulnbits_accuracy_level`` says it, 4 unless set.
        form: ``nbits``: MatMulNBits and GatherBlockQuantized, onnxruntime's operators; OpenVINO
            reads them too. ``qdq``: block-wise DequantizeLinear of opset 21, standard, which
            onnxruntime turns into MatMulNBits when it loads the file.
        ops: Operators whose weights are stored: MatMul, Gemm, Gather.
        min_size: Weights with fewer elements stay in float.
        include: Names of nodes to look at; * and ? match, re: begins a regular expression. Empty
            looks at all.
        exclude: Names of nodes to leave in float.
        damping: For ``gptq``: share of the mean second moment that is added to all inputs'.
        act_order: For ``gptq``: the weights of large inputs are rounded first.
    """

    rank: ClassVar[int] = 2
    needs_opset: ClassVar[int] = 13

    block: int = 32
    symmetric: bool = True
    method: Literal["rtn", "hqq", "gptq"] = "hqq"
    accuracy_level: int = 4
    form: Literal["nbits", "qdq"] = "nbits"
    ops: tuple[str, ...] = ("MatMul", "Gemm", "Gather")
    min_size: int = 1024
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    damping: float = 0.01
    act_order: bool = True

    def __post_init__(self) -> None:
        self._work()

    @classmethod
    def offers(cls, facts: Facts, backend: Backend) -> Iterable[Self]:
        """Yield blocks that are exact and blocks that are small, for networks of products."""
        weights = {"int8-dynamic", "int8-weights"} & backend.arithmetic
        if not weights or facts.quantized or not products_alone(facts):
            return
        yield cls()
        yield cls(block=128)

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield the same with data, float products and smaller blocks."""
        if self.method != "gptq":
            yield (replace(self, method="gptq"),)
        if self.accuracy_level == 4 and self.form == "nbits":
            yield (replace(self, method="gptq", accuracy_level=0),)

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the inputs of the products, for ``gptq``."""
        return self._work().probes(model)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Pack the weights and return how many were.

        Raises:
            Refused: There is none; the text counts why.
            BadSettings: A pattern matches no node.
            BadData: The calibration samples do not serve a layer.
        """
        return self._work().apply(model, ranges)

    def _work(self) -> Blockwise:
        return Blockwise(
            Spec(4, self.block, self.symmetric),
            self.method,
            self.form,
            self.accuracy_level,
            self.ops,
            self.min_size,
            self.include,
            self.exclude,
            self.damping,
            self.act_order,
        )


def products_alone(facts: Facts) -> bool:
    """Say whether a network's weights are those of matrix products."""
    held = facts.has("MatMul", "Gemm")
    return held and not facts.has("Conv", "LSTM", "GRU", "RNN", "com.microsoft::MatMulNBits")
