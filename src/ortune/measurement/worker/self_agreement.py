"""What compares a model with itself: run twice, and without the runtime's optimizers."""

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime.messages import capture_log
from ortune.core.errors import BadData, BadModel, OrtuneError, find_interruption, summarize_error
from ortune.core.hardware.memory import trim_heap
from ortune.core.session import Session, Tensors
from ortune.measurement.job import MAIN
from ortune.measurement.worker.workbench import Workbench, run_for_tensors
from ortune.metrics.snr import Snr

_LONG_S = 5.0  # seconds of runs after which no further sample is taken
_REPEATED_DB = 90.0
"""Two runs of one session on one sample stay above this: threads may add up in another order."""
_LAST_BITS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22, "float64": 2.0**-51}
"""Relative size of the last bits of a type."""
_ROUNDING_DB = 20.0
"""A rewrite that rounds otherwise may move the answers so much more than the inputs' last bits."""
_MOST_DB = 200.0
_ROUNDS = 3


def compare_with_itself(bench: Workbench, samples: int, least_db: float) -> dict[str, Any]:
    """Run the job's model twice without optimizers, then with the backend's own, and compare.

    Args:
        samples: Run the first so many.
        least_db: Signal to noise that rewrites of the runtime keep.

    Returns:
        ``random``: outputs that differ between two runs; ``rest``: whether there are others.
        ``decibels``: between the backend and no optimizers, None where nothing is left to compare;
        ``failure``: why it does not load or run there, else empty. Where either is amiss
        ``disable``: the optimizers without which the model is right; None where no choice of them
        makes it so.
    """
    backend = bench.job.backend
    if not isinstance(backend, Cpu):
        raise BadData(f"{backend.name()} has no optimizers to leave out", fix="use --on cpu")
    plain, path = replace(backend, level="disabled", disable=()), bench.job.models[MAIN]
    feeds, expected, random = _run_twice(bench, plain, samples)
    fixed = [name for name in _list_tensors(expected[0]) if name not in random]
    answer: dict[str, Any] = {"random": random, "rest": bool(fixed)}
    answer |= {"decibels": None, "failure": "", "disable": []}
    if backend.level == "disabled" or not fixed:
        return answer

    def compare_without(optimizers: Sequence[str]) -> float:
        trim_heap()  # of the session before
        with backend.leave_out(optimizers, None).open(path) as session:
            return _compute_decibels(expected, _run_samples(session, feeds), fixed)

    def is_right(optimizers: Sequence[str]) -> bool:
        bench.report_progress("leaving optimizers out", 0, 0)
        with suppress(OrtuneError):
            return compare_without(optimizers) >= least_db
        return False

    try:
        answer["decibels"] = decibels = compare_without(())
    except OrtuneError as error:
        answer["failure"] = error.what
    else:
        if decibels >= least_db:
            return answer
        with plain.open(path) as session:
            moved = [run_for_tensors(session, _change_last_bits(feed)) for feed in feeds]
        if decibels > _compute_decibels(expected, moved, fixed) - _ROUNDING_DB:
            return answer
    answer["disable"] = _find_wrong_optimizers(backend, path, is_right)
    return answer


def _run_twice(
    bench: Workbench, plain: Cpu, samples: int
) -> tuple[list[Tensors], list[Tensors], list[str]]:
    """Return samples, the answers to them, and the outputs that a second run gives otherwise."""
    feeds: list[Tensors] = []
    answers: list[Tensors] = []
    random: dict[str, None] = {}
    until = time.monotonic() + _LONG_S
    with plain.open(bench.job.models[MAIN]) as session:
        for index in range(min(samples, len(bench.feeds[MAIN]))):
            bench.report_progress("comparing the model with itself", index, samples)
            feeds.append(bench.sample(index))
            first, second = (run_for_tensors(session, feeds[-1]) for _ in range(2))
            answers.append(first)
            for name in _list_tensors(first):
                if _compute_decibels([first], [second], [name]) < _REPEATED_DB:
                    random[name] = None
            if time.monotonic() > until:
                break
    return feeds, answers, list(random)


def _run_samples(session: Session, feeds: Sequence[Tensors]) -> list[Tensors]:
    """Return the answers to samples that the model takes without optimizers."""
    try:
        return [run_for_tensors(session, feed) for feed in feeds]
    except Exception as error:
        if find_interruption(error):
            raise
        raise BadModel(summarize_error(error), fix="leave optimizers out") from error


def _list_tensors(outputs: Tensors) -> list[str]:
    """Return the outputs that can be compared: no sequences or maps."""
    return [name for name, value in outputs.items() if isinstance(value, np.ndarray)]


def _compute_decibels(
    expected: Sequence[Tensors], actual: Sequence[Tensors], names: Sequence[str]
) -> float:
    """Return the least dB of any output; NaN or infinity that only one side has is all noise."""
    least = _MOST_DB
    for name in names:
        metric = Snr(output=name)
        decibels = metric.aggregate(metric.records(expected, actual, None))
        least = min(least, -_MOST_DB if math.isnan(decibels) else decibels)
    return least


