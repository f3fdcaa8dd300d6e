"""What quantizers are to each other: found by the role that they declare, never by name."""

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

from ortune.core.plugins import catalog
from ortune.core.step import Quantizer, Step, Transform

S = TypeVar("S", Quantizer, Transform)


class Role(Enum):
    """Declared by a plugin as its class variable ``role``."""

    STATIC = "integer arithmetic with calibrated activation ranges"
    DYNAMIC = "integer arithmetic with activation ranges computed at run time"
    WEIGHTS = "integer weights, float arithmetic"
    HALVES = "16-bit floats"
    EQUALIZES = "prepares weights: equalizes channel ranges of neighbouring layers"
    SMOOTHS = "prepares weights: moves activation outliers into them"
    ROUNDS = "prepares weights: rounds them to change layer outputs least"
    CORRECTS = "prepares weights: corrects biases by the mean rounding error"
    CLIPS = "prepares weights: clips the largest values for a smaller scale"


PREPARES = frozenset({Role.EQUALIZES, Role.SMOOTHS, Role.ROUNDS, Role.CORRECTS, Role.CLIPS})
"""Roles of steps that leave the precision to a later one."""
_ROUNDS = frozenset({Role.ROUNDS, Role.CORRECTS, Role.CLIPS})
"""Those of them after which the model in float answers otherwise."""


def find_step_role(step: Step) -> Role | None:
    """Return the role that a step's class declares itself; None where it declares none."""
    value = vars(type(step)).get("role")
    return value if isinstance(value, Role) else None


def find_deciding_step(steps: Sequence[Step]) -> int | None:
    """Return the index of the step that decides the layers' precision; None where none does.

    It is the last quantizer that does more than prepare weights for another.
    """
    for index, step in reversed(list(enumerate(steps))):
        if isinstance(step, Quantizer) and find_step_role(step) not in PREPARES:
            return index
    return None


def before_rounding(steps: Sequence[Step]) -> Sequence[Step]:
    """Return steps but the last of them after which the model in float answers otherwise."""
    end = len(steps)
    while end and find_step_role(steps[end - 1]) in _ROUNDS:
        end -= 1
    return steps[:end]


def find_plugin(kind: type[S], role: Role) -> type[S] | None:
    """Return the first plugin by name that declares a role itself; None where there is none."""
    for name in catalog.list_plugins(kind):
        cls = catalog.load_plugin(kind, name)
        if vars(cls).get("role") is role:
            return cls
    return None


def make_static_int8() -> Quantizer:
    """Return the integer step that is meant where none is given, with its defaults."""
    cls = find_plugin(Quantizer, Role.STATIC)
    assert cls is not None
    return cls()
