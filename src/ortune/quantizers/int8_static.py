"""Static int8: quantize / dequantize pairs with ranges from calibration data."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NoReturn, Self

import numpy as np
import onnx_ir as ir

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings, Refused
from ortune.core.facts import Facts
from ortune.core.observer import Observer, Probe, Range, Ranges
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.bounds import SHARE, Bounds
from ortune.core.roles import Role, find_plugin
from ortune.core.step import Quantizer, Step, Transform
from ortune.graph.ir import edit, match, prune, qdq
from ortune.quantizers.common import nodes, rounding
from ortune.quantizers.common.grid import Grid, Kind, make_activation_grid
from ortune.quantizers.common.layers import (
    Layer,
    flatten_model,
    note_unbounded_weights,
    refuse_without_layers,
)
from ortune.quantizers.common.qdq import dequantize, qoperators, runtime_rules
from ortune.quantizers.common.qdq import placement as places
from ortune.quantizers.common.qdq.smooth import Smoothing, compute_smoothings, find_smoothable
from ortune.quantizers.common.weights.integer_weights import Packer, find_tables, store_tables
from ortune.transforms.common.layers.affine import (
    UNCHANGED,
    Absorber,
    Affine,
    FoldableLayer,
    as_foldable_layer,
    of_batch_norm,
    read_affine,
)
from ortune.transforms.common.layers.convolutions import (
    split_conv_transposes,
    spread_channels_last,
    subsample_once,
    widen_groups,
)

_OBSERVER = catalog.load_plugin(Observer, "min-max")()
_CHANNELS = catalog.load_plugin(Observer, "channels")()

CONVOLUTIONS: rounding.Kit = (
    (Role.ROUNDS,),
    (Role.EQUALIZES, Role.ROUNDS),
    (Role.CORRECTS,),
    (Role.EQUALIZES,),
    (Role.CLIPS,),
)
"""The accuracy kit in front of convolutions, best bet first: see docs/quantizing.md."""

SMOOTHED: rounding.Kit = ((Role.SMOOTHS, Role.ROUNDS), (Role.SMOOTHS, Role.CORRECTS))
"""In front of matrix products whose inputs are smoothed already."""

TRANSFORMERS: rounding.Kit = ((Role.SMOOTHS,), *SMOOTHED, (Role.ROUNDS,))
"""In front of matrix products."""

OBSERVERS = ("percentile", "mse", "entropy")
"""Those that clip."""

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
        attention: Quantize too the products of two activations, as in attention: on OpenVINO with
            VNNI, and without AMX, that saves up to a fifth of a transformer's time; with sequences
            of some dozen tokens it takes longer.
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
    attention: bool = False
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
        runtime_rules.reject_unsupported(
            self.target,
            wide=bool(self.wide),
            tables=self.embeddings,
            attention=self.attention,
        )
        if not self.observer.covers:
            raise BadSettings(
                f"observer={self.observer} does not say where values lie",
                fix="use one that does, such as min-max, percentile, entropy or mse",
            )

    @property
    def portable(self) -> bool:
        """U8 by S8 saturates on x86 without VNNI unless weights have 7 bits; OpenVINO's always.

        Products of two activations saturate there in any case.
        """
        exact = self.target == "cpu" and (self.activations, self.weights) != ("u8", "s8")
        signed = self.target == "openvino" and self.symmetric
        return (self.reduce_range or exact) and not signed and not self.attention

    def made_portable(self) -> Self:
        centred = self.symmetric and self.target != "openvino"
        return replace(self, reduce_range=True, symmetric=centred, attention=False)

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
        products = rounding.count_products(facts)
        convolves = facts.has("Conv", "ConvTranspose")
        attends = products > 1 and facts.has("Softmax", "LayerNormalization")
        base = replace(base, attention=base.attention and attends)
        smoothed = replace(base, smooth=0.75, split=4)
        if attends:
            yield smoothed
        if convolves or products > 1:
            yield base
        if base.attention:  # of short sequences it takes longer
            yield replace(smoothed, attention=False)
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
                attention = runtime_rules.gains_by_attention(target, flags)
                return cls(target=target, attention=attention)

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
        products = rounding.count_products(facts)
        convolutions = facts.ops.get("Conv", 0) + facts.ops.get("ConvTranspose", 0)
        kit = CONVOLUTIONS if convolutions >= products else TRANSFORMERS
        if self.smooth or self.split:
            kit = SMOOTHED
        # The kit is in front of a step that leaves weights as they are before it rounds them.
        yield from rounding.prepend_kit(replace(self, smooth=0.0, split=0), kit)
        if convolutions and products > 1 and self.target == "cpu":
            storage = find_plugin(Quantizer, Role.WEIGHTS)
            if storage is not None:  # as integers, computed with as fast as float
                folded = codec.build_dataclass(storage, {"fold": True})
                yield (replace(self, ops=("MatMul", "Gemm")), folded)
        for name in OBSERVERS:
            if name in catalog.list_plugins(Observer) and name != self.observer.name():
                yield (replace(self, observer=catalog.load_plugin(Observer, name)()),)

    def extensions(self, facts: Facts) -> Iterable[Self]:
        """Yield it with the tables and the head, which it leaves in float."""
        # A last product of enough columns may become integer: an output is as wide.
        lasts = [output.shape[-1] for output in facts.outputs if output.shape]
        wide = [last for last in lasts if not isinstance(last, int) or last >= self.min_side]
        fits = rounding.count_products(facts) > 0 and bool(wide or not lasts)
        head = facts.has("Conv", "ConvTranspose") and fits
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
            factors = _list_factor_sources(placement)
            for value in dict.fromkeys(placement.tensors.values()):
                choice = self._fit_observer(value, is_factor=value in factors)
                choice = _CHANNELS if value in smooth else choice
                if observers.get(str(value.name)) != _CHANNELS:
                    observers[str(value.name)] = choice
        return [Probe(name, observer) for name, observer in observers.items()]

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        self._prepare_model(model)
        # Join groups of convolutions; not before the accuracy kit has seen their weights.
        if self.target == "cpu" and "Conv" in self._list_ops():
            count = widen_groups(model, _GROUP, nodes.match_nodes(model, self.exclude, "exclude"))
            if count:
                groups = wording.format_count(count, "grouped convolution")
                edit.add_note(model, f"{groups} made to have {_GROUP} channels a group")
        placements, scope = self._place_pairs(model, ranges)
        layers = [layer for placement in placements for layer in placement.layers]
        products = sum(len(placement.products) for placement in placements)
        places.note_float_layers(model, scope.reasons, len(layers) + products)
        if self.embeddings:
            note_unbounded_weights(model, ("Gather",))
        if not layers:
            self._refuse_model(model, scope)
        signed = runtime_rules.needs_symmetric_s8(self.target)
        editor = edit.Editor(model.graph)
        embedding_tables = find_tables(model) if runtime_rules.takes_tables(self.target) else {}
        packer = Packer(
            editor,
            layers,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            kind="s8" if signed else self.weights,
            target=self.target,
        )
        wide = nodes.match_nodes(model, self.wide, "wide")
        for placement in reversed(placements):
            smooth = compute_smoothings(placement, ranges, alpha=self.smooth, most=self.split)
            steps = _make_activation_grids(
                placement,
                ranges,
                smooth,
                wide,
                kind=self._choose_kind(),
                symmetric=signed or self.symmetric,
                absorbs=self.target == "cpu",
            )
            if _insert_pairs(editor, placement, steps, smooth, model.opset_imports.get("", 0)):
                model.opset_imports.setdefault(qdq.MICROSOFT, 1)
            for layer in placement.layers:
                packer.pack_layer(layer, steps[layer.x].scale, smooth.get(layer.x))
        dequantize.write_for_runtime(model, self.target)
        if self.target == "cpu":
            qoperators.separate_products(editor, layers)
            if {"Add", "Mul"} <= set(self._list_following_ops()):
                qoperators.write_hard_swish(model, editor)
        store_tables(
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

    def _refuse_model(self, model: ir.Model, scope: places.Scope) -> NoReturn:
        reasons = places.summarize_reasons(scope.reasons, 0)
        why = (
            f"no {', '.join(self._list_ops())} with a constant float32 weight to quantize"
            f"{reasons and f' ({reasons})'}"
        )
        if places.QUANTIZED in scope.reasons.values():
            dequantize.restore_float(as_float := model.clone())
            fix = "quantize the float model that it was made from"
            if any(placement.layers for placement in self._place_pairs(as_float, None)[0]):
                fix = "apply requantize, which takes the model back to float first"
            raise Refused(why, fix=fix)
        refuse_without_layers(model, why)

    def _list_ops(self) -> tuple[str, ...]:
        return self.ops or runtime_rules.list_layer_ops(self.target)

    def _list_following_ops(self) -> tuple[str, ...]:
        return self.through or runtime_rules.list_following_ops(self.target)

    def _fit_observer(self, value: ir.Value, *, is_factor: bool) -> Observer:
        """Return the observer for the kind of grid that a tensor will have."""
        if is_factor:
            return self.observer.fit_centred_grid(by_sign=True)
        centred = self.symmetric or runtime_rules.needs_symmetric_s8(self.target)
        if not centred or (self.target == "cpu" and places.is_absorbed(value)):
            return self.observer
        return self.observer.fit_centred_grid(by_sign=self._choose_kind() == "by-sign")

    def _choose_kind(self) -> Literal["u8", "s8", "by-sign"]:
        if runtime_rules.needs_symmetric_s8(self.target):
            return "s8"
        by_sign = self.symmetric and self.target == "openvino" and self.activations == "u8"
        return "by-sign" if by_sign else self.activations

    def _prepare_model(self, model: ir.Model) -> None:
        """Inline functions, fold scales into convolutions, rewrite what has no integer kernel."""
        flatten_model(model)
        _fold_affine_nodes(model)
        excluded = nodes.match_nodes(model, self.exclude, "exclude")
        if self.upsample and "ConvTranspose" not in self._list_ops():
            split_conv_transposes(model, excluded)
        if self.target == "cpu":
            _cut_early(model, excluded)
            if self.upsample:
                spread_channels_last(model)
        if self.target == "openvino":
            subsample_once(model, excluded)

    def _place_pairs(
        self, model: ir.Model, ranges: Ranges | None
    ) -> tuple[list[places.Placement], places.Scope]:
        scope = places.select_scope(
            model,
            self._list_ops(),
            target=self.target,
            include=self.include,
            exclude=self.exclude,
            keep_first=self.keep_first,
            head=self.head,
            min_side=self.min_side,
            attention=self.attention,
        )
        float_outputs = runtime_rules.writes_float(self.target)
        through = self._list_following_ops()
        return places.place_all(scope, through, ranges, float_outputs=float_outputs), scope


_MOVES = ("DepthToSpace", *runtime_rules.MOVING)


def _cut_early(model: ir.Model, excluded: Collection[ir.Node]) -> None:
    """Move a Relu or Clip right behind its convolution, before what only moves values.

    An integer convolution absorbs a Relu that stands behind it; behind a MaxPool it is a node of
    its own between two pairs. Both orders give the same values. Nodes that are excluded stay as
    they are, as do those behind them.
    """
    editor = edit.Editor(model.graph)
    for node in edit.walk_nodes(model):
        absorbed = node.outputs and places.is_absorbed(node.outputs[0])
        movers = list(_list_movers(node)) if absorbed else []
        conv = movers[-1].inputs[0].producer() if movers and movers[-1].inputs[0] else None
        if conv is None or conv.op_type != "Conv" or conv.domain or conv.graph is not node.graph:
            continue
        value = conv.outputs[0]
        if edit.has_single_use(value) and not {conv, node, *movers} & set(excluded):
            inputs, name = [value, *node.inputs[1:]], f"{node.name}_early"
            early_node = editor.make_node(
                node.op_type, inputs, node.attributes, name=name, like=value
            )
            edit.insert_after(conv, early_node)
            movers[-1].replace_input_with(0, early_node.outputs[0])
            nodes.replace_value(node.outputs[0], movers[0].outputs[0])


def _list_movers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in front that only move values, and that nothing else reads."""
    value = node.inputs[0]
    while value is not None and edit.has_single_use(value):
        mover = value.producer()
        if mover is None or mover.op_type not in _MOVES or mover.domain or len(mover.outputs) > 1:
            return
        yield mover
        value = mover.inputs[0]