def _change_last_bits(feed: Tensors) -> Tensors:
    generator = np.random.default_rng(0)

    def change(array: NDArray[Any]) -> NDArray[Any]:
        size = _LAST_BITS.get(array.dtype.name)
        if size is None:
            return array
        signs = generator.choice([-size, size], array.shape)
        return np.asarray(array * (1 + signs), array.dtype)

    return {name: change(array) for name, array in feed.items()}


def _find_wrong_optimizers(
    backend: Cpu, path: Path, is_right: Callable[[Sequence[str]], bool]
) -> tuple[str, ...] | None:
    """Return the optimizers, as `Cpu.disable` names them, without which a model is right."""
    active: dict[str, None] = {}
    for _ in range(_ROUNDS):  # without some of them others may find work
        less = backend.leave_out(tuple(active), None)
        with (
            capture_log(repeat=False) as log,
            suppress(OrtuneError),
            less.open(path, verbose=True),
        ):
            pass
        changing: dict[str, None] = {}  # or failing to; of those made of rules the rules first
        begun = ""
        for line in log.text.splitlines():
            if match := _BEGUN.search(line):
                begun = match[1]
            elif match := _ENDED.search(line):
                begun = ""
                if match[2] != "0" or match[3] != "OK":
                    changing[match[1]] = None
        if begun:  # it threw, which ends the log
            changing[begun] = None
        threw = dict.fromkeys(_THREW.findall(log.text))  # by class, which is mostly the name
        changing |= threw
        groups = [name for name in changing if name.endswith(_RULE_BASED)]
        rules = _RULES if groups or threw else ()
        more = [*(name for name in changing if name not in groups), *rules, *groups]
        if set(more) <= set(active):
            return None
        active |= dict.fromkeys(more)
        if culprits := find_culprits(tuple(active), is_right):
            return culprits
    return None


def explain_failure(error: BadModel, bench: Workbench, *, running: bool = False) -> BadModel:
    """Return an error that names the optimizers which keep a model from its work, if they do.

    It says why one of the job's models does not load; or, where `running`, does not run.
    """
    backend, models = bench.job.backend, bench.job.models

    def works(candidate: Cpu, name: str) -> bool:
        with suppress(OrtuneError), candidate.open(models[name]) as session:
            if running:
                _run_samples(session, [bench.feeds[name][0]])
            return True
        return False

    if not isinstance(backend, Cpu) or backend.level == "disabled":
        return error
    idle = next((name for name in models if not works(backend, name)), None)
    if idle is None or not works(replace(backend, level="disabled", disable=()), idle):
        return error
    path = models[idle]
    names = _find_wrong_optimizers(
        backend, path, lambda optimizers: works(backend.leave_out(optimizers, None), idle)
    )
    blamed = "optimizers" if names is None else f"optimizer {', '.join(names)}"
    setting = backend.leave_out(names or (), "disabled" if names is None else None)
    return BadModel(
        f"{error.what}; without onnxruntime's {blamed} it does",
        fix=f'give --on "{setting}"; a file from `ortune apply {path.name} simplify -o OUT` may '
        f"{'run' if running else 'load'} without it",
    )


_RULES = (
    *("EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout"),
    *("ExpandElimination", "CastElimination", "CastChainElimination", "PreShapeNodeElimination"),
    *("NoopElimination", "DivMulFusion", "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion"),
    *("NotWhereFusion", "ConvAddFusion", "ConvMulFusion", "ConvBNFusion", "Pad_Fusion"),
    *("MatMul_BatchNormalization_Fusion", "LabelEncoderFusion", "ClipQuantRewrite"),
    "ReluQuantRewrite",
)
"""Rules that a "rule based" optimizer holds: its log names itself, and `disable` takes theirs."""
_RULE_BASED = "_RuleBasedTransformer"
_BEGUN = re.compile(r"Applying graph transformer (\S+) on step")
_THREW = re.compile(r"onnxruntime::(\w+)::Apply(?:Impl)?\(")
_ENDED = re.compile(r"GraphTransformer (\S+) modified: (\d) with status: (\S+)")


def find_culprits(
    optimizers: Sequence[str], is_right: Callable[[Sequence[str]], bool]
) -> tuple[str, ...] | None:
    """Return the fewest optimizers without which a model is right, by halving; None without any.

    Where several do, the earlier ones of `optimizers` are taken.
    """

    def halve(without: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
        if is_right(without):
            return ()
        if len(among) == 1:
            return among
        first, second = among[: len(among) // 2], among[len(among) // 2 :]
        later = halve((*without, *first), second)
        return (*halve((*without, *later), first), *later)

    names = tuple(optimizers)
    return halve((), names) if names and is_right(names) else None
