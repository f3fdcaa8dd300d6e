"""Nodes to leave in float, out of a file of measured sensitivities."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortune.core.errors import BadData, BadSettings
from ortune.core.plugins import codec
from ortune.core.step import Step
from ortune.quantization.node_filter import literally

THRESHOLD = 0.01

_COSTS = ("accuracy_cost", "cost")
_FIX = 'give a sensitivity file: [{"nodes": ["name", ...], "accuracy_cost": 0.02}, ...]'


def leave_out(
    steps: Sequence[Step], file: str | Path | None, threshold: float | None
) -> tuple[Step, ...]:
    """Return the steps with the sensitive nodes among what they exclude.

    Raises:
        BadSettings: A threshold without a file, or no step that can exclude nodes.
        BadData: The file cannot be read.
    """
    if file is None:
        if threshold is not None:
            raise BadSettings(
                f"--threshold {threshold:g} is about --exclude-from",
                fix="add --exclude-from FILE, or leave --threshold out",
            )
        return tuple(steps)
    names = sensitive(Path(file), THRESHOLD if threshold is None else threshold)
    if not any(map(_excludes, steps)):
        raise BadSettings(
            "--exclude-from: no step here can leave nodes out",
            fix="it is for int8-static, int8-dynamic and others with a field `exclude`",
        )
    patterns = tuple(map(literally, names))
    return tuple(_without(step, patterns) if _excludes(step) else step for step in steps)


def sensitive(file: Path, threshold: float) -> tuple[str, ...]:
    """Return the layers of all regions that cost more accuracy than the threshold.

    Of a region without `layers` those are all its nodes. One with an `error` and no cost was not
    measured, which says nothing against it.

    Raises:
        BadData: The file is not there, no JSON, or not of this form.
    """
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"{file}: {error.strerror}", fix=_FIX) from None
    except ValueError as error:
        raise BadData(f"{file} is not JSON: {error}", fix=_FIX) from None
    regions = read.get("regions") if isinstance(read, dict) else read
    if not isinstance(regions, list):
        raise BadData(f"{file} holds no list of regions", fix=_FIX)
    found: dict[str, None] = {}
    for index, region in enumerate(regions):
        if _unmeasured(region):
            continue
        cost, nodes = _region(region, f"{file}: region {index}")
        if cost > threshold:
            found |= dict.fromkeys(nodes)
    return tuple(found)


def _without(step: Step, patterns: Sequence[str]) -> Step:
    fields = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    return codec.build(type(step), fields | {"exclude": (*fields["exclude"], *patterns)})


def _unmeasured(region: object) -> bool:
    """Whether `ortune sensitivity` could not measure a region."""
    return (
        isinstance(region, dict)
        and bool(region.get("error"))
        and not list(_costs(region.get("accuracy_cost")))
    )


def _region(region: object, where: str) -> tuple[float, list[str]]:
    if not isinstance(region, dict):
        raise BadData(f"{where} is not a region", fix=_FIX)
    nodes = region.get("layers") or region.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(name, str) for name in nodes):
        raise BadData(f"{where} has no list of node names `nodes`", fix=_FIX)
    given = next((region[key] for key in _COSTS if key in region), None)
    costs = list(_costs(given))
    if not costs or any(cost != cost for cost in costs):
        raise BadData(f"{where} has no accuracy cost, but {given!r}", fix=_FIX)
    return max(costs), nodes


def _costs(given: object) -> Iterator[float]:
    """Yield a value, or of an interval its ends."""
    if isinstance(given, dict):
        yield from _costs(given["value"] if "value" in given else list(given.values()))
    elif isinstance(given, list):
        for one in given:
            yield from _costs(one)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        yield float(given)


def _excludes(step: Step) -> bool:
    return any(field.name == "exclude" for field in dataclasses.fields(step))
