"""Graph optimizers of onnxruntime by name: those that changed a model, and those to blame."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

from ortune.backends.runtimes.onnxruntime.messages import capture_log
from ortune.core.errors import OrtuneError

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


def list_active_optimizers(opening: AbstractContextManager[object]) -> list[str]:
    """Return the optimizers that change a model while a session opens, or fail to, in order.

    Of those made of rules the rules come first, in the names that `disable` takes.

    Args:
        opening: Opens the session, with the runtime's log at its most verbose.
    """
    with capture_log(repeat=False) as log, suppress(OrtuneError), opening:
        pass
    active: dict[str, None] = {}
    begun = ""
    for line in log.text.splitlines():
        if match := _BEGUN.search(line):
            begun = match[1]
        elif match := _ENDED.search(line):
            begun = ""
            if match[2] != "0" or match[3] != "OK":
                active[match[1]] = None
    if begun:  # it threw, which ends the log
        active[begun] = None
    threw = dict.fromkeys(_THREW.findall(log.text))  # by class, which is mostly the name
    active |= threw
    groups = [name for name in active if name.endswith(_RULE_BASED)]
    rules = _RULES if groups or threw else ()
    return [*(name for name in active if name not in groups), *rules, *groups]


def find_culprits(
    optimizers: Sequence[str], is_right: Callable[[Sequence[str]], bool]
) -> tuple[str, ...] | None:
    """Return the fewest optimizers without which a model is right, by halving; None without any.

    Where several do, the earlier ones of `optimizers` are taken.

    Args:
        is_right: Whether the model is right without these optimizers.
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