def _read_affine(node: ir.Node, value: ir.Value, at: FoldableLayer, opset: int) -> Affine | None:
    """Say what a node does to a convolution's output, None when that is no affine map."""
    if node.domain:
        return None
    match node.op_type:
        case "Identity":
            return UNCHANGED
        case "BatchNormalization" if node.inputs[0] is value:
            affine = of_batch_norm(node, opset)
            return None if isinstance(affine, str) else affine
        case _:
            return read_affine(node, value, at.channels, opset)


_GROUP = 32
"""Channels in a group from which the CPU provider's integer convolution is fast."""


def _fold_affine_nodes(model: ir.Model) -> None:
    """Fold scales, shifts and BatchNormalization into the convolutions that they alone read."""
    absorber = Absorber(edit.Editor(model.graph))
    opset = model.opset_imports.get("", 0)
    folded = False
    for node in match.nodes_of(model, "Conv", "ConvTranspose"):
        at, weight = as_foldable_layer(node), edit.const_tensor(qdq.find_input(node, 1))
        if at is None or weight is None or weight.dtype != ir.DataType.FLOAT or not weight.size:
            continue
        affine, chain, value = UNCHANGED, [], at.node.outputs[0]
        while (reader := edit.only_reader(value)) is not None and reader.graph is at.node.graph:
            next_affine = _read_affine(reader, value, at, opset)
            if next_affine is None or not next_affine.finite:
                break
            affine = affine.compose_with(next_affine)
            chain.append(reader)
            value = reader.outputs[0]
        if chain and absorber.absorb_output_affine(at, affine, chain) is None:
            folded = True
    if folded:
        prune.drop_dead(model)


