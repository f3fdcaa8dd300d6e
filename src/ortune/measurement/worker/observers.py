"""A worker's calibration tasks: observe tensors while samples run, in constant memory.

What is held is one run's outputs and one accumulator for each probe and group of samples. The
files are the parent's (`ortune.quantizers.calibration.calibrate`): a model that gives out what is
watched.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, OrtuneError, summarize_error
from ortune.core.hardware.memory import peak_rss
from ortune.core.observer import Accumulator, Moments, Probe, Range
from ortune.core.plugins import codec
from ortune.core.session import Tensors
from ortune.data import stream
from ortune.data.sequences import rolling
from ortune.measurement.job import MAIN
from ortune.measurement.worker.workbench import Workbench


def roll(
    bench: Workbench, out: str, sequences: Sequence[Sequence[int]], how: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the samples with the states that the model gives, sequence by sequence.

    Args:
        out: Stream file to write.
        sequences: Samples of each, in order.
        how: A `rolling.Rolling`.

    Raises:
        BadData: The model does not run on what it gave, or that does not fit.
    """
    plan, session = codec.decode(rolling.Rolling, dict(how)), bench.sessions[MAIN]
    total, done = sum(map(len, sequences)), 0
    pairs = ", ".join(str(pair) for pair in plan.pairs[:3])

    def run(sample: Tensors) -> Mapping[str, NDArray[Any]]:
        try:
            return session.run(sample)
        except Exception as error:
            why = error.what if isinstance(error, OrtuneError) else summarize_error(error)
            raise BadData(
                f"{where} step {at}: the model does not run: {why}",
                fix=f"check the data and the states ({pairs}); name others with --state OUT:IN",
            ) from error

    where, at = "", 0

    def samples() -> Iterator[Tensors]:
        nonlocal where, at, done
        read = 0
        for number, indices in enumerate(sequences):
            where, inputs = f"sequence {number}", (bench.sample(index) for index in indices)
            for step, sample in enumerate(rolling.roll_sequence(plan, inputs, run, where)):
                at, done = step, done + 1
                read += sum(array.nbytes for array in sample.values())
                bench.report_progress("rolling states", done, total)
                yield sample
            if read > KEPT:
                bench.feeds[MAIN].release()
                read = 0

    stream.write_stream(Path(out), samples())
    return {"steps": done}


KEPT = 64 * 2**20
"""Bytes of samples after which the mapped file is let go: its pages count as memory in use."""


def extents(
    bench: Workbench, model: str, indices: Sequence[int], watches: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Run the largest sample; return how many elements each tensor has, and one of its shapes.

    The outputs of the model's file are shapes.
    """
    sizes = [sum(array.nbytes for array in bench.sample(i).values()) for i in indices]
    largest = indices[int(np.argmax(sizes))]
    sizes_by_tensor: dict[str, Any] = {}
    with bench.job.backend.open(Path(model), verbose=bench.job.verbose) as session:
        values = session.run(bench.sample(largest))
        for watch in watches:
            shapes = [shape.astype(np.int64) for shape in iterate_pieces(values, watch)]
            count = sum(int(np.prod(shape)) for shape in shapes)
            shape = shapes[0].tolist() if shapes else []
            sizes_by_tensor[watch["tensor"]] = {"elements": count, "shape": shape}
    return {"extents": sizes_by_tensor}


def observe(
    bench: Workbench,
    model: str,
    groups: Sequence[Sequence[int]],
    watches: Sequence[Mapping[str, Any]],
    probes: Sequence[Mapping[str, Any]],
    keep: str,
) -> dict[str, Any]:
    """Answer every probe for every group of samples; each pass runs each sample once.

    Args:
        model: A file whose outputs are what is watched.
        groups: Sample indices; groups may overlap.
        keep: Path without suffix, for files of moments.

    Returns:
        ``answers``: one list a group, an answer a probe, None for tensors that held no value.
    """
    decoded_probes = [codec.decode(Probe, dict(data)) for data in probes]
    states = [[_ProbeState(probe) for probe in decoded_probes] for _ in groups]
    read = 0
    with bench.job.backend.open(Path(model), verbose=bench.job.verbose) as session:
        passes = max((probe.observer.passes for probe in decoded_probes), default=0)
        groups_of: dict[int, list[int]] = {}  # each sample once, in order of first mention
        for number, members in enumerate(groups):
            for index in dict.fromkeys(members):
                groups_of.setdefault(index, []).append(number)
        order = list(groups_of.items())
        for turn in range(passes):
            for place, (index, members) in enumerate(order):
                bench.report_progress(
                    "calibrating", turn * len(order) + place, passes * len(order)
                )
                feeds = bench.sample(index)
                values: dict[str, Any] = {**feeds, **session.run(feeds)}
                for place, watch in enumerate(watches):
                    for piece in iterate_pieces(values, watch):
                        for member in members:
                            states[member][place].update(turn, piece)
                read += sum(array.nbytes for array in feeds.values())
                del values, feeds
                if read > KEPT:
                    read = 0
                    bench.feeds[MAIN].release()
    answers = [
        [seen.answer(f"{keep}-{group}-{place}") for place, seen in enumerate(row)]
        for group, row in enumerate(states)
    ]
    return {"answers": answers, "peak_rss": peak_rss(), "cpu_ns": time.process_time_ns()}


def iterate_pieces(values: Mapping[str, Any], watch: Mapping[str, Any]) -> Iterator[NDArray[Any]]:
    """Yield the tensor as it was in each turn of the bodies that it is in."""
    arrays = values[watch["output"]]
    for array in arrays if isinstance(arrays, list) else [arrays]:
        stacked = int(watch["stacked"])
        if not stacked:
            yield array
        elif array.size:
            yield from array.reshape(-1, *array.shape[stacked:])


class _ProbeState:
    """One probe in one group of samples."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._state: Accumulator = probe.observer.start()
        self._any = False

    def update(self, turn: int, values: NDArray[Any]) -> None:
        if not values.size or turn >= self._probe.observer.passes:
            return
        if values.dtype.kind not in "fiub" and values.dtype.isbuiltin == 1:
            raise BadData(
                f"tensor '{self._probe.tensor}' holds {values.dtype}, not numbers",
                fix="watch tensors of numbers",
            )
        self._any = True
        try:
            self._state.update(turn, values)
        except BadData as error:
            raise BadData(f"tensor '{self._probe.tensor}': {error.what}", fix=error.fix) from None

    def answer(self, keep: str) -> dict[str, Any] | None:
        """Return the range as JSON data; moments go into files whose names begin with `keep`."""
        if not self._any:
            return None
        result = self._state.result()
        data: dict[str, Any] = {"low": result.low, "high": result.high}
        if result.channels:
            data["channels"] = codec.encode(result.channels)
        if result.moments is not None:
            Path(keep).parent.mkdir(parents=True, exist_ok=True)
            for part in ("mean", "second"):
                np.save(f"{keep}-{part}.npy", getattr(result.moments, part))
            data["moments"] = {"count": result.moments.count, "files": keep}
        return data


def decode_range(data: Mapping[str, Any]) -> Range:
    """Read an answer of `observe`; moments stay in their files until they are used."""
    moments = None
    if stored := data.get("moments"):
        mean, second = (
            np.load(f"{stored['files']}-{part}.npy", mmap_mode="r") for part in ("mean", "second")
        )
        moments = Moments(int(stored["count"]), mean, second)
    channels = tuple((float(low), float(high)) for low, high in data.get("channels", ()))
    return Range(float(data["low"]), float(data["high"]), channels, moments)
