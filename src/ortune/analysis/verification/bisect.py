"""The first step, then the first node, by which a model leaves its budget.

A model half of which is the reference's and half the other's is judged like any candidate: up to a
tensor that both have, the values come from the other model, and the rest is the reference's. The
border is moved by halves. Fusions stay whole, as borders lie only where both models have a tensor
of one name and meaning.
"""

import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortune.analysis.verification.extract import (
    compute_tensor_snr,
    write_sample_files,
    write_tensor_values,
)
from ortune.backends.cpu import Cpu
from ortune.core.atomic_write import open_draft, report_write_errors
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.result import Result
from ortune.core.step import Recipe, Step
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Score, Verdict
from ortune.graph.io import file, names
from ortune.graph.ir import edit, prune
from ortune.graph.ir.edit import redirect_uses
from ortune.graph.parts.extract import extract, find_upstream
from ortune.graph.shapes.infer import infer_shapes
from ortune.measurement.accuracy import SAME_DB
from ortune.measurement.process import WorkerFailed
from ortune.search.experiment.context import Context
from ortune.search.recipe.build import build_in
from ortune.search.recipe.built import SOURCE, STEPS

_OTHER_MEANING_DB = 6.0
_RECOVERS_DB = 10.0
_SAME_ROUNDED_DB = 25.0
"""Of a tensor in two runtimes that compute the same, one of them in 16 bits: no loss counts above
it, nor above `SAME_DB` in float32."""


@dataclass(frozen=True)
class CommonRegion:
    """The same part of both models."""

    reference: ir.Model
    other: ir.Model
    nodes: tuple[str, ...]
    replaced: tuple[str, ...]


class Hybrids:
    """A model that passes and one that fails, and the tensors that both have."""

    def __init__(self, good: ir.Model, bad: ir.Model, backend: Backend) -> None:
        self.good, self.bad, self.backend = good, bad, backend
        self.oracle = Cpu(level="disabled", custom_ops=backend.custom_ops)
        self.close: dict[str, float] = {}
        for model in (good, bad):
            edit.inline_functions(model)
            infer_shapes(model)
        self._good, self._bad = _map_node_outputs(good), _map_node_outputs(bad)

    def find_borders(self, samples: Path, indices: Sequence[int]) -> list[str]:
        """Return tensors of one name and meaning in the order of the graph, outputs among them.

        A tensor that is far off while a later one is near has been expressed otherwise (scaled,
        say, by a step that scales back behind it): it is no border.
        """
        shared = [
            n for n, v in self._good.items() if n in self._bad and _is_compatible(v, self._bad[n])
        ]
        both, backends = (self.good, self.bad), (self.oracle, self.oracle)
        self.close = compute_tensor_snr(both, shared, samples, indices, backends)
        borders = []
        for place, name in enumerate(shared):
            snr = self.close.get(name)
            if snr is None:
                continue
            later = [self.close[n] for n in shared[place + 1 :] if n in self.close]
            if snr < _OTHER_MEANING_DB and max(later, default=-np.inf) > snr + _RECOVERS_DB:
                continue
            borders.append(name)
        return borders

    def build_mixed_model(self, bad_tensors: Collection[str]) -> ir.Model:
        """Return the good model with all tensors of `bad_tensors` from the bad one."""
        stops = {self._good[name] for name in bad_tensors}
        met = find_upstream(self.good.graph.outputs, stops)
        ends = [str(value.name) for value in met if value in stops]
        return splice(self.good, extract(self.bad, (), ends))

    def extract_region(self, tensor: str, before: Sequence[str]) -> CommonRegion:
        """Return what makes a tensor, from the tensors before on, in both models."""
        input_names = {str(value.name) for value in self.good.graph.inputs}
        starts = set(before) | input_names
        while True:
            good_starts = _find_reached_starts(self._good[tensor], self._good, starts, self.good)
            bad_starts = _find_reached_starts(self._bad[tensor], self._bad, starts, self.bad)
            if good_starts == bad_starts:
                break
            starts -= good_starts ^ bad_starts
        cuts = sorted(good_starts - input_names)
        ref, other = extract(self.good, cuts, [tensor]), extract(self.bad, cuts, [tensor])
        return CommonRegion(
            ref, other, *(tuple(str(n.name) for n in m.graph) for m in (other, ref))
        )


def _map_node_outputs(model: ir.Model) -> dict[str, ir.Value]:
    """Return the tensors of the main graph that nodes make, constants apart, in order."""
    return {
        str(value.name): value
        for node in model.graph
        for value in node.outputs
        if value.name and edit.const_tensor(value) is None
    }


