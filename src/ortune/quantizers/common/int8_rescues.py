"""What to try where plain int8 fails the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ortune.core.facts import Facts
from ortune.core.observer import Observer
from ortune.core.plugins import catalog, codec
from ortune.core.roles import Role, find_plugin
from ortune.core.step import Quantizer, Step, Transform

Kit: TypeAlias = Sequence[tuple[Role, ...]]

CONVOLUTIONS: Kit = (
    (Role.ROUNDS,),
    (Role.EQUALIZES, Role.ROUNDS),
    (Role.CORRECTS,),
    (Role.EQUALIZES,),
    (Role.CLIPS,),
)
"""The accuracy kit in front of convolutions, best bet first: see docs/quantizing.md."""

SMOOTHED: Kit = ((Role.SMOOTHS, Role.ROUNDS), (Role.SMOOTHS, Role.CORRECTS))
"""In front of matrix products whose inputs are smoothed already."""

TRANSFORMERS: Kit = ((Role.SMOOTHS,), *SMOOTHED, (Role.ROUNDS,))
"""In front of matrix products."""

DYNAMIC: Kit = ((Role.ROUNDS,), (Role.SMOOTHS, Role.ROUNDS), (Role.SMOOTHS,))
"""In front of products whose inputs are rounded at run time."""

OBSERVERS = ("percentile", "mse", "entropy")


def count_convolutions(facts: Facts) -> int:
    """Return how many convolutions a network has."""
    return facts.ops.get("Conv", 0) + facts.ops.get("ConvTranspose", 0)


def count_products(facts: Facts) -> int:
    """Return how many matrix products a network has."""
    return facts.ops.get("MatMul", 0) + facts.ops.get("Gemm", 0)


def has_head(facts: Facts, least: int) -> bool:
    """Say whether a last product of `least` columns may become integer: an output is as wide."""
    lasts = [output.shape[-1] for output in facts.outputs if output.shape]
    wide = not lasts or any(not isinstance(last, int) or last >= least for last in lasts)
    return count_products(facts) > 0 and wide


def prepend_static_kit(
    last: Quantizer, facts: Facts, *, smoothed: bool
) -> Iterator[tuple[Step, ...]]:
    """Yield the accuracy kit in front of a static int8 step.

    Args:
        last: The step; it must leave weights as they are before it rounds them.
        smoothed: Whether the search came from smoothed activations, which the kit then keeps.
    """
    plain = count_convolutions(facts) >= count_products(facts)
    yield from prepend_kit(last, SMOOTHED if smoothed else CONVOLUTIONS if plain else TRANSFORMERS)


def prepend_kit(last: Quantizer, kit: Kit) -> Iterator[tuple[Step, ...]]:
    """Yield what of a kit is installed, each in front of the step that rounds the weights."""
    for roles in kit:
        steps = [step for role in roles if (step := _make_step(role, last)) is not None]
        if len(steps) == len(roles):
            yield (*steps, last)


def find_weight_storage() -> Iterator[Quantizer]:
    """Yield the step that stores weights as integers and computes as fast as float."""
    if (cls := find_plugin(Quantizer, Role.WEIGHTS)) is not None:
        yield codec.build_dataclass(cls, {"fold": True})


def list_other_observers(observer: Observer) -> Iterator[Observer]:
    """Yield the observers that clip, less the one in use."""
    for name in OBSERVERS:
        if name in catalog.list_plugins(Observer) and name != observer.name():
            yield catalog.load_plugin(Observer, name)()


def _make_step(role: Role, last: Quantizer) -> Step | None:
    """Return a step of the kit for the step that follows it; None where none is installed."""
    if role is Role.EQUALIZES:
        equalizer = find_plugin(Transform, role)
        return equalizer() if equalizer is not None else None
    cls = find_plugin(Quantizer, role)
    meant = vars(type(last)).get("role") is Role.STATIC and last == type(last)()
    fields = {} if meant else {"before": last}
    return codec.build_dataclass(cls, fields) if cls is not None else None
