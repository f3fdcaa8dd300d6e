"""Which steps a conversion means, and what they calibrate on."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core import hub, preprocess, regular_file, wording
from ortune.core.augmentation import Augmentation
from ortune.core.errors import BadData, BadSettings, OrtuneError, summarize_error
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.fields import Source
from ortune.core.plugins import catalog, codec, stored
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.self_agreement import SelfAgreement
from ortune.core.step import Quantizer, Step, Transform
from ortune.data import augment, synthetic
from ortune.data.feeds import Feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.analysis.precision import list_saturable_layers
from ortune.graph.io import file
from ortune.measurement.rolled import StatefulModel
from ortune.measurement.self_agreement import compare_with_itself
from ortune.quantizers.calibration import ranges_file
from ortune.quantizers.calibration.ranges_file import SavedRanges
from ortune.quantizers.common.nodes import escape_pattern
from ortune.search.recipe import compare

_MADE_UP = 4
"""Samples to compare numbers on when none are given."""


@dataclass(frozen=True)
class ConversionData:
    """Samples and ranges."""

    # Altered copies included; made-up samples only compare; None when none of those run.
    feeds: Feeds | None
    saved_ranges: SavedRanges | None
    # Whether the model agrees with itself on the samples.
    agreement: SelfAgreement = field(default_factory=SelfAgreement)


@dataclass(frozen=True, kw_only=True)
class ConversionInputs:
    """What a conversion calibrates and compares on, as it was asked for."""

    model: Path
    data: Source  # samples; None makes some up to compare on
    shapes: Mapping[str, tuple[int, ...]]  # input -> shape of what is made up
    # Input -> lowest and highest value of what is made up.
    ranges: Mapping[str, tuple[float, float]]
    sequence: str  # what makes a sequence of samples; empty without order
    state: tuple[str, ...]  # outputs that are fed to inputs at the next step
    custom_ops: tuple[str, ...]
    ranges_from: Path | None
    # How samples are altered for copies to calibrate on too.
    augmentations: tuple[Augmentation, ...]

    def read_data(self, folder: Path, sink: Sink) -> ConversionData:
        """Read the ranges and the samples, or make samples up.

        Raises:
            OrtuneError: They cannot be used with the model, or made-up samples are to be altered.
        """
        saved_ranges = None
        if self.ranges_from is not None:
            saved_ranges, notes = ranges_file.load_ranges(self.ranges_from, self.model)
            for text in notes:
                sink(Note(text, warning=True))
        feeds, agreement = self._load_samples(folder, sink)
        if self.augmentations:
            if feeds is None or feeds.synthetic:
                raise BadData(
                    "--augment alters samples, and none are given", fix="give --data too"
                )
            feeds = augment.augment_samples(feeds, range(feeds.count), self.augmentations, folder)
            for text in feeds.notes:
                sink(Note(text))
        return ConversionData(feeds, saved_ranges, agreement)

    def _load_samples(self, folder: Path, sink: Sink) -> tuple[Feeds | None, SelfAgreement]:
        """Return the samples and whether the model agrees with itself on them.

        No samples where made-up ones do not run and nothing was said about them.
        """
        model, shapes, ranges = self.model, self.shapes, self.ranges
        facts = read_facts(file.load(model))
        try:
            if self.sequence and self.data is not None:
                feeds = StatefulModel(
                    model=model,
                    digest=file.compute_digest(model),
                    facts=facts,
                    sequence=self.sequence,
                    state=self.state,
                    backend=Cpu(custom_ops=self.custom_ops),
                    shapes=shapes,
                    work=folder,
                ).load(self.data, folder, sink=sink)
            else:
                feeds = synthetic.load_or_generate_feeds(
                    self.data,
                    facts.inputs,
                    folder,
                    shapes=shapes,
                    ranges=ranges,
                    count=_MADE_UP,
                    settings=hub.find_folder(model),
                )
            agreement = _try_samples(model, facts, feeds, self.custom_ops)
        except OrtuneError as error:
            if self.data is not None or shapes or ranges:
                raise
            sink(Note(f"outputs are not compared: {summarize_error(error.what)}", warning=True))
            return None, SelfAgreement()
        notes = [Note(text) for text in feeds.notes]
        if text := agreement.describe(model.name, Cpu(custom_ops=self.custom_ops)):
            notes.append(Note(text, warning=True))
        for note in notes:
            sink(note)
        return feeds, agreement


def _try_samples(
    model: Path, facts: Facts, feeds: Feeds, custom_ops: tuple[str, ...]
) -> SelfAgreement:
    """Compare the model with itself on its samples, and refuse made-up ones that it does not take.

    Where memory is short it runs without optimizers alone, and only to try made-up samples.
    """
    backend = Cpu(custom_ops=custom_ops)
    if compare.describe_memory_lack(model) is not None:
        if not feeds.synthetic:
            return SelfAgreement()
        backend = replace(backend, level="disabled")
    agreement = compare_with_itself(model, facts, feeds.stream, backend)
    if feeds.synthetic and agreement.failure and not (agreement.disable or agreement.level):
        raise BadData(
            f"{model.name} does not run on made-up samples: {agreement.failure}",
            fix="give --data, or --shape and --range of its inputs",
        )
    return agreement


CALIBRATED = ("fp16", "bf16", "fp8", "int8", "int4")
"""Precisions that do something with samples."""

RANGED = ("fp8", "int8")
"""Precisions whose steps take the ranges of a file."""

_INTEGER = re.compile(r"Quant|QLinear|Integer|QAttention|QGemm|DequantizeLinear")
"""Operators that make or take integers, standard and onnxruntime's."""


