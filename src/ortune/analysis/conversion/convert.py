"""Convert a model to a precision and an optimization level, as told."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ortune.analysis.benchmark import bench
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.conversion import steps
from ortune.analysis.conversion.requests import Convert
from ortune.analysis.verification.requests import Verify
from ortune.analysis.verification.verify import compare_models
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime.session import UNLOADED
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError, Refused
from ortune.core.event import Note, Sink, collect_notes
from ortune.core.facts import Facts
from ortune.core.hardware.cpus import instruction_sets, list_native_units
from ortune.core.outputs import check_output_file
from ortune.core.plugins import catalog, codec
from ortune.core.request import make_verb
from ortune.core.result import Result
from ortune.core.step import Edit, Quantizer, Recipe, Stage, Step
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Interval
from ortune.data.stream import Stream
from ortune.graph.analysis.facts import bound_weight_bytes, count_weight_bytes, read_facts
from ortune.graph.io import file
from ortune.graph.lint import gpu
from ortune.measurement.job import MAIN, Failure, WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once, optimize_offline, query_capabilities
from ortune.search.recipe.build import build
from ortune.search.recipe.built import BuiltModel
from ortune.search.recipe.space import make_clean_recipe
from ortune.transforms.dequantize_at_load import DequantizeAtLoad


def check_options(request: Convert) -> None:
    """Refuse what cannot be had, before anything is read.

    Raises:
        BadSettings: An option does not go with the others.
    """
    lossy, ranged = steps.CALIBRATED, steps.RANGED
    for is_given, name, precisions in (
        (request.ranges_from is not None, "--ranges-from", ranged),
        (request.augment is not None, "--augment", lossy),
        (request.exclude_from is not None, "--exclude-from", lossy),
        (request.threshold is not None, "--threshold", lossy),
    ):
        if is_given and request.precision not in precisions:
            raise BadSettings(
                f"{name} needs --precision {' or '.join(precisions)}", fix="add --precision int8"
            )
    steps.refuse_precision(request.precision, request.target, static=request.static)
    static_int8 = request.precision == "int8" and request.static
    if request.format is not None and request.precision is not None and not static_int8:
        name = "int8 without data" if request.precision == "int8" else request.precision
        raise BadSettings(
            f"--format {request.format} applies to static int8 only, not to {name}",
            fix="give --data with --precision int8, or leave --format out",
        )
    if request.format == "qoperator" and request.target != "cpu":
        raise BadSettings(
            "--format qoperator is for CPUs: no GPU provider has kernels for integer operators",
            fix="leave --format out: Q/DQ pairs are then written",
        )
    if request.precision != "int8":
        for is_given, name in (
            (not request.per_channel, "--no-per-channel"),
            (request.reduce_range, "--reduce-range"),
            (request.dynamic_conv, "--dynamic-conv"),
        ):
            if is_given:
                raise BadSettings(f"{name} needs --precision int8", fix="add --precision int8")
    elif request.dynamic_conv and request.static:
        raise BadSettings(
            "--dynamic-conv is for int8 without data", fix="leave --dynamic-conv or --data out"
        )


def list_advice(request: Convert) -> Sequence[Note]:
    """Return what a person should know about the file that they asked for."""
    notes = []
    if request.level == "all" and not request.portable:
        notes.append(
            Note(
                "--opt-level all binds the file to this hardware: it may be slow or fail "
                "elsewhere; --opt-level extended makes one that runs on any CPU",
                warning=True,
            )
        )
    if request.level == "all" and request.portable:
        notes.append(
            Note(
                "--opt-level all is written like extended here, with portable rewrites only; "
                "onnxruntime adds the hardware-specific ones when it loads the file"
            )
        )
    vnni = "int8-vnni" in list_native_units(instruction_sets())
    if (
        request.precision == "int8"
        and request.target == "cpu"
        and not (vnni or request.reduce_range)
    ):
        notes.append(
            Note(
                "this CPU has no VNNI: sums of 8-bit products may saturate; "
                "--reduce-range avoids it",
                warning=True,
            )
        )
    return notes


SAMPLES = 64
"""Compared after a conversion; `ortune verify` takes all."""


def check_result(
    request: Convert, path: Path, data: steps.ConversionData, folder: Path
) -> tuple[Mapping[str, int], list[dict[str, object]]]:
    """Check types, loading and answers of a converted file; return its weights and scores.

    Raises:
        OrtuneError: It is not what was ordered, or is for the CPU and does not run there.
    """
    result_facts = read_facts(file.load(path))
    check_types(request, result_facts)
    check_target(request, path)
    backend = steps.make_checking_backend(request.precision, request.custom_ops)
    where = "the CPU" if backend.name() == "cpu" else backend.name()
    scores: list[dict[str, object]] = []
    try:
        if lacking := query_capabilities(backend).missing:
            raise BackendMissing(lacking, fix=f"install {backend.name()}")
        backend = backend.leave_out(data.agreement.disable, data.agreement.level)
        scores = _score_result(request, path, data, folder, backend)
    except OrtuneError as error:
        if request.target == "cpu" and backend.name() == "cpu":
            raise
        request.sink(Note(f"not checked on {where}: {error.what}", warning=True))
    judge_scores(request, scores, result_facts)
    return result_facts.precisions, scores


LEAST_DB: Mapping[str, float] = {"fp8": 5.0, "int8": 5.0, "int4": 0.0}
"""Signal over noise below which no budget of that precision would accept a result."""

_LEAST_DB = 20.0
"""The same of all others: of 16 bits the worst model that was measured keeps 37 dB."""


def judge_scores(
    request: Convert, scores: Sequence[Mapping[str, Any]], result_facts: Facts
) -> None:
    """Refuse a result that no sensible budget would accept; with --force it is only told.

    Of outputs that are integers a few samples tell nothing but that all of them are wrong.

    Raises:
        Refused: It answers with NaN, or with more noise than the precision explains.
    """
    values = {str(score["metric"]): float(score["value"]) for score in scores}
    least = LEAST_DB.get(request.precision or "", _LEAST_DB)
    if not all("float" in str(spec.dtype) for spec in result_facts.outputs):
        least = 0.0
    if math.isnan(values.get("snr", least)):
        problem = (
            "the result answers with NaN or infinity where the source does not: the values "
            "overflow this precision"
        )
    elif values.get("snr", least) < least:
        problem = (
            f"the result differs too much from the source: SNR {values['snr']:.1f} dB, where "
            f"{request.precision or 'the same precision'} should keep {least:g} dB"
        )
    else:
        return
    if not request.force:
        other = (
            "another --precision" if request.data is not None else "--data or another --precision"
        )
        raise Refused(problem, fix=f"try {other}; --force writes it anyway")
    request.sink(Note(problem, warning=True))


def check_types(request: Convert, result_facts: Facts) -> None:
    """Check that the file holds the precision that was ordered.

    Raises:
        BadModel: It does not.
    """
    folded = request.folds and result_facts.has("Cast") and result_facts.has("Mul")
    precision = request.precision
    if precision is not None and not steps.holds_precision(precision, result_facts, folded=folded):
        sizes = result_facts.precisions.items()
        weights = ", ".join(f"{size} bytes of {name}" for name, size in sizes)
        raise BadModel(
            f"the result is not {request.precision}: it holds {weights or 'no weights'}",
            fix="see `ortune inspect`; another --precision may suit this model",
        )


def check_target(request: Convert, path: Path) -> None:
    """Check that TensorRT would take the pairs of the file, where it is meant for it.

    Raises:
        BadModel: It would refuse one.
    """
    if request.precision != "int8" or request.target == "cpu" or request.integers != "tensorrt":
        return
    for odd in gpu.lint_tensorrt(file.load(path)):
        raise BadModel(
            f"TensorRT refuses the result: {odd.what} ({', '.join(odd.places)})", fix=odd.action
        )


def _check_loading(request: Convert, path: Path, folder: Path, backend: Backend) -> None:
    """Load the result where it will run; where its source does not load either, say so."""
    failure = _find_load_failure(path, folder, backend)
    if failure is None:
        return
    fix = failure.fix
    if fix in ("", UNLOADED):
        fix = "try another --precision or --opt-level; nothing was written"
        if _find_load_failure(Path(request.model), folder, backend) is not None:
            fix = "the source does not load either: run `ortune inspect` on it"
    where = "the CPU" if backend.name() == "cpu" else backend.name()
    raise BadModel(f"the result does not load on {where}: {failure.reason}", fix=fix)


def _find_load_failure(path: Path, folder: Path, backend: Backend) -> Failure | None:
    try:
        ask_once(WorkerJob({MAIN: path.absolute()}, backend, {}, (folder / "load").resolve()))
    except WorkerFailed as error:
        return error.failure
    return None


def _score_result(
    request: Convert, path: Path, data: steps.ConversionData, folder: Path, backend: Backend
) -> list[dict[str, object]]:
    """Load the result and score it on a few samples, by outputs that no run changes."""
    model, random = Path(request.model), data.agreement.random
    outputs = {spec.name for spec in read_facts(file.load(model)).outputs}
    if data.feeds is None or not outputs - set(random):
        _check_loading(request, path, folder, backend)
        return []
    stream = Stream(data.feeds.stream)
    try:
        verification = compare_models(
            Verify(
                model,
                path,
                data=lambda: islice(stream, SAMPLES),
                on=str(backend),
                ignore_output=random,
            ),
            data.agreement,
        )
    except OrtuneError:
        _check_loading(request, path, folder, backend)
        raise
    return [
        {"metric": score.metric, "value": score.value, "samples": score.samples}
        for score in verification.scores
    ]


_BENCH_SECONDS = 3.0


def convert_model(request: Convert, data: steps.ConversionData, folder: Path) -> BuiltModel:
    """Convert into a folder.

    Raises:
        OrtuneError: The model has nothing to convert, or the runtime does not take the result.
    """
    model, sink = Path(request.model), request.sink
    model_facts = read_facts(file.load(model))
    check_source(request, model_facts)
    path = model
    edits: tuple[Edit, ...] = ()
    lossy = make_quantizers(request)
    refused: list[Refused] = []
    groups: list[tuple[Step, ...]] = [(step,) for step in lossy]
    if lossy or request.portable:  # the exact steps of a level: none, folding, or all that apply
        exact = () if request.level == "disabled" else make_clean_recipe(model_facts).steps
        if request.level == "basic":
            exact = tuple(s for s in exact if getattr(s, "stage", Stage.FINISH) <= Stage.FOLD)
        groups.insert(0, exact)
    for index, group in enumerate(groups):
        target = folder / f"{index}" / model.name
        target.parent.mkdir()
        try:
            recipe = Recipe(request.precision or "as-is", group)
            built = build(
                path,
                recipe,
                target,
                feeds=data.feeds,
                ranges=data.saved_ranges,
                custom_ops=request.custom_ops,
                sink=sink,
            )
        except Refused as error:
            refused.append(error)
            continue
        for done in built.edits if set(group) & set(lossy) else ():
            if done.note:
                sink(Note(f"{done.step}: {done.note}"))
        path, edits = built.path, (*edits, *built.edits)
    if refused and len(refused) == len(lossy):
        raise refused[0]
    for refusal in refused:
        sink(Note(refusal.what))
    if request.target == "cpu" and request.level != "disabled" and not request.portable:
        rewriting = Cpu(level=request.level, custom_ops=request.custom_ops)
        rewriting = rewriting.leave_out(data.agreement.disable, data.agreement.level)
        path = rewrite_offline(path, rewriting, folder / model.name, sink)
    if lossy and request.folds:
        folded = build(path, Recipe("at load", (DequantizeAtLoad(),)), folder / "folded.onnx")
        path, edits = folded.path, edits + folded.edits
    return BuiltModel(path, edits)


def rewrite_offline(path: Path, backend: Cpu, out: Path, sink: Sink) -> Path:
    """Write a model as the runtime rewrites it, its constants folded as far as the file bears it.

    Raises:
        BadModel: The runtime does not load the model.
    """
    rewritten = optimize_offline(path, backend, out)
    before, after = (count_weight_bytes(file.load(part)) for part in (path, rewritten))
    if after <= bound_weight_bytes(before):
        return rewritten
    sizes = f"{wording.format_megabytes(before)} to {wording.format_megabytes(after)} MB"
    sink(Note(f"constants are not folded: the weights would grow from {sizes}"))
    unfolded = replace(backend, disable=(*backend.disable, "ConstantFolding"))
    return optimize_offline(path, unfolded, out)


def make_quantizers(request: Convert) -> tuple[Step, ...]:
    """Return the lossy steps that a request asks for."""
    if request.precision is None:
        return steps.add_format_step((), request.format)
    if request.precision not in steps.CALIBRATED:
        return ()
    if request.precision != "int8":
        return steps.leave_out(
            [_make_other_quantizer(request)], request.exclude_from, request.threshold
        )
    grid = {"per_channel": request.per_channel, "reduce_range": request.reduce_range}
    if request.static:
        rules = {} if request.target == "cpu" else {"target": request.integers}
        static = _build_quantizer("int8-static", head=True, **grid, **rules)
        quantizers = steps.add_format_step((static,), request.format)
    else:
        dynamic = _build_quantizer("int8-dynamic", conv=request.dynamic_conv, **grid)
        quantizers = (dynamic, _build_quantizer("int8-weights"))
    return steps.leave_out(quantizers, request.exclude_from, request.threshold)


def _make_other_quantizer(request: Convert) -> Step:
    match request.precision:
        case "int4":
            sampled = request.static and request.ranges_from is None
            method = {"method": "gptq"} if sampled else {}
            # TensorRT knows no operator of onnxruntime's own: blocks behind DequantizeLinear.
            form = {"form": "qdq"} if request.target == "tensorrt" else {}
            return _build_quantizer("int4-weights", **method, **form)
        case "fp16" | "bf16" as name if request.target == "tensorrt" and request.data is not None:
            # Strongly typed: what is float32 there is float32 in the file.
            return _build_quantizer(name, islands="auto")
        case name:
            return _build_quantizer(str(name))


def _build_quantizer(name: str, **fields: object) -> Step:
    return codec.build_dataclass(catalog.load_plugin(Quantizer, name), fields)


def check_source(request: Convert, model_facts: Facts) -> None:
    """Refuse a model that cannot be turned into the precision.

    Raises:
        BadModel: Its weights or arithmetic are of lower precision already.
    """
    halves = {"float16", "bfloat16"} & set(model_facts.precisions)
    if request.precision == "fp32" and (halves or model_facts.quantized):
        arithmetic = ", ".join(sorted(halves)) or "integer arithmetic"
        raise BadModel(
            f"{Path(request.model).name} holds {arithmetic}, which cannot be turned back into "
            "fp32",
            fix="convert the original float32 model, or leave --precision out",
        )
    if request.precision in ("int8", "int4", "fp8") and model_facts.quantized:
        raise BadModel(
            f"{Path(request.model).name} is quantized already",
            fix="convert the original float32 model, or leave --precision out",
        )


@dataclass(frozen=True, repr=False)
class ConvertedModel(Result):
    """A converted model.

    Attributes:
        weights: Type -> bytes of weights in the new file.
        compared: Scores against the source: metric, value, samples.
        latency_ratio: Of the new file's latency to the source's; timed for ``dynamic_conv`` alone.
    """

    model: Path
    output: Path
    precision: str | None
    target: str
    opt_level: str
    edits: tuple[Edit, ...]
    bytes_before: int
    bytes_after: int
    weights: Mapping[str, int]
    compared: Sequence[Mapping[str, object]]
    latency_ratio: Interval | None
    notes: tuple[str, ...]

    def summary(self) -> Mapping[str, object]:
        return {
            "output": self.output,
            "bytes before": self.bytes_before,
            "bytes after": self.bytes_after,
            "weight bytes": self.weights,
            **{str(score["metric"]): score["value"] for score in self.compared},
        }


def run(request: Convert) -> ConvertedModel:
    """Convert, load and compare in a temporary folder, and write the result only then."""
    check_options(request)
    folding = steps.make_fold_steps(
        request.fold_preprocess, request.picture_size, request.fold_postprocess
    )
    model = Path(request.model)
    out = check_output_file(request.out, request.force, model)
    notes: list[str] = []
    request = replace(request, sink=collect_notes(notes, request.sink))
    for note in list_advice(request):
        request.sink(note)
    with open_temporary_folder() as folder:
        data = request.read_inputs(model).read_data(folder, request.sink)
        converted = convert_model(request, data, folder)
        weights, scores = check_result(request, converted.path, data, folder)
        if folding:
            over = folder / "folded" / model.name
            recipe = Recipe("fold", tuple(folding))
            built = build(converted.path, recipe, over, feeds=data.feeds, sink=request.sink)
            converted = BuiltModel(built.path, (*converted.edits, *built.edits))
        file.save(file.load(converted.path), out)
    steps.warn_of_saturation(out, model, request.sink)
    steps.warn_of_growth(out, model, request.sink)
    if request.folds and read_facts(file.load(model)).has("Conv"):
        request.sink(
            Note(
                "convolutions keep int8 weights in the file and run at float32's speed: "
                "Cast and Mul convert them to float32 once, at load (DequantizeLinear would do "
                "so in every run)"
            )
        )
    sizes = file.count_file_bytes(model), file.count_file_bytes(out)
    settings = request.precision, request.target, request.level
    ratio = _measure_latency_ratio(request) if request.dynamic_conv and not folding else None
    return ConvertedModel(
        model, out, *settings, converted.edits, *sizes, weights, scores, ratio, tuple(notes)
    )


convert = make_verb(Convert, run)


def _measure_latency_ratio(request: Convert) -> Interval | None:
    bench_request = Bench(
        [request.model, request.out],
        data=request.data,
        shapes=request.shapes,
        ranges=request.ranges,
        custom_ops=request.custom_ops,
        time=_BENCH_SECONDS,
    )
    return bench.run(bench_request).ratios[1]
