"""Scenarios that the search is held to: what was asked, and what comes of the plans it proposes.

Everything is spelled, so that the scenarios outlive any layout of the code.
"""

from __future__ import annotations

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
PLAIN = "avx2"


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
DEEP = facts(Conv=60, Relu=60, MatMul=4, Cast=2)
TRANSFORMER = facts(MatMul=24, Softmax=4, LayerNormalization=9, Erf=4, Add=30)
LSTM = facts(LSTM=2, Gemm=1, Conv=4)
INTEGER = facts(Conv=9, QuantizeLinear=20, DequantizeLinear=20, MatMul=3, Softmax=1)

BUCKETS = "bucketed(mask=mask, lengths=[32, 64])"

BROKEN = (on("int8", verdict="fails", ratio=0.5), on("^rescue", verdict="fails", ratio=0.6))
"""int8 is fast and leaves the budget, and nothing brings it back."""

LEADERS = (
    on("@", ratio=0.9),
    on("int8-static @ cpu", ratio=0.6, verdict="proved"),
    on(r"percentile\) @ cpu", ratio=0.65, verdict="proved"),
)
"""Two leaders on the CPU; settings gain nothing."""

UNTIL_PADDING = (
    *LEADERS,
    on("^baseline", seconds=1),
    on("^search", seconds=50 / 6),
    on("^runtime", seconds=1),
    on("^runtime.*spin=false", ratio=0.55),
)
"""60 seconds pass before the second leader gets the first one's settings."""

