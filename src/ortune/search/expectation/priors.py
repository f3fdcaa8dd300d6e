"""What is expected of plans before the first trial: by operators and instruction sets."""

from __future__ import annotations

import math
from statistics import median

from ortune.core.hardware.cpus import native
from ortune.quantization.roles import Role
from ortune.search.expectation.features import FLOAT_SHARE, called, chosen
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

_STRAINS = {
    "int8-static": 0.2, "int8-dynamic": -0.1, "int8-weights": -1.0, "int4-weights": 0.7,
    "fp16": -2.0, "bf16": -1.0, "fp8": 0.8,
}  # fmt: skip
"""What losses of quantizers were over usual budgets, roughly, as a logarithm."""
_STRAINS_MORE = {
    "option:int8-dynamic.leave_worst=2": Normal(-0.17, 0.12),
    "option:int8-dynamic.embeddings=True": Normal(0.04, 0.12),
    "option:int8-static.embeddings=True": Normal(0.04, 0.12),
    "option:int8-static.head=True": Normal(0.4, 0.5),
    "option:int8-static.keep_first=3": Normal(0.0, 0.4),
    "option:int8-static.observer=entropy": Normal(0.7, 1.0),
    "option:int8-static.observer=mse": Normal(0.0, 0.7),
    "option:int8-static.observer=percentile": Normal(0.4, 1.0),
    "option:int4-weights.block=128": Normal(0.26, 0.15),
    "option:int4-weights.method=gptq": Normal(-0.26, 0.15),
    "option:int4-weights.ops=('MatMul', 'Gemm')": Normal(-0.3, 0.2),
    "step:smooth-quant": Normal(-1.5, 1.0),
    "step:adaptive-rounding": Normal(-0.6, 0.6),
    "step:bias-correction": Normal(-0.4, 0.6),
    "step:cross-layer-equalization": Normal(-0.2, 0.4),
    "step:clip-weights": Normal(-0.4, 0.4),
}
"""What an option or a step of the kit adds to that: pairs of recipes that differ in it alone, in
the tables of models that no policy is judged by (`benchmarks.search`). Outliers decide what
smoothing brings: 2.0 on MiniLM, nothing on random weights. Steps of the kit take power out of the
error; the strain of decibels is of its amplitude, half of that."""

LAYERS = {
    "conv": ("Conv", "ConvTranspose"),
    "product": ("MatMul", "Gemm", "Attention", "MultiHeadAttention"),
    "recurrent": ("LSTM", "GRU", "RNN"),
}
_READ_PER_S = 15e9
"""Bytes of weights that a core reads from memory in a second, roughly: a network that comes near
is as fast as its weights are small."""
_KEPT = {"int8-weights": 0.3, "int4-weights": 0.2}
"""Bytes of packed weights over those of float32, with the scales of their blocks."""
_UNPACKED = Normal(0.5, 0.5)
"""What packed weights bring less where reading them is all and they are widened before they are
multiplied: on a decoder 4 bits took 0.63 of the time on OpenVINO and 0.18 on onnxruntime's CPU
provider, which multiplies in integers; 8 bits 0.48 and 0.26."""
_BY_KERNEL = 0.4
"""Standard deviation of it elsewhere: each backend has its own kernels for them, or none."""
_EMULATES = ("int8-static@openvino/f16",)
_EMULATED = Normal(1.5, 1.0)
"""Integer layers under that hint are computed one element at a time: 82 and 84 times the
original's time on a decoder, up to 1,000 times elsewhere."""
_OPTIONS = {
    "int4-weights.accuracy_level=0": Normal(0.6, 0.4),
    "int8-weights.accuracy_level=0": Normal(0.6, 0.4),
    "int4-weights.block=128": Normal(-0.2, 0.2),
    "int8-dynamic.leave_worst=2": Normal(0.12, 0.12),
    "int8-static.head=True": Normal(-0.03, 0.05),
    "int8-static.keep_first=3": Normal(0.04, 0.06),
    "int8-static.observer=entropy": Normal(0.0, 0.04),
    "int8-static.observer=mse": Normal(0.0, 0.04),
    "int8-static.observer=percentile": Normal(0.0, 0.04),
}
"""What options bring, of those tables; an observer moves ranges and no kernels. Products of packed
weights that are computed in float take 2.5 times those in 8 bits on a decoder. Blocks of 128 took
0.70 to 0.97 of the time of 32 on the CPU provider, median 0.81, and 0.82 to 1.33 on OpenVINO."""
_SMOOTHED = Normal(0.06, 0.06)
"""What the divisions cost that smoothing puts in front of layers: 9 % on MiniLM."""
_SLOWING = {"prepack=False": Normal(0.5, 0.3), "level=extended": Normal(0.15, 0.15)}
"""What weights bring that are not reordered for the kernels, and a graph without the last passes,
by 24 and 34 plans of eight models."""
_LITTLE = Normal(0.03, 0.03)
_OF_LITTLE = (
    "arena", "arena_growth", "memory_pattern", "level", "cast_chains", "fast_gelu", "disable",
    "hint", "streams", "pinning", "hyper_threading",
)  # fmt: skip
"""Fields that bring little on one thread: 205 plans of four models were 6 % slower on average
than the leader that they were tried around, which had been the fastest of many by luck too."""
ELSEWHERE = 0.3
"""Standard deviation of what a hint or a quantizer brings between models; weights scale it."""