def refuse_precision(precision: str | None, target: str, *, static: bool) -> None:
    """Refuse a precision that cannot be had like this.

    Raises:
        BadSettings: fp8 or int8 for what does not multiply it, or without samples.
    """
    if precision == "fp8" and target == "cpu":
        raise BadSettings(
            "fp8 is for GPUs: no CPU multiplies float8",
            fix="add --target gpu, or use --precision int8",
        )
    if precision in ("fp8", "int8") and target == "cuda":
        raise BadSettings(
            f"onnxruntime's CUDA provider has no kernels for {precision}: Q/DQ pairs around "
            "float kernels only cost time",
            fix="use --target tensorrt, or --precision fp16",
        )
    if precision in ("fp8", "bf16") and target == "directml":
        raise BadSettings(
            f"DirectML has no {precision} arithmetic",
            fix="use --precision fp16, or int8 with --data",
        )
    if precision == "fp8" and not static:
        raise BadSettings(
            "fp8 needs samples: the ranges of activations are measured",
            fix="give them with --data, or ranges with --ranges-from",
        )
    if precision == "int8" and target != "cpu" and not static:
        raise BadSettings(
            "dynamic int8 does not run on a GPU: DynamicQuantizeLinear, MatMulInteger and "
            "ConvInteger have no GPU kernel",
            fix="use --precision fp16, or give --data for static symmetric int8 (QDQ)",
        )


def holds_precision(precision: str, file_facts: Facts, *, folded: bool) -> bool:
    """Say whether a file's weights are of a precision, perhaps `folded` behind Cast and Mul."""
    weight_bytes = file_facts.precisions
    match precision:
        case "fp16":
            return weight_bytes.get("float16", 0) > weight_bytes.get("float32", 0)
        case "bf16":
            return weight_bytes.get("bfloat16", 0) > weight_bytes.get("float32", 0)
        case "fp8":
            return weight_bytes.get("float8_e4m3fn", 0) > 0
        case "int4":
            packed = file_facts.has(
                "com.microsoft::MatMulNBits", "com.microsoft::GatherBlockQuantized"
            )
            return packed or bool({"int4", "uint4"} & set(weight_bytes))
        case "int8":
            integers = weight_bytes.get("int8", 0) + weight_bytes.get("uint8", 0)
            return integers > 0 and (folded or any(_INTEGER.search(op) for op in file_facts.ops))
        case _:
            return not {"float16", "bfloat16"} & set(weight_bytes)