def _is_compatible(first: ir.Value, second: ir.Value) -> bool:
    if first.dtype != second.dtype or first.dtype is None:
        return False
    ranks = [None if v.shape is None else v.shape.rank() for v in (first, second)]
    return None in ranks or ranks[0] == ranks[1]


def _find_reached_starts(
    end: ir.Value, values: dict[str, ir.Value], starts: Collection[str], model: ir.Model
) -> set[str]:
    inputs = {str(value.name): value for value in model.graph.inputs}
    values_by_name = {**values, **inputs}
    there = {name: values_by_name[name] for name in starts if name in values_by_name}
    stops = {value for value in there.values() if value is not end}
    return {str(value.name) for value in find_upstream([end], stops) if value in stops}


Judge: TypeAlias = Callable[[Path], Score | None]

_LOOKED = 2
"""Samples on which tensors are compared."""
_RECORDED = 16
"""Samples that go with the small model."""


@dataclass(frozen=True, repr=False)
class Bisection(Result):
    """Where the answers leave the budget.

    Attributes:
        step: The first step whose result fails; empty when the steps are not known.
        before: The budget's score without that step, None when the steps are not known.
        tensor: The first tensor with which the answers fail when everything up to it is the other
            model's; empty when the runtime or its settings fail already.
        nodes: Nodes of the other model that make it, from the tensor before on.
        replaced: Nodes of the reference they stand for.
        score: The budget's metric with everything up to `tensor` from the other model.
        without: The same up to the tensor before.
        alone: With these nodes alone from the other model; None when that cannot be run.
        fails_alone: Whether they leave the budget by themselves; else errors of several add up.
        snr_db: Of `tensor`, the other model's against the reference's.
        folder: Holds ``reference.onnx``, ``other.onnx`` and ``samples``; None without.
        piece_db: SNR between the two small models on those samples.
    """

    headline = ("step", "tensor", "score", "without", "alone", "snr_db", "folder", "note")

    step: str = ""
    before: float | None = None
    tensor: str = ""
    nodes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    score: float | None = None
    without: float | None = None
    alone: float | None = None
    fails_alone: bool | None = None
    snr_db: float | None = None
    judged: int = 0
    folder: Path | None = None
    piece_db: float | None = None
    note: str = ""


def bisect_models(
    reference: Path, other: Path, context: Context, backend: Backend, judge: Judge, out: Path
) -> Bisection:
    """Look for what makes `other` fail, and write the smallest model that still shows it.

    Args:
        backend: Where `other` is judged.
        judge: Scores a model; None when it does not run.
        out: Folder for the small models; made when something is found.
    """
    with open_temporary_folder() as name:
        search = _Search(context, backend, judge, Path(name), out)
        plain = search.judge_model(reference)
        if plain is None or plain.verdict is Verdict.FAILS:
            value = None if plain is None else plain.value
            note = f"the reference itself fails on {backend}: the runtime is the cause, not OTHER"
            return search.find_misread_node(reference, Bisection(without=value, note=note))
        step, good, bad, note = search.find_failing_step(reference, other, plain)
        return search.find_failing_node(step, good, bad, note)


@dataclass(frozen=True)
class _Good:
    path: Path
    score: Score


