"""For a search: the step that fixes the inputs' sizes, where all samples have one shape."""

from collections.abc import Iterator, Mapping

from ortune.core.facts import TensorSpec
from ortune.core.plugins import catalog, codec
from ortune.core.step import AS_IS, Recipe, Transform
from ortune.core.trial import Plan, Trial
from ortune.data.stream import Stream
from ortune.measurement.job import MAIN
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.recipe.space import Space

_SHARE = 0.5
"""Of the seconds of the winner's final that must be left to measure it with fixed sizes, once."""


class UnfixableSizes(Exception):
    """The sizes cannot be fixed; the text says why."""


def make_fix_dims(context: Context) -> Transform:
    """Return the step that gives every dynamic dimension the size that all samples have.

    Raises:
        UnfixableSizes: There is no such step.
    """
    if set(context.models) != {MAIN}:
        raise UnfixableSizes("several models are tuned together")
    inputs = context.facts.inputs
    if all(spec.shape is not None and _dynamic_axes(spec) == () for spec in inputs):
        raise UnfixableSizes("the model has no dynamic dimension")
    if context.job.workload.batch > 1:
        raise UnfixableSizes("runs of several samples are timed, and single ones scored")
    material = context.materials[MAIN].feeds
    streams = {context.feeds[MAIN], *((material.stream,) if material is not None else ())}
    seen: dict[str, set[tuple[int, ...]]] = {}
    for path in streams:
        for input_name, shapes in Stream(path).shapes.items():
            seen.setdefault(input_name, set()).update(shapes)
    sizes: dict[str, int] = {}
    for spec in inputs:
        for name, size in _list_sizes(spec, seen):
            if sizes.setdefault(name, size) != size:
                raise UnfixableSizes(f"'{name}' is {sizes[name]} and {size} in one sample")
    dims = tuple(f"{name}:{size}" for name, size in sizes.items())
    return codec.build_dataclass(catalog.load_plugin(Transform, "fix-dims"), {"dims": dims})


def _dynamic_axes(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(i for i, dim in enumerate(spec.shape or ()) if not isinstance(dim, int))


def _list_sizes(
    spec: TensorSpec, seen: Mapping[str, set[tuple[int, ...]]]
) -> Iterator[tuple[str, int]]:
    """Yield the dimensions of an input as `fix-dims` names them, with their sizes."""
    shapes = seen.get(spec.name, set())
    if len(shapes) != 1:
        raise UnfixableSizes(f"'{spec.name}' has {len(shapes)} shapes in the samples")
    (shape,) = shapes
    if spec.shape is None or len(spec.shape) != len(shape):
        raise UnfixableSizes(f"the rank of '{spec.name}' is not known")
    for axis in _dynamic_axes(spec):
        name = spec.shape[axis]
        yield str(name) if name else f"{spec.name}.{axis}", shape[axis]


def note_fixed_shapes(
    attempts: Attempts, space: Space, winner: Trial | None, remaining_s: float
) -> None:
    """Note what the winner gains with fixed sizes, where that was not asked for and can be.

    It is timed against the winner itself (None: the original stays), in the time that is left,
    and kept nowhere: a model that takes one size is handed out on request alone.
    """
    if space.fixing is None or space.fixed:
        return
    plan = Plan(AS_IS, space.baseline) if winner is None else winner.plan
    advice = "all samples have one shape: --fixed-shapes makes a model of it that takes no other"
    if attempts.context.job.emulated:
        attempts.add_note(f"{advice}; its gain cannot be measured (the CPU is emulated)")
        return
    cost = winner.seconds if winner is not None else 0.0
    if remaining_s <= max(_SHARE * cost, 3 * attempts.pair_seconds):
        attempts.add_note(f"{advice}; its gain was not measured (out of time)")
        return
    steps = plan.recipe.steps or (catalog.load_plugin(Transform, "simplify")(),)  # to fold
    fixed = Plan(Recipe(plan.recipe.name, (space.fixing, *steps)), plan.backend)
    interval = attempts.time_against(fixed, plan)
    label = "winner" if winner is not None else "original"
    if interval is None:
        attempts.add_note(f"{advice}; the {label} does not run so")
    elif interval.high < 1:
        attempts.add_note(f"{advice}; the {label} then needs {interval} of its time")
    else:
        attempts.add_note(f"{advice}; no gain on the {label} (within noise): {interval}")
