"""Static int8: quantize / dequantize pairs with ranges from calibration data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings, Refused
from ortune.core.facts import Facts
from ortune.core.observer import Observer, Probe, Ranges
from ortune.core.plugins import catalog
from ortune.core.plugins.bounds import SHARE, Bounds
from ortune.core.roles import Role
from ortune.core.step import Quantizer, Step, Transform
from ortune.graph.ir import edit
from ortune.graph.ir.qdq import MICROSOFT
from ortune.quantizers.common import int8_rescues
from ortune.quantizers.common.layers import Layer
from ortune.quantizers.common.node_filter import chosen
from ortune.quantizers.common.qdq import qoperators, runtime_rules
from ortune.quantizers.common.qdq import scope as scopes
from ortune.quantizers.common.qdq.insert import Pairs, grids
from ortune.quantizers.common.qdq.placement import Placement, place_all
from ortune.quantizers.common.qdq.prepare import prepare, widen
from ortune.quantizers.common.qdq.smooth import factors, smoothable
from ortune.quantizers.common.weights import embeddings as tables
from ortune.quantizers.common.weights.integer_weights import Packer

_OBSERVER = catalog.load(Observer, "min-max")()
_CHANNELS = catalog.load(Observer, "channels")()

MANY = 20
"""Convolutions of a network deep enough to leave the first few in float."""


@dataclass(frozen=True)
class Int8Static(Quantizer):
    """Eight-bit activations and weights, written as Q/DQ pairs that runtimes fuse.

    Where pairs go follows from a table of rules for the target; the fields override it. Layers in
    bodies of If, Loop and Scan are quantized too, where the calibration data reaches them. What
    stays in float is noted with the reason.

    Attributes:
        target: Runtime whose rules hold. TensorRT and CUDA take nothing but int8 with zero point
            0, beside a float bias: there `activations`, `symmetric` and `weights` do not count.
        observer: How activation ranges are read off the calibration data.
        per_channel: One weight step an output channel instead of one a tensor.
        activations: Unsigned is the fast pair with signed weights on x86; ARM wants s8.
        weights: Signed is the fast partner of unsigned activations.
        symmetric: Activation zero point in the middle; GPUs want it.
        reduce_range: Weights in 7 bits, for x86 without VNNI, where 8-bit sums saturate.
        ops: Layers to quantize: Conv, ConvTranspose, MatMul, Gemm. Empty: what suits the target.
        through: Operators between two layers that stay in integers. Empty: the target's.
        embeddings: Store tables that rows are looked up in as int8 too; rows become float behind
            the Gather. A table that a layer multiplies as well is stored once in any case.
        head: Quantize too the last matrix product of a convolutional network: it takes little
            time, and rounding it costs as much accuracy as all the rest.
        upsample: Write ConvTranspose as Conv and DepthToSpace where the target has no integer
            kernel for it, and on the CPU the DepthToSpace with channels last.
        keep_first: Convolutions to leave in float, counted from the input.
        include: Names of the only nodes to quantize; * and ? match, re: begins a regular
            expression. Empty: all.
        exclude: Names of nodes to leave in float, written likewise.
        wide: Names of nodes whose activations take 16 bits, written likewise: onnxruntime's CPU
            provider computes in float between such pairs.
        min_side: MatMul and Gemm with fewer rows or columns stay in float.
        smooth: Share of an activation's outlying channels that moves into the weights; 0.75 suits
            transformers. Ranges of matrix products are then the whole extent.
        split: Outlying channels, at most, that a float product beside the integer one takes over
            where a layer narrows (the last product of a transformer's MLP).
    """

    needs_opset: ClassVar[int] = 13
    role: ClassVar[Role] = Role.STATIC

    target: runtime_rules.Target = "cpu"
    observer: Observer = _OBSERVER
    per_channel: bool = True
    activations: Literal["u8", "s8"] = "u8"
    weights: Literal["s8", "u8"] = "s8"
    symmetric: bool = False
    reduce_range: bool = False
    ops: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    embeddings: bool = False
    head: bool = False
    upsample: bool = True
    keep_first: int = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    min_side: int = 16
    smooth: Annotated[float, SHARE] = 0.0
    split: Annotated[int, Bounds(high=64)] = 0

    def __post_init__(self) -> None:
        runtime_rules.refuse(self.target, wide=bool(self.wide), tables=self.embeddings)
        if not self.observer.covers:
            raise BadSettings(
                f"observer={self.observer} does not say where values lie",
                fix="use min-max, percentile, entropy or mse",
            )

    @property
    def portable(self) -> bool:
        """U8 by S8 saturates on x86 without VNNI unless weights have 7 bits; OpenVINO's always."""
        exact = self.target == "cpu" and (self.activations, self.weights) != ("u8", "s8")
        return self.reduce_range or exact

    def made_portable(self) -> Self:
        return replace(self, reduce_range=True)

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield plain rounding, and what may help the kind of network.

        For transformers outliers are smoothed and split off; deep convolutional networks are also
        tried with clipped ranges and with the first convolutions in float. One more has in
        integers what plain rounding leaves in float, tables and the head: half the file.
        """
        if "int8" not in backend.arithmetic or facts.quantized:
            return
        base = cls._for(backend, capabilities)
        products = int8_rescues.products(facts)
        convolves = facts.has("Conv", "ConvTranspose")
        attends = products > 1 and facts.has("Softmax", "LayerNormalization")
        smoothed = replace(base, smooth=0.75, split=4)
        if attends:
            yield smoothed
        if convolves or products > 1:
            yield base
        deep = facts.ops.get("Conv", 0) >= MANY
        if deep:
            yield replace(base, observer=catalog.load(Observer, "percentile")())
            yield replace(base, keep_first=3)
        if convolves or products > 1:
            yield from (base if deep or not attends else smoothed).extensions(facts)

    @classmethod
    def _for(cls, backend: Backend, capabilities: Capabilities) -> Self:
        target = next((name for name in runtime_rules.TARGETS if name == backend.name()), None)
        if target is None:
            target = "openvino" if "int8-weights" in backend.arithmetic else "cpu"
        if target != "cpu":
            return cls(target=target)
        match runtime_rules.for_cpu(frozenset(capabilities.instruction_sets)):
            case runtime_rules.Gives.REDUCED:
                return cls(reduce_range=True)
            case runtime_rules.Gives.SIGNED:
                return cls(activations="s8")
            case _:
                return cls()

    def prepares(self, facts: Facts, backend: Backend) -> Iterable[Transform]:
        """Yield the rewrite of ConvTranspose for a target without an integer kernel for it.

        This step does it by itself too, on what it may quantize; as steps of their own they are
        verified and counted alone.
        """
        if self.target != "cpu" or not self.upsample or self.exclude:
            return
        if "ConvTranspose" not in self._ops() and facts.has("ConvTranspose"):
            yield catalog.load(Transform, "split-conv-transpose")()
        if facts.has("ConvTranspose", "DepthToSpace"):
            yield catalog.load(Transform, "depth-to-space-nhwc")()

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield the accuracy kit before this step, then less of it, then other observers.

        Convolutions beside products may be what costs accuracy: then only weights are integers.
        """
        smoothed = bool(self.smooth or self.split)
        last = replace(self, smooth=0.0, split=0)
        yield from int8_rescues.prepared(last, facts, smoothed=smoothed)
        if facts.has("Conv", "ConvTranspose") and int8_rescues.products(facts) > 1:
            for rest in int8_rescues.stored_weights() if self.target == "cpu" else ():
                yield (replace(self, ops=("MatMul", "Gemm")), rest)
        for observer in int8_rescues.other_observers(self.observer):
            yield (replace(self, observer=observer),)

    def extensions(self, facts: Facts) -> Iterable[Self]:
        """Yield it with the tables and the head, which it leaves in float."""
        head = facts.has("Conv", "ConvTranspose") and int8_rescues.has_head(facts, self.min_side)
        tables = bool(facts.embeds) and runtime_rules.takes_tables(self.target)
        more = replace(self, head=self.head or head, embeddings=self.embeddings or tables)
        if more != self:
            yield more

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return the tensors that get a pair.

        First local functions are inlined, scales and biases behind convolutions folded into them,
        and transposed convolutions rewritten, all exactly.
        """
        self._prepare(model)
        placements, _ = self._place(model, None)
        found: dict[str, Observer] = {}
        for placement in placements:
            smooth = smoothable(placement) if self.smooth or self.split else {}
            for value in placement.watched():
                wanted = _CHANNELS if value in smooth else self.observer
                if found.get(str(value.name)) != _CHANNELS:
                    found[str(value.name)] = wanted
        return [Probe(name, observer) for name, observer in found.items()]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        self._prepare(model)
        # Join groups of convolutions; not before the accuracy kit has seen their weights.
        if self.target == "cpu" and "Conv" in self._ops():
            widen(model, self.exclude)
        placements, scope = self._place(model, ranges)
        layers = [layer for placement in placements for layer in placement.layers]
        scopes.note(model, scope.why, len(layers))
        if not layers:
            reasons = scopes.summary(scope.why, 0)
            raise Refused(
                f"no {', '.join(self._ops())} with a constant float32 weight to quantize"
                f"{reasons and f' ({reasons})'}",
                fix="apply requantize, which takes the model back to float first"
                if scopes.QUANTIZED in scope.why.values()
                else "see `ortune inspect` for the model's operators and dtypes",
            )
        signed = runtime_rules.symmetric_s8(self.target)
        editor = edit.Editor(model.graph)
        found = tables.tables(model) if runtime_rules.takes_tables(self.target) else {}
        packer = Packer(
            editor,
            layers,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            kind="s8" if signed else self.weights,
            target=self.target,
        )
        wide = chosen(model, self.wide, "wide")
        for placement in reversed(placements):
            smooth = factors(placement, ranges, alpha=self.smooth, most=self.split)
            steps = grids(
                placement,
                ranges,
                smooth,
                wide,
                kind="s8" if signed else self.activations,
                symmetric=signed or self.symmetric,
                absorbs=self.target == "cpu",
            )
            pairs = Pairs(editor, steps, smooth, model.opset_imports.get("", 0))
            pairs.put(placement)
            if pairs.foreign:
                model.opset_imports.setdefault(MICROSOFT, 1)
            for layer in placement.layers:
                packer.pack(layer, steps[layer.x].scale, smooth.get(layer.x))
        if self.target == "cpu":
            qoperators.part_products(editor, layers)
        tables.store_tables(
            model, editor, found, packer.constants(), scope.left, alone=self.embeddings
        )
        return len(layers)

    def chosen(self, model: ir.Model) -> Sequence[Layer]:
        """Return the layers that become integer, for steps that prepare their weights.

        The exact rewrites that the weights go through first are done in place.
        """
        self._prepare(model)
        placements, _ = self._place(model, None)
        return [layer for placement in placements for layer in placement.layers]

    def _ops(self) -> tuple[str, ...]:
        return self.ops or runtime_rules.of_layers(self.target)

    def _prepare(self, model: ir.Model) -> None:
        to_split = self.upsample and "ConvTranspose" not in self._ops()
        prepare(model, self.target, self.exclude, split=to_split, spread=self.upsample)

    def _place(
        self, model: ir.Model, ranges: Ranges | None
    ) -> tuple[list[Placement], scopes.Scope]:
        found = scopes.scope(
            model,
            self._ops(),
            target=self.target,
            include=self.include,
            exclude=self.exclude,
            keep_first=self.keep_first,
            head=self.head,
            min_side=self.min_side,
        )
        through = self.through or runtime_rules.between(self.target)
        return place_all(found, through, ranges), found