def make_checking_backend(
    precision: str | None, custom_ops: tuple[str, ...] = ()
) -> Cpu | Openvino:
    """Return where a file of this precision is loaded and compared.

    onnxruntime's CPU provider has no bfloat16 products, and its integer rewrites, from level
    extended on, refuse float8.
    """
    match precision:
        case "bf16":
            return Openvino(precision="f32")
        case "fp8":
            return Cpu(level="basic", custom_ops=custom_ops)
        case _:
            return Cpu(custom_ops=custom_ops)


def add_format_step(steps: Sequence[Step], form: str | None) -> tuple[Step, ...]:
    """Return the steps, with the one that rewrites to the form at the end."""
    last = (catalog.load_plugin(Quantizer, "qoperator")(),) if form == "qoperator" else ()
    return (*steps, *last)


def warn_of_saturation(path: Path, before: Path, sink: Sink) -> None:
    """Say where the integers of a new model saturate that its source did not have."""
    old = {layer.node for layer in list_saturable_layers(file.load(before)) if layer.risky}
    layers = list_saturable_layers(file.load(path))
    risky = [layer for layer in layers if layer.risky]
    if risky and {layer.node for layer in risky} - old:
        sink(
            Note(
                f"{len(risky)} of "
                f"{wording.format_count(len(layers), 'integer layer')} can saturate on x86 CPUs "
                "without VNNI: `ortune verify --simulate avx2` shows what that does to the "
                "answers, reduce_range avoids it"
            )
        )


_GROWTH = 0.1
"""Share of a file by which another is larger, from which on it is said."""

_LITTLE = 1 << 16
"""Bytes more that are not worth a word."""


def warn_of_growth(path: Path, before: Path, sink: Sink) -> None:
    """Say that a new file is larger than its source."""
    old, new = file.count_file_bytes(before), file.count_file_bytes(path)
    if new > old + max(_LITTLE, _GROWTH * old):
        sizes = f"{wording.format_megabytes(old)} to {wording.format_megabytes(new)} MB"
        sink(Note(f"the file grows from {sizes}", warning=True))


THRESHOLD = 0.01

_COSTS = ("accuracy_cost", "cost")
_FIX = 'give a sensitivity file: [{"nodes": ["name", ...], "accuracy_cost": 0.02}, ...]'


def leave_out(
    steps: Sequence[Step], file: str | Path | None, threshold: float | None
) -> tuple[Step, ...]:
    """Return the steps with the sensitive nodes among what they exclude.

    Raises:
        BadSettings: A threshold without a file, or no step that can exclude nodes.
        BadData: The file cannot be read.
    """
    if file is None:
        if threshold is not None:
            raise BadSettings(
                f"--threshold {threshold:g} needs --exclude-from",
                fix="add --exclude-from FILE, or leave --threshold out",
            )
        return tuple(steps)
    names = read_sensitive_layers(Path(file), THRESHOLD if threshold is None else threshold)
    if not any(map(_can_exclude, steps)):
        raise BadSettings(
            "--exclude-from: no step here can leave nodes out",
            fix="leave it out, or add a step with a field `exclude`, such as int8-static",
        )
    patterns = tuple(map(escape_pattern, names))
    return tuple(_exclude_nodes(step, patterns) if _can_exclude(step) else step for step in steps)


