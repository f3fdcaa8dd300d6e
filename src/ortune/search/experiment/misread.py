"""Whether a runtime computes another function than a file says, and at which of its pairs.

onnxruntime at level disabled runs each node as it is written. What keeps the accuracy budget there
and misses it elsewhere is right, and its runtime is wrong. Then quantize / dequantize pairs are
taken out by halves until few are left without which the runtime keeps the budget too: first those
that have the same operators around them, as a fault of one layer is one of all like it.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import onnx_ir as ir

from ortune.backends.cpu import Cpu
from ortune.core import wording as say
from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.plugins import catalog, codec
from ortune.core.step import Quantizer, Recipe
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Misreading, Plan, Score, Status, Trial, Verdict
from ortune.graph.io import file
from ortune.graph.ir import edit, qdq
from ortune.measurement.accuracy import SAME_DB
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.turns import wait_until_ready
from ortune.metrics.snr import Snr
from ortune.quantizers.common.qdq.dequantize import map_activation_pairs
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.experiment.measure import Files, start_worker
from ortune.search.experiment.scores import score_plan

_SAMPLES, _FEWEST, _FILE_S, _SLOWED = 8, 2, 10.0, 5.0
"""Samples that a file is judged on where its runtime misses the budget, at most and at least, the
seconds that this may take, and how much slower than the original a quantized file is at level
disabled, about."""
_EXACT_TYPES = {"float32", "float64", "int32", "int64", "bool"}
_BISECT_SHARE = 1 / 3  # of the time left to build a plan, what looking for pairs may take
_MOST = 6  # kinds of pairs, at most, that are left out: more are no fault of a few


def judge_file(
    context: Context,
    trial: Trial,
    files: Files,
    part: ScoredPart,
    former: Sequence[Misreading],
    seconds: float,
) -> Trial:
    """Say of a plan that misses its budget whether its file keeps it elsewhere.

    A plan that computes in fewer bits than its file says is blamed only where pairs are found: it
    may lose by its bits. An evaluate function is not asked: it may take no few samples.

    Args:
        former: What was found of earlier plans: their pairs are tried first.
        seconds: What is left to try a plan.
    """
    backend = trial.plan.backend
    missed = trial.status is Status.FAILS and not context.evaluate
    each_s = max(_SLOWED * context.deadlines.run_ns / 1e9, 1e-9)
    count = min(_SAMPLES, len(part.indices), int(_FILE_S / each_s))
    if backend.name() == Cpu.name():
        return trial
    version = context.job.versions.get(backend.name(), "")
    exact = context.facts.precisions.keys() <= _EXACT_TYPES and not trial.plan.lossy
    if exact and trial.status is not Status.FAILS:
        values = (item.value for item in trial.scores if item.metric.startswith(Snr.name()))
        if (snr := next((value for value in values if value < SAME_DB), None)) is not None:
            fault = Misreading(backend.title, version)
            return replace(trial, why=f"{trial.why}; {snr:.1f} dB in float32: {fault}")
    if not missed or count < min(_FEWEST, len(part.indices)):
        return trial
    judge = _Judge(context, trial.plan, part.take_first(count))
    plain = Cpu(level="disabled", custom_ops=backend.custom_ops)
    score = judge.score_files(files.paths, plain)
    if score is None or score.verdict is Verdict.FAILS:
        return trial
    pairs: Mapping[str, str] = {}
    if len(files.paths) == 1:
        ends = time.monotonic() + _BISECT_SHARE * seconds
        with open_temporary_folder() as folder:
            (path,) = files.paths.values()
            former_pairs = [tuple(entry.pairs) for entry in former if entry.pairs]
            pairs = judge.find_pairs(path, former_pairs, Path(folder), ends)
    if backend.lossy and not pairs:
        return trial
    misreading = Misreading(backend.title, version, pairs)
    metric = say.shorten_groups(score.metric)
    added = (
        f"the file keeps it, {metric} {score.value:.4g} in onnxruntime at level=disabled: "
        f"{misreading}"
    )
    return replace(trial, why=f"{trial.why}; {added}", misreading=misreading)


def mend_plan(trial: Trial) -> Plan | None:
    """Return a plan without the pairs that its runtime misreads; None where none are known."""
    if trial.misreading is None or not trial.misreading.pairs:
        return None
    recipe, step = trial.plan.recipe, _make_step(trial.misreading.pairs)
    name = f"{recipe.name} + {step}" if recipe.steps else str(step)
    return Plan(Recipe(name, (*recipe.steps, step)), trial.plan.backend)


def _make_step(tensors: Collection[str]) -> Quantizer:
    kind = catalog.load_plugin(Quantizer, "drop-pairs")
    return codec.build_dataclass(kind, {"tensors": tuple(tensors)})


@dataclass(frozen=True)
class _Judge:
    context: Context
    plan: Plan
    part: ScoredPart

    def score_files(self, paths: Mapping[str, Path], backend: Backend) -> Score | None:
        """Score a plan's files by the budget on a few samples; None where they do not run."""
        plan = replace(self.plan, backend=backend)
        try:
            with start_worker(self.context, paths, backend, "file") as worker:
                wait_until_ready(worker)
                return score_plan(self.context, worker, plan, self.part, plans=None)[0]
        except (OrtuneError, WorkerFailed):
            return None

    def find_pairs(
        self, path: Path, former: Sequence[tuple[str, ...]], folder: Path, ends: float
    ) -> dict[str, str]:
        """Return tensor -> what stands around its pair; empty where no few pairs are to blame.

        The pairs of earlier plans are tried first.
        """
        model = file.load(path)
        edit.inline_functions(model)
        pairs = map_activation_pairs(model).items()
        around = {name: _describe_pair(nodes[0]) for name, nodes in pairs}

        def works_without(names: Sequence[str]) -> bool:
            cut = path
            if names:
                less = file.load(path)
                _make_step(names).apply(less, {})
                cut = file.save(less, folder / "without.onnx", durable=False)
            score = self.score_files(dict.fromkeys(self.context.models, cut), self.plan.backend)
            return score is not None and score.verdict is not Verdict.FAILS

        names = list(around)
        if not names or works_without(()):
            return {}
        for tensors in former:
            if set(tensors) <= set(names) and works_without(tensors):
                return {name: around[name] for name in tensors}
        if not works_without(names):
            return {}
        kinds: dict[str, list[str]] = {}
        for name in names:
            kinds.setdefault(around[name], []).append(name)
        kept, blamed = list(kinds.values()), list[str]()
        for _ in range(_MOST):
            if time.monotonic() > ends:
                return {}
            last = _find_last(kept, blamed, works_without, ends)
            kept, whole = kept[:last], kept[last]
            if works_without([*blamed, *whole]):
                alone = [[name] for name in whole]
                single = alone[_find_last(alone, blamed, works_without, ends)]
                if len(whole) > 1 and works_without([*blamed, *single]):
                    whole = single
                return {name: around[name] for name in (*whole, *blamed)}
            blamed += whole
        return {}


def _find_last(
    groups: Sequence[Sequence[str]],
    blamed: Sequence[str],
    works_without: Callable[[Sequence[str]], bool],
    ends: float,
) -> int:
    """Return the last place of those that have to go beside `blamed`, counted from the input.

    Without all of them the runtime keeps the budget.
    """
    low, high = 0, len(groups)
    while high - low > 1 and time.monotonic() < ends:
        middle = (low + high) // 2
        if works_without([*blamed, *chain(*groups[:middle])]):
            high = middle
        else:
            low = middle
    return high - 1


def _describe_pair(node: ir.Node) -> str:
    """Say what makes the tensor of a pair and what reads it."""
    source, grid = node.inputs[0], qdq.read_grid(node)
    maker = source.producer() if source is not None else None
    wide = [late.outputs[0] for late in qdq.list_consumers(node.outputs[0])]
    readers = dict.fromkeys(n.op_type for value in wide for n in qdq.list_consumers(value))
    kind = "" if grid is None else f"{grid.zero.dtype} "
    return ", ".join(
        [maker.op_type if maker else "an input", f"{kind}pair", " and ".join(readers) or "output"]
    )