class Priors:
    """What is expected of features before the first trial: by operators and instruction sets.

    Args:
        view: Its facts and targets count, and the profile of the original.
    """

    def __init__(self, view: View) -> None:
        ops, timed = view.facts.ops, view.by_operator
        counts = {
            kind: (6 if kind == "recurrent" else 1) * sum(ops.get(op, 0) for op in some)
            for kind, some in LAYERS.items()
        }
        every = max(1, sum(counts.values()))
        self._share = {kind: 0.85 * count / every for kind, count in counts.items()}
        if timed:  # the original's own time says more than how many layers there are
            self._share = {
                kind: sum(timed.get(op, 0.0) for op in some) for kind, some in LAYERS.items()
            }
        targets = view.space.targets
        self._by_power = 0.5 if view.budget and view.budget.metric.decibels else 1.0
        self._reads = _reading(view)
        self._units = native(one for t in targets for one in t.capabilities.instruction_sets)

        self._rules = {called(rule) for target in view.space.targets for rule in target.rules}
        self._splits = {
            f"threads={threads}" for target in view.space.targets for threads in target.splits
        }
        self._single = all(getattr(t.backend, "threads", 0) == 1 for t in view.space.targets)
        self._variants = {
            name
            for target in view.space.targets
            for one in target.variants(view.facts, view.space.workload)
            for name in set(chosen(one)) - set(chosen(target.backend))
        }

    def latency(self, feature: str) -> Normal:
        """Return the prior of a part of the log-ratio."""
        kind, _, name = feature.partition(":")
        match kind:
            case "kind":
                return Normal(0.0 if name == "cpu" else -0.05, 0.02 if name == "cpu" else 0.3)
            case "hint":
                return self._hint(name.partition("/")[2])
            case "family":
                return self._family(name)
            case "family@kind":
                return self._kernels(*name.split("@"))
            case "family@hint":
                return (
                    _EMULATED if name in _EMULATES else Normal(self._both(*name.split("@")), 0.15)
                )
            case "behind":
                return Normal(_amdahl(self._share["recurrent"], 0.8 * self._gain), 0.2)
            case "option":
                return _OPTIONS.get(name, Normal(0.0, 0.12))
            case "step":
                return _SMOOTHED if name == "smooth-quant" else Normal(0.01, 0.03)
            case "clean":
                return Normal(-0.03, 0.07)
            case "set":
                return self._set(name)
            case "rule":
                return Normal(-0.05, 0.2) if name in self._rules else Normal(0.0, 0.04)
            case "elsewhere":
                return Normal(0.0, ELSEWHERE)
            case "bucketed":
                return Normal(-0.3, 0.4)
        return Normal(0.0, 0.04)

    def strain(self, feature: str) -> Normal:
        """Return the prior of a part of a recipe's strain."""
        kind, _, name = feature.partition(":")
        match kind:
            case "family":
                return Normal(_STRAINS.get(name, 0.0), 1.2)
            case "option":
                return _STRAINS_MORE.get(feature, Normal(-0.1, 0.5))
            case "step":
                found = _STRAINS_MORE.get(feature, Normal(-0.4, 0.5))
                return Normal(self._by_power * found.mean, self._by_power * found.sd)
        return Normal(0.0, 0.2)

    def _set(self, name: str) -> Normal:
        told = name.partition(".")[2]
        if told in self._splits:
            return Normal(0.0, 0.5)
        if told in _SLOWING:
            return _SLOWING[told]
        little = told.partition("=")[0] in _OF_LITTLE and name not in self._variants
        return _LITTLE if self._single and little else Normal(0.0, 0.06)

    def _hint(self, precision: str) -> Normal:
        gain, sd = 1.0, 0.02
        if precision in ("bf16", "f16"):
            gain, sd = 1.0, 0.6
            if precision == "bf16" and "bf16-avx512" in self._units:
                gain, sd = 1.9, 0.4
            if f"{precision}-amx" in self._units:
                gain, sd = 4.0, 0.4
        return Normal(_amdahl(0.9, gain), sd)

    @property
    def _gain(self) -> float:
        """How many times as fast products of 8-bit integers are as those of floats, roughly."""
        return 5.0 if "int8-amx" in self._units else 3.0 if "int8-vnni" in self._units else 1.4

    def _family(self, name: str) -> Normal:
        gain, share = self._gain, self._share
        match name:
            case "int8-static":
                return Normal(_amdahl(share["conv"] + share["product"], gain), 0.35)
            case "int8-dynamic":
                return Normal(_amdahl(share["product"] + share["recurrent"], 0.8 * gain), 0.35)
            case "int8-weights" | "int4-weights":
                faster = _amdahl(share["product"], 1.2)
                return Normal(min(faster, self._less_read(name)), 0.2)
        return Normal(0.0, 0.25)

    def _kernels(self, family: str, kind: str) -> Normal:
        """Return what a backend's own kernels bring: of packed weights by what reading them is."""
        if family not in _KEPT:
            return Normal(0.0, 0.2)
        found = _UNPACKED if kind == "openvino" else Normal(0.0, _BY_KERNEL)
        return Normal(self._reads * found.mean, max(0.2, self._reads * found.sd))

    def _less_read(self, family: str, computing: float = 1.0) -> float:
        """Return the log-ratio of packed weights where the rest takes that share of its time."""
        return math.log(self._reads * _KEPT[family] + (1 - self._reads) * computing)

    def _both(self, family: str, place: str) -> float:
        """Return what is lost where packed weights meet a hint: it is no help in reading them."""
        if family not in _KEPT:
            return 0.0
        hint = FLOAT_SHARE[Role.WEIGHTS] * self.latency(f"hint:{place}").mean
        return self._less_read(family, math.exp(hint)) - hint - self._less_read(family)


def _reading(view: View) -> float:
    """Return the share of the original's time that reading its weights from memory takes."""
    first = view.trials[0].measurement
    if first is None:
        return 0.0
    taken = median(first.latency_ns) / 1e9
    read = view.facts.weight_bytes - view.facts.table_bytes
    return min(1.0, read / _READ_PER_S / taken)


def _amdahl(share: float, gain: float) -> float:
    """Return the log-ratio where a share of the time is so many times as fast (Amdahl's law)."""
    return math.log(1 - share + share / gain)