def read_sensitive_layers(file: Path, threshold: float) -> tuple[str, ...]:
    """Return the layers of all regions that cost more accuracy than the threshold.

    Of a region without `layers` those are all its nodes. One with an `error` and no cost was not
    measured, which says nothing against it.

    Raises:
        BadData: The file is not there, no JSON, or not of this form.
    """
    try:
        read = stored.parse_json(regular_file.read_text(file))
    except OSError as error:
        raise BadData(f"{file}: {error.strerror}", fix=_FIX) from None
    except ValueError as error:
        raise BadData(f"{file} is not JSON: {error}", fix=_FIX) from None
    regions = read.get("regions") if isinstance(read, dict) else read
    if not isinstance(regions, list):
        raise BadData(f"{file} holds no list of regions", fix=_FIX)
    layers: dict[str, None] = {}
    for index, region in enumerate(regions):
        if (
            isinstance(region, dict)
            and bool(region.get("error"))
            and not list(_iterate_costs(region.get("accuracy_cost")))
        ):
            continue
        cost, nodes = _read_region(region, f"{file}: region {index}")
        if cost > threshold:
            layers |= dict.fromkeys(nodes)
    return tuple(layers)


def _exclude_nodes(step: Step, patterns: Sequence[str]) -> Step:
    fields = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    return codec.build_dataclass(type(step), fields | {"exclude": (*fields["exclude"], *patterns)})


def _read_region(region: object, where: str) -> tuple[float, list[str]]:
    if not isinstance(region, dict):
        raise BadData(f"{where} is not a region", fix=_FIX)
    nodes = region.get("layers") or region.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(name, str) for name in nodes):
        raise BadData(f"{where} has no list of node names `nodes`", fix=_FIX)
    raw_cost = next((region[key] for key in _COSTS if key in region), None)
    costs = list(_iterate_costs(raw_cost))
    if not costs or any(cost != cost for cost in costs):
        raise BadData(f"{where} has no accuracy cost, but {raw_cost!r}", fix=_FIX)
    return max(costs), nodes


def _iterate_costs(cost: object) -> Iterator[float]:
    """Yield a value, or of an interval its ends."""
    if isinstance(cost, dict):
        yield from _iterate_costs(cost["value"] if "value" in cost else list(cost.values()))
    elif isinstance(cost, list):
        for element in cost:
            yield from _iterate_costs(element)
    elif isinstance(cost, int | float) and not isinstance(cost, bool):
        yield float(cost)


def _can_exclude(step: Step) -> bool:
    return any(field.name == "exclude" for field in dataclasses.fields(step))


_CALL = re.compile(r"\s*([a-z0-9-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def make_fold_steps(
    preprocess_file: str | Path | None, size: tuple[int, int] | None, outputs: Sequence[str]
) -> list[Transform]:
    """Return the steps that change what a model takes and gives, in order.

    Raises:
        OrtuneError: The file, the size or a text cannot be read.
    """
    if preprocess_file is None and size is not None:
        raise BadSettings(
            "--picture-size needs --fold-preprocess", fix="add --fold-preprocess FILE.toml"
        )
    first: list[Transform] = []
    if preprocess_file is not None:
        first.append(_make_preprocess_step(Path(preprocess_file), size))
    return [*first, *map(_make_postprocess_step, outputs)]


def _make_preprocess_step(path: Path, size: tuple[int, int] | None) -> Transform:
    if not path.is_file():
        raise BadData(f"no file {path}", fix="give a preprocess.toml, as for --data")
    settings = preprocess.read_preprocess_keys(path)
    field_names = set(codec.encode(preprocess.Preprocess()))
    if unknown := sorted(settings.keys() - field_names):
        raise BadData(
            f"{path} has an unknown key '{unknown[0]}'",
            fix=f"its keys are: {', '.join(sorted(field_names))}",
        )
    fields = {key: value for key, value in settings.items() if key != "dtype"}
    if size is not None:
        fields["size"] = list(size)
    try:
        return codec.build_dataclass(catalog.load_plugin(Transform, "fold-preprocess"), fields)
    except BadSettings as error:
        raise BadData(f"{path}: {error.what}", fix=error.fix) from None


def _make_postprocess_step(text: str) -> Transform:
    match = _CALL.fullmatch(text)
    if match is None:
        raise BadSettings(
            f"--fold-postprocess {text}", fix='write argmax, uint8, softmax or "top-k(k=5)"'
        )
    fields = f", {match[2]}" if match[2] and match[2].strip() else ""
    return parse_plugin(Transform, f"fold-postprocess(give={match[1]}{fields})")
