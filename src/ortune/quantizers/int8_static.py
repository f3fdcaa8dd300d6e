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
from ortune.quantizers.common.layers import Layer, note_unbounded_weights, refuse_without_layers
from ortune.quantizers.common.node_filter import match_nodes
from ortune.quantizers.common.qdq import qoperators, runtime_rules
from ortune.quantizers.common.qdq import scope as scopes
from ortune.quantizers.common.qdq.dequantize import bound_joined
from ortune.quantizers.common.qdq.lengths import write_lengths
from ortune.quantizers.common.qdq.placement import Placement, is_absorbed, place_all
from ortune.quantizers.common.qdq.prepare import (
    PairInserter,
    make_activation_grids,
    prepare_for_int8,
    widen_convolutions,
)
from ortune.quantizers.common.qdq.smooth import compute_smoothings, find_smoothable
from ortune.quantizers.common.weights import embeddings as tables
from ortune.quantizers.common.weights.integer_weights import Packer

_OBSERVER = catalog.load_plugin(Observer, "min-max")()
_CHANNELS = catalog.load_plugin(Observer, "channels")()

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
        symmetric: Activation zero point in the middle; GPUs want it. For OpenVINO zero point 0:
            unsigned where nothing is negative, signed elsewhere. That is fast with AMX; with VNNI
            alone OpenVINO computes some signed convolutions in float, and wrongly.
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
        runtime_rules.reject_unsupported(self.target, wide=bool(self.wide), tables=self.embeddings)
        if not self.observer.covers:
            raise BadSettings(
                f"observer={self.observer} does not say where values lie",
                fix="use one that does, such as min-max, percentile, entropy or mse",
            )

    @property
    def portable(self) -> bool:
        """U8 by S8 saturates on x86 without VNNI unless weights have 7 bits; OpenVINO's always."""
        exact = self.target == "cpu" and (self.activations, self.weights) != ("u8", "s8")
        signed = self.target == "openvino" and self.symmetric
        return (self.reduce_range or exact) and not signed

    def made_portable(self) -> Self:
        centred = self.symmetric and self.target != "openvino"
        return replace(self, reduce_range=True, symmetric=centred)

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        """Yield plain rounding, and what may help the kind of network.

        For transformers outliers are smoothed and split off; deep convolutional networks are also
        tried with clipped ranges and with the first convolutions in float. One more has in
        integers what plain rounding leaves in float, tables and the head: half the file.
        """
        if "int8" not in backend.arithmetic or facts.quantized or not facts.has_float_layers:
            return
        base = cls._choose_settings(backend, capabilities)
        products = int8_rescues.count_products(facts)
        convolves = facts.has("Conv", "ConvTranspose")
        attends = products > 1 and facts.has("Softmax", "LayerNormalization")
        smoothed = replace(base, smooth=0.75, split=4)
        if attends:
            yield smoothed
        if convolves or products > 1:
            yield base
        deep = facts.ops.get("Conv", 0) >= MANY
        if deep:
            yield replace(base, observer=catalog.load_plugin(Observer, "percentile")())
            yield replace(base, keep_first=3)
        if convolves and base.target == "openvino":
            yield replace(base, symmetric=not base.symmetric)
        if convolves or products > 1:
            yield from (base if deep or not attends else smoothed).extensions(facts)

    @classmethod
    def _choose_settings(cls, backend: Backend, capabilities: Capabilities) -> Self:
        target = next((name for name in runtime_rules.TARGETS if name == backend.name()), None)
        if target is None:
            target = "openvino" if "int8-weights" in backend.arithmetic else "cpu"
        flags = frozenset(capabilities.instruction_sets)
        match runtime_rules.find_isa_treatment(target, flags):
            case runtime_rules.Treatment.REDUCED:
                return cls(target=target, reduce_range=True)
            case runtime_rules.Treatment.SIGNED:
                return cls(target=target, activations="s8")
            case runtime_rules.Treatment.SYMMETRIC:
                return cls(target=target, symmetric=True)
            case _:
                return cls(target=target)

    def prepares(self, facts: Facts, backend: Backend) -> Iterable[Transform]:
        """Yield the rewrite of ConvTranspose for a target without an integer kernel for it.

        This step does it by itself too, on what it may quantize; as steps of their own they are
        verified and counted alone.
        """
        if self.target != "cpu" or not self.upsample or self.exclude:
            return
        if "ConvTranspose" not in self._list_ops() and facts.has("ConvTranspose"):
            yield catalog.load_plugin(Transform, "split-conv-transpose")()
        if facts.has("ConvTranspose", "DepthToSpace"):
            yield catalog.load_plugin(Transform, "depth-to-space-nhwc")()

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        """Yield the accuracy kit before this step, then less of it, then other observers.

        Convolutions beside products may be what costs accuracy: then only weights are integers.
        """
        smoothed = bool(self.smooth or self.split)
        last = replace(self, smooth=0.0, split=0)
        yield from int8_rescues.prepend_static_kit(last, facts, smoothed=smoothed)
        if facts.has("Conv", "ConvTranspose") and int8_rescues.count_products(facts) > 1:
            for weight_storage in (
                int8_rescues.find_weight_storage() if self.target == "cpu" else ()
            ):
                yield (replace(self, ops=("MatMul", "Gemm")), weight_storage)
        for observer in int8_rescues.list_other_observers(self.observer):
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
        self._prepare_model(model)
        placements, _ = self._place_pairs(model, None)
        observers: dict[str, Observer] = {}
        for placement in placements:
            smooth = find_smoothable(placement) if self.smooth or self.split else {}
            for value in placement.list_range_tensors():
                choice = _CHANNELS if value in smooth else self._fit_observer(value)
                if observers.get(str(value.name)) != _CHANNELS:
                    observers[str(value.name)] = choice
        return [Probe(name, observer) for name, observer in observers.items()]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        self._prepare_model(model)
        # Join groups of convolutions; not before the accuracy kit has seen their weights.
        if self.target == "cpu" and "Conv" in self._list_ops():
            widen_convolutions(model, self.exclude)
        placements, scope = self._place_pairs(model, ranges)
        layers = [layer for placement in placements for layer in placement.layers]
        scopes.note_float_layers(model, scope.reasons, len(layers))
        if self.embeddings:
            note_unbounded_weights(model, ("Gather",))
        if not layers:
            reasons = scopes.summarize_reasons(scope.reasons, 0)
            why = (
                f"no {', '.join(self._list_ops())} with a constant float32 weight to quantize"
                f"{reasons and f' ({reasons})'}"
            )
            if scopes.QUANTIZED in scope.reasons.values():
                takes_float = "apply requantize, which takes the model back to float first"
                raise Refused(why, fix=takes_float)
            refuse_without_layers(model, why)
        signed = runtime_rules.needs_symmetric_s8(self.target)
        editor = edit.Editor(model.graph)
        embedding_tables = (
            tables.find_tables(model) if runtime_rules.takes_tables(self.target) else {}
        )
        packer = Packer(
            editor,
            layers,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            kind="s8" if signed else self.weights,
            target=self.target,
        )
        wide = match_nodes(model, self.wide, "wide")
        for placement in reversed(placements):
            smooth = compute_smoothings(placement, ranges, alpha=self.smooth, most=self.split)
            steps = make_activation_grids(
                placement,
                ranges,
                smooth,
                wide,
                kind=self._choose_kind(),
                symmetric=signed or self.symmetric,
                absorbs=self.target == "cpu",
            )
            pairs = PairInserter(editor, steps, smooth, model.opset_imports.get("", 0))
            pairs.insert_pairs(placement)
            if pairs.foreign:
                model.opset_imports.setdefault(MICROSOFT, 1)
            for layer in placement.layers:
                packer.pack_layer(layer, steps[layer.x].scale, smooth.get(layer.x))
        if runtime_rules.bounds_joined(self.target):
            bound_joined(model)
        if runtime_rules.misreads_lengths(self.target):
            write_lengths(model)
        if self.target == "cpu":
            qoperators.separate_products(editor, layers)
            if {"Add", "Mul"} <= set(self._list_following_ops()):
                qoperators.write_hard_swish(model, editor)
        tables.store_tables(
            model,
            editor,
            embedding_tables,
            packer.list_stored_weights(),
            scope.excluded,
            alone=self.embeddings,
        )
        return len(layers)

    def select_layers(self, model: ir.Model) -> Sequence[Layer]:
        """Return the layers that become integer, for steps that prepare their weights.

        The exact rewrites that the weights go through first are done in place.
        """
        self._prepare_model(model)
        placements, _ = self._place_pairs(model, None)
        return [layer for placement in placements for layer in placement.layers]

    def _list_ops(self) -> tuple[str, ...]:
        return self.ops or runtime_rules.list_layer_ops(self.target)

    def _list_following_ops(self) -> tuple[str, ...]:
        return self.through or runtime_rules.list_following_ops(self.target)

    def _fit_observer(self, value: ir.Value) -> Observer:
        """Return the observer for the kind of grid that a tensor will have."""
        centred = self.symmetric or runtime_rules.needs_symmetric_s8(self.target)
        if not centred or (self.target == "cpu" and is_absorbed(value)):
            return self.observer
        return self.observer.fit_centred_grid(by_sign=self._choose_kind() == "by-sign")

    def _choose_kind(self) -> Literal["u8", "s8", "by-sign"]:
        if runtime_rules.needs_symmetric_s8(self.target):
            return "s8"
        by_sign = self.symmetric and self.target == "openvino" and self.activations == "u8"
        return "by-sign" if by_sign else self.activations

    def _prepare_model(self, model: ir.Model) -> None:
        to_split = self.upsample and "ConvTranspose" not in self._list_ops()
        prepare_for_int8(model, self.target, self.exclude, split=to_split, spread=self.upsample)

    def _place_pairs(
        self, model: ir.Model, ranges: Ranges | None
    ) -> tuple[list[Placement], scopes.Scope]:
        scope = scopes.select_scope(
            model,
            self._list_ops(),
            target=self.target,
            include=self.include,
            exclude=self.exclude,
            keep_first=self.keep_first,
            head=self.head,
            min_side=self.min_side,
        )
        float_outputs = runtime_rules.writes_float(self.target)
        through = self._list_following_ops()
        return place_all(scope, through, ranges, float_outputs=float_outputs), scope