class _Search:
    def __init__(
        self, context: Context, backend: Backend, judge: Judge, work: Path, out: Path
    ) -> None:
        self._backend, self._judge = backend, judge
        self._work, self._out = work, out
        self._judged = 0
        self._material = material = next(iter(context.materials.values()))
        assert material.feeds is not None
        self._samples = material.feeds.stream
        self._indices = context.parts["search"].indices

    def judge_model(self, model: Path) -> Score | None:
        """Score a model; None when it does not run."""
        self._judged += 1
        return self._judge(model)

    # The first step

    def find_failing_step(
        self, reference: Path, other: Path, plain: Score
    ) -> tuple[str, _Good, Path, str]:
        """Return the first step that fails, the model before it, the one behind it, a remark."""
        good = _Good(reference, plain)
        steps, why = _read_steps(reference, other)
        if not steps:
            return "", good, other, why
        low, high, bad = 0, len(steps), other
        try:
            while high - low > 1:
                middle = (low + high) // 2
                recipe = Recipe("bisect", steps[:middle])
                built = build_in(self._work / "steps", reference, recipe, self._material).path
                score = self.judge_model(built)
                if score is None or score.verdict is Verdict.FAILS:
                    high, bad = middle, built
                else:
                    low, good = middle, _Good(built, score)
        except OrtuneError as error:
            why = f"the steps cannot be repeated: {error.what}"
            return "", _Good(reference, plain), other, why
        return str(steps[high - 1]), good, bad, ""

    def find_misread_node(self, reference: Path, bisection: Bisection) -> Bisection:
        """Name the node of the reference at which the backend loses most over what it reads."""
        oracle = Cpu(level="disabled", custom_ops=self._backend.custom_ops)
        model = file.load(reference)
        edit.inline_functions(model)
        infer_shapes(model)
        computed, indices = _map_node_outputs(model), self._indices[:_LOOKED]
        try:
            snr_by_tensor = compute_tensor_snr(
                (model, model), list(computed), self._samples, indices, (oracle, self._backend)
            )
        except (WorkerFailed, OrtuneError) as error:
            why = f"tensors cannot be compared: {_describe_error(error)}"
            return replace(_add_note(bisection, why), judged=self._judged)

        same_db = _SAME_ROUNDED_DB if self._backend.lossy else SAME_DB

        def compute_loss(name: str) -> float:
            node = computed[name].producer()
            read = [str(value.name) for value in node.inputs if value is not None] if node else []
            before = min((snr_by_tensor.get(n, same_db) for n in read), default=same_db)
            return min(before, same_db) - snr_by_tensor[name]

        worst = max(snr_by_tensor, key=compute_loss, default="")
        if not worst or compute_loss(worst) < _RECOVERS_DB:
            right = min(snr_by_tensor.values(), default=same_db) > same_db - _RECOVERS_DB
            why = "no single operator loses accuracy: what each loses adds up"
            if right:
                why = "with every tensor as an output the runtime is right: it is wrong where it "
                why += "joins operators to one"
            return replace(_add_note(bisection, why), judged=self._judged)
        node = computed[worst].producer()
        return replace(
            bisection,
            tensor=worst,
            nodes=(str(node.name),) if node is not None else (),
            snr_db=snr_by_tensor[worst],
            judged=self._judged,
        )

    # The first node

    def find_failing_node(self, step: str, good: _Good, bad: Path, note: str) -> Bisection:
        """Move the border between the two models until one tensor makes the difference."""
        bisection = Bisection(
            step, good.score.value if step else None, judged=self._judged, note=note
        )
        models = Hybrids(file.load(good.path), file.load(bad), self._backend)
        try:
            names = models.find_borders(self._samples, self._indices[:_LOOKED])
        except (WorkerFailed, OrtuneError) as error:
            return _add_note(bisection, f"tensors cannot be compared: {_describe_error(error)}")
        low, high = 0, len(names)
        before, after = good.score, None
        while high - low > 1:
            middle = (low + high) // 2
            score = None
            with suppress(OrtuneError):
                score = self._judge_loaded_model(models.build_mixed_model(names[:middle]))
            if score is None:
                del names[middle - 1]
                high -= 1
            elif score.verdict is Verdict.FAILS:
                high, after = middle, score
            else:
                low, before = middle, score
        if not names:
            return _add_note(bisection, "the two models have no tensor in common but their inputs")
        bad_tensors = names[:high]
        tensor = bad_tensors[-1]
        region = models.extract_region(tensor, bad_tensors[:-1])
        alone = None
        try:
            alone = self._judge_loaded_model(splice(models.good, region.other))
        except OrtuneError as error:
            bisection = _add_note(
                bisection, f"the nodes do not run alone: {_describe_error(error)}"
            )
        folder, piece_db = self._write_region(models, region)
        return replace(
            bisection,
            tensor=tensor,
            nodes=region.nodes,
            replaced=region.replaced,
            score=None if after is None else after.value,
            without=before.value,
            alone=None if alone is None else alone.value,
            fails_alone=None if alone is None else alone.verdict is Verdict.FAILS,
            snr_db=models.close.get(tensor),
            judged=self._judged,
            folder=folder,
            piece_db=piece_db,
        )

    def _judge_loaded_model(self, model: ir.Model) -> Score | None:
        path = file.save(model, self._work / "mixed.onnx", durable=False)
        try:
            return self.judge_model(path)
        finally:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.data").unlink(missing_ok=True)

    def _write_region(
        self, models: Hybrids, region: CommonRegion
    ) -> tuple[Path | None, float | None]:
        """Write the two small models with what they take; return the SNR between them."""
        inputs = [str(value.name) for value in region.reference.graph.inputs]
        draft = self._work / "small"
        draft.mkdir()
        file.save(region.reference, draft / "reference.onnx")
        file.save(region.other, draft / "other.onnx")
        indices = self._indices[:_RECORDED]
        recorded = self._work / "recorded.stream"
        try:
            rows = write_tensor_values(
                models.good, inputs, self._samples, indices, models.oracle, recorded
            )
        except (WorkerFailed, OrtuneError):
            return None, None
        write_sample_files(rows, draft / "samples", {}, digits=3)
        pieces = (region.reference, region.other)
        ends = [str(value.name) for value in region.reference.graph.outputs]
        backends = (models.oracle, self._backend)
        order = range(len(indices))
        snr_by_tensor = compute_tensor_snr(pieces, ends, recorded, order, backends)
        with open_draft(self._out) as whole, report_write_errors(self._out):
            shutil.copytree(draft, whole)
        return self._out, min(snr_by_tensor.values(), default=None)


