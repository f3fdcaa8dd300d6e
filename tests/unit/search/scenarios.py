"""Scenarios that the search is held to: what was asked, and what comes of the plans it proposes.

Everything is spelled, so that the scenarios outlive any layout of the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortune.core.facts import Facts

LISTED = {
    "transforms": (
        "cross-layer-equalization",
        "fuse-attention",
        "fuse-gelu",
        "simplify",
        "split-conv-transpose",
    ),
    "quantizers": (
        "adaptive-rounding",
        "bf16",
        "bias-correction",
        "clip-weights",
        "drop-pairs",
        "float-convs",
        "fp16",
        "fp8",
        "int4-weights",
        "int8-dynamic",
        "int8-static",
        "int8-weights",
        "requantize",
        "smooth-quant",
    ),
}
"""The plugins that a scenario's search finds: another one changes no golden file."""

VNNI = "avx2 avx512_vnni avx512_bf16"
AMX = f"{VNNI} amx_bf16 avx512_fp16"


@dataclass(frozen=True)
class Outcome:
    """What comes of a plan.

    Attributes:
        ratio: Of its latency to the original's.
        verdict: proved, likely or fails.
        width: Of the ratio's interval to either side, relative.
        seconds: That pass meanwhile.
        lost: Over what may be lost, where that is told.
        does: crashes, changes nothing, is interrupted, ends the original; or nothing of that.
    """

    ratio: float
    verdict: str
    width: float = 0.01
    seconds: float = 1.0
    does: str = ""
    lost: float = 0.0


@dataclass(frozen=True)
class Piece:
    """A region as it truly is.

    Attributes:
        gains: Share of the original's latency that integers save there.
        loses: Of what may be lost, alone.
    """

    name: str
    gains: float
    loses: float


@dataclass(frozen=True)
class Rule:
    """Part of an outcome, for all plans in which a pattern occurs.

    Attributes:
        where: Looked for in ``STAGE: STEPS @ BACKEND``.
        gives: Fields of the outcome.
    """

    where: str
    gives: Mapping[str, Any]


@dataclass(frozen=True)
class Scenario:
    """One search.

    Attributes:
        on: As `optimize` takes it, like `workload`, `baseline` and `target`.
        own: Rules of the user's.
        rules: Of the script; the last one that fits counts.
        cpus: That may be used.
        flags: Instruction sets.
        cut: The original behind buckets, where its data are padded.
        pieces: Of the model: what its integer plans gain and lose. None: it has no regions.
        by_region: Whether regions are asked for, where there are some.
        together: Of the sum of single losses what all lose together; of single gains likewise.
        kept: Trials of an earlier run of it that are known already.
        shows: What must be found in the record: the reason why the scenario is here.
    """

    facts: Facts
    on: str = "cpu,openvino"
    rules: tuple[Rule, ...] = ()
    seconds: float = 100.0
    target: float | None = None
    strict: bool = False
    exact: bool = False
    workload: str = "latency"
    baseline: str = "cpu"
    own: tuple[str, ...] = ()
    cpus: int = 2
    flags: str = VNNI
    cut: str = ""
    pieces: tuple[Piece, ...] = ()
    together: tuple[float, float] = (1.0, 1.0)
    by_region: bool = True
    kept: int = 0
    shows: tuple[str, ...] = ()


def on(where: str, **gives: Any) -> Rule:
    """Return a rule."""
    return Rule(where, gives)


def facts(denormals: float | None = None, **ops: int) -> Facts:
    """Return the facts of a network of these operators."""
    count = sum(ops.values())
    return Facts(ops, count, 1, 1, {}, 17, 8, (), (), denormals=denormals)


CNN = facts(Conv=20, Relu=20, Gemm=1)
TRANSFORMER = facts(MatMul=24, Softmax=4, LayerNormalization=9, Erf=4, Add=30)
LSTM = facts(LSTM=2, Gemm=1, Conv=4)

BUCKETS = "bucketed(mask=mask, lengths=[32, 64])"

BROKEN = (on("int8", verdict="fails", ratio=0.5), on("^rescue", verdict="fails", ratio=0.6))
"""int8 is fast and leaves the budget, and nothing brings it back."""

LEADERS = (
    on("@", ratio=0.9),
    on("int8-static @ cpu", ratio=0.6, verdict="proved"),
    on(r"percentile\) @ cpu", ratio=0.65, verdict="proved"),
)
"""Two leaders on the CPU; settings gain nothing."""

SCENARIOS: dict[str, Scenario] = {
    "transformer": Scenario(TRANSFORMER, shows=("raise-opset", "fuse-attention", "int4-weights")),
    "lstm": Scenario(LSTM, shows=(r"int8-static \+ int8-dynamic",)),
    "amx": Scenario(CNN, on="openvino", flags=AMX, shows=("precision=f16", "precision=bf16")),
    "exact": Scenario(
        facts(0.02, MatMul=24, Softmax=4, Erf=4), exact=True, cut=BUCKETS, shows=("clean",)
    ),
    "rescue-two-quantizers": Scenario(
        TRANSFORMER,
        on="cpu",
        rules=(
            on("int8-static", verdict="fails", ratio=0.5),
            on("int4-weights", verdict="fails", ratio=0.4),
            on("bias-correction", verdict="proved", ratio=0.55),
        ),
        shows=("rescue: int4-weights.*rescue: smooth-quant.*bias-correction",),
    ),
    "finalists-fall": Scenario(
        CNN, rules=(on("^final", verdict="fails"),), shows=("(final: .*){3}", "search: @ cpu")
    ),
    "ties-exact-first": Scenario(
        CNN,
        rules=(
            on("@", ratio=0.9),
            on(r"^(search|final): @ openvino\(precision=bf16\)$", ratio=0.6, verdict="proved"),
            on(": simplify @ cpu$", ratio=0.605),
        ),
        shows=('"best": "final: simplify @ cpu"',),
    ),
    "time-in-plans": Scenario(CNN, seconds=15, shows=('"finished": "time"', "final")),
    "time-in-runtime": Scenario(
        CNN, on="cpu", rules=(*LEADERS, on("^runtime", seconds=25)), shows=('"time"',)
    ),
    "target-in-rescue": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(*BROKEN, on("bias|^final", ratio=0.52, verdict="proved")),
        shows=('"target"',),
    ),
    "padding-leads": Scenario(
        TRANSFORMER,
        cut=BUCKETS,
        rules=(on("@ bucketed", ratio=0.3, verdict="proved"),),
        shows=('"best": "final: .*@ bucketed',),
    ),
    "crashes": Scenario(
        TRANSFORMER,
        rules=(
            on("int8-static", does="crashes"),
            on("int4-weights @", does="changes nothing"),
            on("block=128", ratio=1.2),
            on("^runtime.*(spin=false|pinning=off)", does="crashes"),
        ),
    ),
    "interrupted": Scenario(
        CNN,
        rules=(*LEADERS, on("search.*keep_first", does="is interrupted")),
        shows=('"interrupted"', "best.*search: @ cpu"),
    ),
    "original-dies": Scenario(
        CNN,
        on="cpu",
        rules=(on("^runtime", does="ends the original"),),
        shows=("stopped running",),
    ),
}
