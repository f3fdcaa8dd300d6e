"""What a model is made of, known without running it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NEWEST_IR = 13
"""The newest IR version that onnxruntime 1.31 reads (it refuses 14: `kMaxSupportedIRVersion`)."""

NEWEST_OPSET = 26
"""The newest opset of the default domain that onnxruntime 1.31 promises to read."""


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output."""

    name: str  # as in the file
    dtype: str  # NumPy's name, such as ``float32``; ``bfloat16`` and the like by ml_dtypes' names
    # An int is fixed, a str is a named dynamic dimension, None an unnamed one; None for the whole
    # shape when even the rank is unknown.
    shape: tuple[int | str | None, ...] | None
    # Of an input: rows of the smallest table that its integers index, as token ids index an
    # embedding; the name of a dynamic dimension where all such tables have one, as edges index
    # nodes. None when it is not known to index any.
    rows: int | str | None = field(default=None, compare=False)
    # Of an input: its integers say how large a tensor is to be, as the pads of a Pad do.
    sizes: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        sides = ("?" if side is None else str(side) for side in self.shape or ())
        return f"{self.name} {self.dtype}[{'...' if self.shape is None else ', '.join(sides)}]"


@dataclass(frozen=True)
class Facts:
    """Counts over the main graph and all its subgraphs."""

    ops: Mapping[str, int]  # operator -> number of nodes; other domains as ``com.microsoft::Gelu``
    nodes: int  # nodes in the main graph and all subgraphs
    parameters: int  # elements of all weights (initializers and Constant nodes)
    weight_bytes: int  # bytes of all weights
    precisions: Mapping[str, int]  # dtype -> weight bytes
    opset: int  # version of the default domain
    ir_version: int  # the file's IR version
    # Inputs that a caller must give (initializers listed as inputs are left out).
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]  # in file order
    dynamic: tuple[str, ...] = ()  # names of dynamic dimensions of the inputs
    subgraphs: int = 0  # bodies of If, Loop and Scan
    functions: int = 0  # model-local functions
    # Floating-point operations of one run at batch 1 (2 per multiply-add), None when unknown.
    flops: int | None = None
    # Share of the float32 and float16 weights that are denormal, None when they were not read: the
    # other facts do not need them.
    denormals: float | None = None
    # Rung of the shape ladder that answered: file, symbolic, onnx, runtime or none.
    shapes_from: str = "none"
    # Bytes of the weights that are nothing but tables, such as embeddings: a run looks up a few
    # rows of them.
    table_bytes: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)

    def has(self, *ops: str) -> bool:
        """Say whether any of these operators occurs."""
        return any(self.ops.get(op) for op in ops)

    @property
    def embeds(self) -> bool:
        """Rows of a table are looked up by an input, as tokens are."""
        return any(isinstance(spec.rows, int) for spec in self.inputs)

    @property
    def names_tokens(self) -> bool:
        """An output has a value for every row of a table that an input indexes: logits."""
        rows = {spec.rows for spec in self.inputs if isinstance(spec.rows, int)}
        return any(spec.shape and spec.shape[-1] in rows for spec in self.outputs)

    @property
    def quantized(self) -> bool:
        """The model arrived with integer arithmetic in it."""
        return self.has(*_INTEGER, *(f"com.microsoft::{op}" for op in _FOREIGN))

    @property
    def has_float_layers(self) -> bool:
        """A quantizer of weights has something to do: some layer's weights are no integers yet.

        Trees, classical classifiers and text operators keep their numbers in attributes. A
        DequantizeLinear without its counterpart stands in front of a stored weight.
        """
        layers = sum(self.ops.get(op, 0) for op in _LAYERS) + self.embeds
        stored = 0 if self.quantized else self.ops.get("DequantizeLinear", 0)
        if not self.precisions:
            return layers > stored
        floats = sum(self.precisions.get(dtype, 0) for dtype in _FLOATS)
        integers = sum(self.precisions.get(dtype, 0) for dtype in _STORED)
        return layers > 0 and (not stored or layers > stored or floats > integers)


_LAYERS = (
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN"),
    *("com.microsoft::Attention", "com.microsoft::EmbedLayerNormalization"),
    *("com.microsoft::FusedConv", "com.microsoft::FusedGemm", "com.microsoft::FusedMatMul"),
)
"""Operators with weights that quantizers know."""
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_STORED = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "float8e4m3fn", "float8e5m2")
_INTEGER = (
    *("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
    *("MatMulInteger", "ConvInteger"),
)
_FOREIGN = (
    *("QuantizeLinear", "QLinearConv", "QLinearAdd", "QGemm", "QAttention"),
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"),
)
"""Operators of onnxruntime's own with integer arithmetic."""