WIDE_OPSET = 21
"""From here on the standard pair knows 16 bits; before, onnxruntime's own does.

No kernel of its CPU provider computes with them: between such pairs it computes in float.
"""


_ALONE = ("HardSigmoid",)
"""Beside one of these, which nothing fuses, a second DequantizeLinear is cheaper than the copy."""


def _insert_pairs(
    editor: edit.Editor,
    placement: places.Placement,
    grids: Mapping[ir.Value, Grid],
    smooth: Mapping[ir.Value, Smoothing],
    opset: int,
) -> bool:
    """Put a pair behind every chosen tensor, each grid once; say if one is of com.microsoft."""
    readers = placement.readers
    home, foreign = placement.graph, False
    shared: dict[ir.Value, list[ir.Value]] = {}
    for value, source in placement.tensors.items():
        stem = str(value.name)
        if source not in shared:
            parts = {"scale": grids[value].scale, "zero": grids[value].zero}
            shared[source] = nodes.add_constants(editor, str(source.name), **parts)
        seen, grid = value, shared[source]
        if value in placement.guarded:
            # It keeps the float layer before it in float: between a DequantizeLinear and a
            # QuantizeLinear onnxruntime quantizes the weights of a layer itself, coarsely
            # (weight_bias_quantization.cc).
            seen = nodes.add_unary_sum(editor, value, "float")
        if value in smooth and (factor := smooth[value].factor) is not None:
            seen = nodes.multiply_channels(editor, value, (1 / factor).astype(np.float32), home)
        everywhere, maker = value in placement.replaced, seen.producer()
        uses = [use for use in value.uses() if everywhere or use.node in readers]
        uses = [use for use in uses if use.node is not maker]
        outside = [use for use in uses if use.node not in readers]
        wide = grid[1].dtype in (ir.DataType.UINT16, ir.DataType.INT16)
        domain = qdq.MICROSOFT if wide and opset < WIDE_OPSET else ""
        foreign |= bool(domain)
        q = editor.make_node("QuantizeLinear", [seen, *grid], name=f"{stem}_q", domain=domain)
        q.outputs[0].shape, q.outputs[0].dtype = value.shape, grid[1].dtype or ir.DataType.UINT8
        d = nodes.make_dequantize(editor, stem, [q.outputs[0], *grid], domain=domain)
        rounded = d.outputs[0]
        nodes.put_behind(seen, home, q, d)
        if len(outside) > (2 if any(n.op_type in _ALONE for n, _ in outside) else 1):
            # Float readers share one tensor: what onnxruntime fuses of them (Gelu) reads it twice,
            # and it dequantizes for each reader anew.
            shared_copy = nodes.add_unary_sum(editor, rounded, "shared")
            for node, index in outside:
                node.replace_input_with(index, shared_copy)
            uses = [use for use in uses if use.node in readers]
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if everywhere and value.is_graph_output():
            nodes.replace_output(editor, home, value, rounded)
    return foreign


