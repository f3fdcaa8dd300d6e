"""What is expected of plans before the first trial: fitted numbers and physics of the model.

Physics: a share of the time that becomes so many times as fast (Amdahl's law), by operators and
instruction sets, and weights that are read from memory. What tables show beyond it is fitted
(`fitted`).
"""

from __future__ import annotations

import math
from statistics import median

from ortune.core.hardware.cpus import native
from ortune.quantization.roles import Role
from ortune.search.expectation import fitted
from ortune.search.expectation.features import FLOAT_SHARE, called, chosen
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View

LAYERS = {
    "conv": ("Conv", "ConvTranspose"),
    "product": ("MatMul", "Gemm", "Attention", "MultiHeadAttention"),
    "recurrent": ("LSTM", "GRU", "RNN"),
}
_GATES = 6
"""Products that a recurrent layer counts as, where no profile tells its share of the time."""
_PACKED = {"int8-weights": 8, "int4-weights": 4}
"""Bits of packed weights, that are read from memory in place of 32."""


class Priors:
    """What is expected of features before the first trial.

    Args:
        view: Its facts and targets count, and the profile of the original.
    """

    def __init__(self, view: View) -> None:
        self._fitted = fitted.load()
        targets = view.space.targets
        self._by_power = 0.5 if view.budget and view.budget.metric.decibels else 1.0
        self._share = _shares(view)
        self._reads = _reading(view, self._fitted.levels["bytes per second"])
        self._units = native(one for t in targets for one in t.capabilities.instruction_sets)
        self._rules = {called(rule) for target in targets for rule in target.rules}
        self._splits = {f"threads={threads}" for target in targets for threads in target.splits}
        self._variants = {
            name
            for target in targets
            for one in target.variants(view.facts, view.space.workload)
            for name in set(chosen(one)) - set(chosen(target.backend))
        }
        self._single = all(getattr(t.backend, "threads", 0) == 1 for t in targets)

    def latency(self, feature: str) -> Normal:
        """Return the prior of a part of the log-ratio."""
        part = self._fitted.part("latency", self.called(feature))
        return Normal(part.mean + part.slope * self.physics(feature), part.sd)

    def strain(self, feature: str) -> Normal:
        """Return the prior of a part of a recipe's strain.

        Steps of the kit take power out of the error; decibels are of its amplitude, half of that.
        """
        part = self._fitted.part("strain", feature)
        scale = self._by_power if feature.startswith("step:") else 1.0
        return Normal(scale * part.mean, scale * part.sd)

    def physics(self, feature: str) -> float:
        """Return what a feature brings where all is as it should be, 0 where nothing is known."""
        kind, _, name = feature.partition(":")
        match kind:
            case "hint":
                precision = name.partition("/")[2]
                gains = self._fitted.gains
                units = (f"{precision}-amx", f"{precision}-avx512")
                gain = next(
                    (gains[one] for one in units if one in self._units and one in gains), 1.0
                )
                return _amdahl(FLOAT_SHARE[Role.WEIGHTS], gain)
            case "family":
                share = self._share
                match name:
                    case "int8-static":
                        return _amdahl(share["conv"] + share["product"], self._gain)
                    case "int8-dynamic":
                        return _amdahl(share["product"] + share["recurrent"], self._gain)
                    case "int8-weights" | "int4-weights":
                        return self._less_read(name)
                return 0.0
            case "family@kind" if name.partition("@")[0] in _PACKED:
                return self._reads
            case "family@hint":
                return self._both(*name.split("@"))
            case "behind":
                return _amdahl(self._share["recurrent"], self._gain)
        return 0.0

    def called(self, feature: str) -> str:
        """Return the name under which a feature's numbers stand.

        A setting by which the space makes a variant for this model is there for a reason.
        """
        kind, _, name = feature.partition(":")
        if kind == "set":
            if name.partition(".")[2] in self._splits:
                return "set:split"
            if name in self._variants:
                return f"variant:{name}"
            return feature if self._single else "set:threaded"
        return "rule:own" if kind == "rule" and name in self._rules else feature

    @property
    def _gain(self) -> float:
        """How many times as fast products of 8-bit integers are as those of floats."""
        gains = self._fitted.gains
        return next(
            (gains[one] for one in ("int8-amx", "int8-vnni") if one in self._units), gains["int8"]
        )

    def _less_read(self, family: str, computing: float = 1.0) -> float:
        """Return the log-ratio of packed weights where the rest takes that share of its time."""
        return math.log(self._reads * _PACKED[family] / 32 + (1 - self._reads) * computing)

    def _both(self, family: str, place: str) -> float:
        """Return what is lost where packed weights meet a hint: it is no help in reading them."""
        if family not in _PACKED:
            return 0.0
        hint = FLOAT_SHARE[Role.WEIGHTS] * self.physics(f"hint:{place}")
        return self._less_read(family, math.exp(hint)) - hint - self._less_read(family)


def _shares(view: View) -> dict[str, float]:
    """Return kind of layer -> its share of the time: measured, or by how many layers there are."""
    if view.by_operator:
        return {
            kind: sum(view.by_operator.get(op, 0.0) for op in some)
            for kind, some in LAYERS.items()
        }
    counts = {
        kind: (_GATES if kind == "recurrent" else 1)
        * sum(view.facts.ops.get(op, 0) for op in some)
        for kind, some in LAYERS.items()
    }
    share = fitted.load().levels["share of layers"] / max(1, sum(counts.values()))
    return {kind: share * count for kind, count in counts.items()}


def _reading(view: View, per_s: float) -> float:
    """Return the share of the original's time that reading its weights from memory takes."""
    first = view.trials[0].measurement
    if first is None:
        return 0.0
    taken = median(first.latency_ns) / 1e9
    read = view.facts.weight_bytes - view.facts.table_bytes
    return min(1.0, read / per_s / taken)


def _amdahl(share: float, gain: float) -> float:
    """Return the log-ratio where a share of the time is so many times as fast (Amdahl's law)."""
    return math.log(1 - share + share / gain)