def _read_steps(reference: Path, other: Path) -> tuple[tuple[Step, ...], str]:
    """Read which steps made `other` of `reference`."""
    kept = file.load(other).metadata_props
    if STEPS not in kept:
        return (), "the file does not say which steps made it"
    if kept.get(SOURCE) != file.compute_digest(reference):
        return (), "it was made from another file than the reference"
    try:
        return codec.decode(tuple[Step, ...], stored.parse_json(kept[STEPS])), ""
    except (OrtuneError, ValueError) as error:
        return (), f"its steps are not known here: {_describe_error(error)}"


def _add_note(bisection: Bisection, text: str) -> Bisection:
    return replace(bisection, note="; ".join(filter(None, (bisection.note, text))))


def _describe_error(error: Exception) -> str:
    if isinstance(error, WorkerFailed):
        return error.failure.reason
    return error.what if isinstance(error, OrtuneError) else str(error)


_MARK = "splice/"


def splice(model: ir.Model, piece: ir.Model) -> ir.Model:
    """Return a model with the outputs of `piece` in the place of its values of the same names.

    What the piece takes it reads from the model's values of these names. Both are left as they are
    and share their weights with the result. Functions are inlined.

    Raises:
        BadModel: Opsets differ, or the model has no value of such a name.
    """
    model, part = model.clone(), piece.clone()
    edit.inline_functions(model)
    edit.inline_functions(part)
    for domain, version in part.opset_imports.items():
        if model.opset_imports.setdefault(domain, version) != version:
            raise BadModel(
                f"opset {version} of domain '{domain}' beside {model.opset_imports[domain]}",
                fix="raise one of the two with `ortune apply MODEL raise-opset`",
            )
    outputs = [value for node in model.graph for value in node.outputs]
    inner = [*model.graph.inputs, *model.graph.initializers.values(), *outputs]
    values = {value.name: value for value in inner if value.name}
    matches = [values.get(str(v.name)) for v in (*part.graph.inputs, *part.graph.outputs)]
    if None in matches:
        interface = [*part.graph.inputs, *part.graph.outputs]
        lost = next(v.name for v, match in zip(interface, matches, strict=True) if match is None)
        raise BadModel(f"the model has no tensor '{lost}'", fix="compare two forms of one model")
    for value in part.graph.inputs:
        value.replace_all_uses_with(values[str(value.name)])
    replacements = {str(value.name): value for value in part.graph.outputs}
    part.graph.outputs.clear()
    # Move nodes and weights over, under names of their own.
    weights = list(part.graph.initializers.values())
    nodes = list(part.graph)
    part.graph.initializers.clear()
    part.graph.remove(nodes)
    outer = [body for node in nodes for body in edit.list_bodies(node)]
    bodies = dict.fromkeys(subgraph for body in outer for subgraph in (body, *body.subgraphs()))
    inside = (v for body in bodies for v in (*body.inputs, *(o for n in body for o in n.outputs)))
    part_outputs = (value for node in nodes for value in node.outputs)
    named: list[ir.Node | ir.Value] = [*nodes, *weights, *part_outputs, *inside]
    for item in named:
        if item.name:
            item.name = f"{_MARK}{item.name}"
    for value in weights:
        model.graph.register_initializer(value)
    edit.insert_first(model.graph, *nodes)
    for name, new in replacements.items():
        redirect_uses(values[name], new)
    model.graph.sort()
    prune.drop_dead(model)
    names.make_names_unique(model)
    return model