def _list_factor_sources(placement: places.Placement) -> set[ir.Value]:
    """Return the tensors that carry the ranges of what products of two activations read."""
    read = {value for node in placement.products for value in node.inputs}
    return {source for value, source in placement.tensors.items() if value in read}


def _make_activation_grids(
    placement: places.Placement,
    ranges: Ranges,
    smooth: Mapping[ir.Value, Smoothing],
    wide: Collection[ir.Node],
    *,
    kind: Literal["u8", "s8", "by-sign"],
    symmetric: bool,
    absorbs: bool = False,
) -> dict[ir.Value, Grid]:
    """Return the grid of every tensor of a graph that gets a pair.

    Activations of `wide` nodes take 16 bits, with all tensors on the same grid. Factors of
    products of two activations have zero point 0: there is no kernel for others.

    Args:
        kind: ``by-sign`` is unsigned where nothing is negative, and signed elsewhere.
        absorbs: The grid behind a Relu or Clip begins at 0 in any case: a kernel absorbs no other.
    """

    def make_grid(source: ir.Value, seen: Range) -> Grid:
        by_sign = kind == "by-sign" or source in factors
        signed = seen.low < 0 if by_sign else kind == "s8"
        bits: tuple[Kind, Kind] = ("u16", "s16") if source in sources else ("u8", "s8")
        absorbed = absorbs and places.is_absorbed(source)
        centred = (symmetric or source in factors) and not absorbed and (signed or not by_sign)
        return make_activation_grid(seen, bits[signed], symmetric=centred)

    touched = {value for node in wide for value in (*places.float_inputs(node), *node.outputs)}
    touched |= {places.find_integer_output(node) for node in wide}
    sources = {placement.tensors[value] for value in touched if value in placement.tensors}
    factors = _list_factor_sources(placement)
    return {
        value: make_grid(
            source, smooth[value].seen if value in smooth else ranges[str(source.name)]
        )
        for value, source in placement.tensors.items()
    }