SCENARIOS: dict[str, Scenario] = {
    # --- models and machines ----------------------------------------------------------------
    "cnn": Scenario(CNN, seconds=1000),
    "transformer": Scenario(TRANSFORMER, shows=("raise-opset", "fuse-attention", "int4-weights")),
    "lstm": Scenario(LSTM, shows=(r"int8-static \+ int8-dynamic",)),
    "deep": Scenario(
        DEEP,
        on="cpu",
        cpus=4,
        rules=BROKEN,
        shows=("int8-weights.fold=true", "was not saved|observer=entropy"),
    ),
    "integer": Scenario(INTEGER, shows=("requantize", "drop-pairs")),
    "amx": Scenario(CNN, on="openvino", flags=AMX, shows=("precision=f16", "precision=bf16")),
    "no-vnni": Scenario(CNN, flags=PLAIN, shows=("reduce_range=true",)),
    "arm": Scenario(TRANSFORMER, flags="asimd asimddp asimdhp", shows=("precision=f16",)),
    "one-cpu": Scenario(CNN, on="cpu", cpus=1, seconds=300),
    "denormals": Scenario(
        facts(0.02, LSTM=2, MatMul=2), shows=("runtime.*flush_denormals=true", "ops=.LSTM")
    ),
    # --- what was asked ---------------------------------------------------------------------
    "exact": Scenario(
        facts(0.02, MatMul=24, Softmax=4, Erf=4), exact=True, cut=BUCKETS, shows=("clean",)
    ),
    "strict": Scenario(
        CNN, on="cpu", strict=True, rules=(*LEADERS, on("^final.*static @", verdict="likely"))
    ),
    "strict-proved-late": Scenario(
        CNN,
        on="cpu",
        strict=True,
        rules=(*LEADERS, on("^search", verdict="likely"), on("^final", verdict="proved")),
        shows=("best.*final: simplify, int8-static @ cpu",),
    ),
    "likely": Scenario(CNN, on="cpu", rules=(*LEADERS, on("^final.*static @", verdict="likely"))),
    "pins": Scenario(CNN, on="cpu(threads=1, level=extended),openvino(precision=f32)"),
    "splits": Scenario(CNN, on="cpu", workload="throughput", cpus=4, seconds=300),
    "splits-pinned": Scenario(
        CNN, on="cpu(spin=false),openvino(threads=2)", workload="throughput", cpus=4
    ),
    "own-rules": Scenario(
        facts(MatMul=24, Gemm=2, Softmax=4),
        own=("ir-version",),
        shows=(r"clean \+ rules", "ir-version, int8"),
    ),
    "baseline-pinned": Scenario(
        CNN,
        on="cpu(threads=1),openvino",
        baseline="cpu(threads=1)",
        rules=(
            on("@", ratio=0.99),
            on(": simplify, int8-static @ cpu", ratio=0.5, verdict="proved"),
        ),
        shows=(r"quantization: simplify, int8-static @ cpu\(threads=1\)",),
    ),
    "graph-alone": Scenario(
        TRANSFORMER,
        on="cpu",
        rules=(on("@", ratio=0.99, width=0.02), on("fuse-attention @ cpu$", ratio=0.7)),
        shows=('"graph: .*fuse-attention @ cpu"',),
    ),
    # --- rescues ----------------------------------------------------------------------------
    "rescue-succeeds": Scenario(
        CNN,
        on="cpu",
        rules=(*BROKEN, on("equalization, adaptive", ratio=0.55, verdict="proved")),
        shows=("best.*equalization, adaptive",),
    ),
    "rescue-fails": Scenario(CNN, on="cpu", rules=BROKEN, shows=("rescue.*mse", "baseline")),
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
    "rescue-on-two-backends": Scenario(
        TRANSFORMER,
        rules=(
            on("int8-static|int4", verdict="fails", ratio=0.5),
            on("int8-static.*openvino", ratio=0.45),
            on("gptq", verdict="proved", ratio=0.6),
        ),
        shows=("rescue: .*@ openvino", "rescue: .*@ cpu"),
    ),
    "rescue-threshold": Scenario(
        CNN,
        rules=(
            on("@", ratio=0.9, verdict="proved"),
            on(r"keep_first=3\) @ cpu", ratio=0.8),
            on(r"percentile\) @ (cpu|openvino)", verdict="fails", ratio=0.78),
            on(r"percentile\) @ openvino$", ratio=0.775),
        ),
        shows=("rescue: .*@ openvino",),
    ),
    "rescue-of-two-steps": Scenario(LSTM, on="cpu", rules=BROKEN, shows=("rescue",)),
    # --- settings ---------------------------------------------------------------------------
    "settings-threshold": Scenario(
        CNN,
        on="cpu",
        rules=(
            *LEADERS,
            on("^runtime", ratio=0.596),
            on("^runtime.*spin=false", ratio=0.593),
            on("^runtime.*level=extended", ratio=0.586, verdict="proved"),
            on("^runtime.*percentile", ratio=0.595, verdict="proved"),
        ),
        shows=("level=extended, spin=false", "runtime: .*percentile"),
    ),
    "settings-idle": Scenario(
        CNN,
        on="cpu",
        seconds=75,
        rules=(*LEADERS, on("^runtime", ratio=0.5999, verdict="proved")),
        shows=(r"final: .*static @ cpu\"",),
    ),
    "settings-unchanged": Scenario(
        CNN, on="cpu", rules=(*LEADERS, on("^runtime.*spin", does="changes nothing"))
    ),
    "splits-idle": Scenario(
        CNN,
        on="cpu",
        workload="throughput",
        cpus=4,
        rules=(*LEADERS, on(r"percentile\) @ cpu", ratio=0.6001)),
    ),
    # --- finalists --------------------------------------------------------------------------
    "finalists-fall": Scenario(
        CNN, rules=(on("^final", verdict="fails"),), shows=("(final: .*){3}", "search: @ cpu")
    ),
    "finalists-noisy": Scenario(CNN, rules=(on("^final", width=0.9),)),
    "finalists-crash": Scenario(CNN, rules=(on(r"^final: .*@ cpu", does="crashes"),)),
    "finalists-beaten": Scenario(CNN, on="cpu", rules=(*LEADERS, on("^runtime", ratio=0.95))),
    "nothing-faster": Scenario(
        CNN, rules=(on("@", ratio=1.02), on("int8", ratio=1.2)), shows=("best.*: @ cpu",)
    ),
    "ties": Scenario(
        CNN,
        on="cpu",
        rules=(
            on("@", ratio=0.9),
            on("int8-static", ratio=0.6, verdict="proved"),
            on("simplify @ cpu$", ratio=0.605),
            on("keep_first|head|^runtime", ratio=0.8),
        ),
        shows=('"best": "final: simplify @ cpu"',),
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
    "ties-in-settings": Scenario(
        CNN,
        on="cpu",
        rules=(*LEADERS, on("^runtime.*spin", ratio=0.59), on("^final.*spin", ratio=0.597)),
    ),
    # --- time runs out ----------------------------------------------------------------------
    "time-in-plans": Scenario(CNN, seconds=15, shows=('"finished": "time"', "final")),
    "time-at-once": Scenario(CNN, seconds=2, rules=(on("^search", ratio=0.7, verdict="proved"),)),
    "time-to-the-percent": Scenario(
        TRANSFORMER, seconds=5, rules=(on("@", seconds=0.15),), shows=('"finished": "time"',)
    ),
    "time-in-rescue": Scenario(
        CNN, rules=(*BROKEN, on("^rescue", seconds=25)), shows=("time is up: .* was not saved",)
    ),
    "time-in-rescue-to-the-percent": Scenario(
        CNN,
        on="cpu",
        rules=(
            *BROKEN,
            on("^baseline", seconds=1),
            on("^search", seconds=14),
            on("^rescue", seconds=1.5),
        ),
        shows=("was not saved",),
    ),
    "time-in-rescue-alone": Scenario(
        CNN,
        on="cpu",
        rules=(on("@", ratio=1.2), *BROKEN, on("^rescue", seconds=30)),
        shows=("was not saved", '"done"'),
    ),
    "time-in-runtime": Scenario(
        CNN, on="cpu", rules=(*LEADERS, on("^runtime", seconds=25)), shows=('"time"',)
    ),
    "time-before-transfer": Scenario(
        CNN, on="cpu", rules=(*LEADERS, on("^runtime", seconds=11, ratio=0.55)), shows=('"time"',)
    ),
    "time-before-padding": Scenario(
        CNN,
        on="cpu",
        cut=BUCKETS,
        rules=(*UNTIL_PADDING, on("^runtime: .*percentile", seconds=21.5)),
        shows=('"time"',),
    ),
    "time-for-padding": Scenario(
        CNN,
        on="cpu",
        cut=BUCKETS,
        rules=(*UNTIL_PADDING, on("^runtime: .*percentile", seconds=12)),
        shows=("runtime: .*@ bucketed", '"done"'),
    ),
    "time-in-finals": Scenario(
        CNN,
        rules=(on("^final", seconds=90, width=0.4),),
        shows=("time is up, not re-measured: . finalists",),
    ),
    "time-without-a-winner": Scenario(
        CNN,
        rules=(on("^final", seconds=90, verdict="fails"),),
        shows=("time is up, not re-measured: 2 finalists",),
    ),
    # --- a target is reached ----------------------------------------------------------------
    "target-in-plans": Scenario(
        CNN, target=1.8, rules=(*LEADERS, on("static @ cpu", ratio=0.5)), shows=('"target"',)
    ),
    "target-not-confirmed": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(
            *LEADERS,
            on("static @ cpu", ratio=0.5),
            on("^final: .*static @ cpu", ratio=0.6),
            on("keep_first=3", ratio=0.52, verdict="proved"),
            on("^final: .*keep_first=3", verdict="likely"),
        ),
        shows=('"done"',),
    ),
    "target-within-the-noise": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(
            *LEADERS,
            on("static @ cpu", ratio=0.558),
            on("keep_first=3", ratio=0.552, verdict="proved"),
        ),
        shows=('"done"',),
    ),
    "target-falls": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(*LEADERS, on("static @ cpu", ratio=0.5), on("^final", verdict="fails")),
        shows=("(final: .*){2}search",),
    ),
    "target-in-rescue": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(*BROKEN, on("bias|^final", ratio=0.52, verdict="proved")),
        shows=('"target"',),
    ),
    "target-in-runtime": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(*LEADERS, on("runtime.*spin_us=100|^final", ratio=0.52)),
        shows=('"target"',),
    ),
    "target-by-transfer": Scenario(
        CNN,
        on="cpu",
        target=1.8,
        rules=(
            *LEADERS,
            on("spin=false", ratio=0.58),
            on("percentile.*spin=false", ratio=0.5),
        ),
        shows=('runtime: [^"]*percentile', '"target"'),
    ),
    "target-behind-buckets": Scenario(
        TRANSFORMER,
        on="cpu",
        target=1.8,
        cut=BUCKETS,
        rules=(
            on("@", ratio=0.9),
            on("static @ cpu", ratio=0.6, verdict="proved"),
            on("static @ bucketed", ratio=0.5, verdict="proved"),
        ),
        shows=('"target"',),
    ),
    # --- padding ----------------------------------------------------------------------------
    "padding": Scenario(TRANSFORMER, on="cpu", cut=BUCKETS, shows=("runtime: .*@ bucketed",)),
    "padding-leads": Scenario(
        TRANSFORMER,
        cut=BUCKETS,
        rules=(on("@ bucketed", ratio=0.3, verdict="proved"),),
        shows=('"best": "final: .*@ bucketed',),
    ),
    "padding-alone": Scenario(
        TRANSFORMER,
        on="cpu",
        cut=BUCKETS,
        rules=(on("@", ratio=1.2), on("@ bucketed", ratio=0.7)),
        shows=('"best": "final: @ bucketed',),
    ),
    "buckets-asked": Scenario(
        TRANSFORMER, on='bucketed(inner=cpu, mask="mask", lengths=[16])', cut=BUCKETS
    ),
    # --- what goes wrong --------------------------------------------------------------------
    "crashes": Scenario(
        TRANSFORMER,
        rules=(
            on("int8-static", does="crashes"),
            on("int4-weights @", does="changes nothing"),
            on("block=128", ratio=1.2),
            on("^runtime.*(spin=false|pinning=off)", does="crashes"),
        ),
        shows=("int4-weights: nothing to change, not tried",),
    ),
    "interrupted-at-once": Scenario(CNN, rules=(on("^baseline", does="is interrupted"),)),
    "interrupted": Scenario(
        CNN,
        rules=(*LEADERS, on("search.*keep_first", does="is interrupted")),
        shows=('"interrupted"', "best.*search: @ cpu"),
    ),
    "interrupted-in-finals": Scenario(
        CNN, on="cpu", rules=(on("^final: .*spin", does="is interrupted"),)
    ),
    "original-dies": Scenario(
        CNN,
        on="cpu",
        rules=(on("^runtime", does="ends the original"),),
        shows=("stopped running",),
    ),
    "resumed": Scenario(CNN, kept=12, shows=(r"\[\"search: .*keep_first=3\) @ openvino\"",)),
    "resumed-among-rescues": Scenario(
        CNN,
        on="cpu",
        kept=8,
        rules=(*BROKEN, on("^rescue", ratio=0.45)),
        shows=(r"proposals.: \[.rescue",),
    ),
    "resumed-at-the-end": Scenario(CNN, on="cpu", kept=99, shows=(r"proposals.: \[\]",)),
}
