"""Matrix products and tables with weights of 4 bits: a little over an eighth of the file."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.core.roles import Role, find_plugin
from ortune.core.step import Quantizer, Step
from ortune.quantizers.common.grid import Bits
from ortune.quantizers.common.weights.blockwise import PACKED, BlockWeights


@dataclass(frozen=True)
class Int4Weights(BlockWeights):
    """Weights of 4 bits, one step for every block of a row; activations stay float.

    Made for what is bound by reading weights: large products of few rows, as in decoding token
    by token. Products of many rows gain little or lose. A table that is looked up and multiplied
    too (tied) is stored once.
    """

    rank: ClassVar[int] = 2
    bits: ClassVar[Bits] = 4

    form: Literal["nbits", "qdq"] = "nbits"

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield blocks that are exact and blocks that are small, for networks of products."""
        weights = {"int8-dynamic", "int8-weights"} & backend.arithmetic
        products = facts.has("MatMul", "Gemm") and not facts.has("Conv", "LSTM", "GRU", "RNN")
        packed = facts.quantized or facts.has(*PACKED) or not facts.has_float_layers
        if weights and products and not packed:
            yield cls()
            yield cls(block=128)

    @classmethod
    def mixes(
        cls, facts: Facts, backend: Backend, capabilities: Capabilities
    ) -> Iterable[tuple[Quantizer, ...]]:
        """Yield 4 bits with a head and tables of 8, for networks that name tokens.

        Without data first, then with. On a decoding GPT 4 bits everywhere reached 21 dB, these 30
        and 32, at a fifth of the size.
        """
        if not facts.names_tokens or not tuple(cls.offers(facts, backend, capabilities)):
            return
        fast = "int8-dynamic" in backend.arithmetic
        head_quantizer = find_plugin(Quantizer, Role.DYNAMIC if fast else Role.WEIGHTS)
        fields = {"embeddings": True} if fast else {"form": "nbits", "block": 32}
        if head_quantizer is not None:
            for method in ("hqq", "gptq"):
                blocks = cls(ops=("MatMul", "Gemm"), method=method, head=False)
                yield (blocks, codec.build_dataclass(head_quantizer, fields))

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield the same with float tables, with data, and with float products.

        Tables are looked up: in float they cost bytes and no time, and on a decoding GPT 4 bits
        of them were 2 of the 4 dB that 4 bits everywhere lost too much.
        """
        if "Gather" in self.ops and facts.table_bytes:
            yield (replace(self, ops=tuple(op for op in self.ops if op != "Gather")),)
        if self.method != "gptq":
            yield (replace(self, method="gptq"),)
        if self.accuracy_level == 4 and self.form == "nbits":
            yield (replace(self, method="gptq", accuracy_level=0),)
