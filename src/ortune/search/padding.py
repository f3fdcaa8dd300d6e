"""Buckets of lengths that cut the padding off calls: proved harmless, chosen by data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.errors import Refused
from ortune.core.event import Progress, Sink, ignore_event
from ortune.core.result import Result
from ortune.core.trial import Interval
from ortune.core.workload import spread_indices
from ortune.data import stream
from ortune.data.padding import Padding, find_padding
from ortune.data.stream import Stream
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.process import Worker, WorkerFailed, compute_outputs, single_model_job
from ortune.search.recipe.compare import compute_snr_db


def choose(
    lengths: Sequence[int],
    width: int,
    count: int,
    cost: Callable[[int], float] = float,
    multiple: int = 1,
) -> tuple[int, ...]:
    """Return at most `count` buckets below `width` that make all calls together cheapest.

    Dynamic programming over the distinct lengths, rounded up: for every number of buckets and
    every length the cheapest way to serve all calls up to it. Calls beyond the last bucket run at
    `width`, which costs no bucket.

    Args:
        lengths: Real positions of every call.
        width: What calls are padded to.
        cost: Of one call at a length; grows with it.
    """
    calls = Counter(min(width, -(-n // multiple) * multiple) for n in lengths)
    places = [n for n in sorted(calls) if n < width]
    upto = np.cumsum([0, *(calls[n] for n in places)])
    whole = cost(width)

    @cache
    def best(end: int, remaining: int) -> tuple[float, tuple[int, ...]]:
        """Serve the first `end` lengths with at most `left` buckets."""
        if not end:
            return 0.0, ()
        if not remaining:
            return float("inf"), ()
        price = cost(places[end - 1])
        options = []
        for start in range(end):
            before, chosen = best(start, remaining - 1)
            total = before + price * float(upto[end] - upto[start])
            options.append((total, (*chosen, places[end - 1])))
        return min(options, key=lambda option: (option[0], len(option[1])))

    ends = [
        (best(end, count)[0] + whole * float(upto[-1] - upto[end]), best(end, count)[1])
        for end in range(len(places) + 1)
    ]
    return min(ends, key=lambda option: (option[0], len(option[1])))[1]


def share(
    lengths: Sequence[int],
    widths: Sequence[int],
    buckets: Sequence[int],
    cost: Callable[[int], float] = float,
) -> float:
    """Return the cost of all calls in buckets, as a share of their cost as padded."""
    computed = (
        next((bucket for bucket in buckets if length <= bucket < width), width)
        for length, width in zip(lengths, widths, strict=True)
    )
    return sum(map(cost, computed)) / sum(map(cost, widths))


def between(measured: Mapping[int, float]) -> Callable[[int], float]:
    """Return the cost at any length from a few that were measured, by straight lines.

    Never falling: a length cannot be cheaper than a shorter one, whatever a timing says. Beyond
    the measured ones the nearest counts.
    """
    at = sorted(measured)
    costs = np.maximum.accumulate([measured[n] for n in at])
    return lambda length: float(np.interp(length, at, costs))


LEAST_DB = 100.0  # cutting only changes the order of sums: float32 stays well above this
_SAMPLES = 16


@dataclass(frozen=True)
class Proof:
    """What runs with and without the padding showed.

    Attributes:
        cut: The backend, cutting each of the samples to its real length.
        snr_db: Output -> signal to noise between the two, over real positions.
    """

    cut: Bucketed
    snr_db: Mapping[str, float]
    samples: int


def prove(
    model: Path,
    backend: Backend,
    padding: Padding,
    stream: Path,
    folder: Path,
    *,
    indices: Sequence[int] = (),
    least_db: float = LEAST_DB,
) -> Proof:
    """Run samples as they are and cut to their real positions, and compare every output.

    Args:
        indices: Samples that may be run; all when empty.
        least_db: What every output must keep.

    Raises:
        Refused: An output changes, or has the length elsewhere than in its second dimension.
        WorkerFailed: The model does not run as it is.
    """
    # Samples with padding, spread over their lengths from short to long.
    allowed = indices or range(len(padding.lengths))
    padded = [i for i in allowed if padding.lengths[i] < padding.widths[i]]
    padded.sort(key=lambda i: (padding.lengths[i], i))
    if not padded:
        raise Refused("none of the samples is padded", fix="give padded ones")
    chosen = [padded[k] for k in spread_indices(len(padded), _SAMPLES)]
    lengths = tuple(sorted({padding.lengths[i] for i in chosen}))
    plain = Bucketed(mask=padding.mask, inputs=padding.inputs, side=padding.side)
    cut = replace(plain.wrap_backend(backend), lengths=lengths)
    long = compute_outputs(
        single_model_job(model, backend, stream, folder, "whole"), chosen, folder / "whole.stream"
    )
    try:
        brief = compute_outputs(
            single_model_job(model, cut, stream, folder, "short"), chosen, folder / "short.stream"
        )
    except WorkerFailed as error:
        raise Refused(
            f"the model does not run without the padding: {error.failure.reason}",
            fix="make the padded length dynamic, such as `ortune apply MODEL "
            '"free-dims(dims=[INPUT.1:length])"`, or leave --buckets out',
        ) from None
    widths, real = ([side[i] for i in chosen] for side in (padding.widths, padding.lengths))
    declared = replace(cut, outputs=_outputs(long, brief, widths, real))
    feeds = Stream(stream)
    expected = [declared.compared(feeds[i], out) for i, out in zip(chosen, long, strict=True)]
    snr_db = {
        name: compute_snr_db(
            [{name: answer[name]} for answer in expected],
            [{name: answer[name]} for answer in brief],
        )
        for name in long.names
    }
    for name, value in snr_db.items():
        if not value >= least_db:
            raise Refused(
                f"output '{name}' changes when padding is cut: SNR {value:.1f} dB, "
                f"at least {least_db:.0f} dB needed",
                fix="leave the calls padded, or repair the model: it computes with padded "
                f"positions (a mean over all of them, a mask '{padding.mask}' that does not hide "
                "them, integer ranges taken at run time)",
            )
    return Proof(declared, snr_db, len(chosen))


def _outputs(
    whole: Stream, short: Stream, widths: Sequence[int], real: Sequence[int]
) -> tuple[str, ...]:
    """Return the outputs that are as long as the inputs."""
    names = []
    for name in whole.names:
        pairs = [(w[name].shape, s[name].shape) for w, s in zip(whole, short, strict=True)]
        if all(whole_shape == short_shape for whole_shape, short_shape in pairs):
            continue
        fits = [
            len(whole_shape) == len(short_shape) > 1
            and whole_shape[1] == width
            and short_shape == (whole_shape[0], length, *whole_shape[2:])
            for (whole_shape, short_shape), width, length in zip(pairs, widths, real, strict=True)
        ]
        if not all(fits):
            whole_shape, short_shape = pairs[fits.index(False)]
            raise Refused(
                f"output '{name}' is {list(whole_shape)} as padded and {list(short_shape)} "
                "without padding",
                fix="only outputs [batch, length, ...] can be given back at their full length; "
                "leave this one out of the model, or the calls padded",
            )
        names.append(name)
    return tuple(names)


COUNT = 4
MULTIPLE = 8
_TIMED = 6
_ROUNDS = 15
_WORTH = 0.98  # buckets that leave more than this of the time are not worth having


@dataclass(frozen=True, repr=False)
class Buckets(Result):
    """Buckets for a model and its data, and what they are worth.

    Attributes:
        backend: What to give to ``--on`` and ``ot.load``: it cuts, and runs as asked.
        latency_ns: Length -> measured latency of a call of that length.
        positions: Share of the padded calls' positions that is computed in buckets.
        least: The same without any padding: as many buckets as lengths.
        predicted: Ratio of latencies, from `latency_ns`.
        measured: The same timed in pairs, with its 99 % interval; None where nobody asked.
    """

    headline = ("backend", "positions", "predicted", "measured")

    backend: Bucketed
    padding: Padding
    proof: Proof
    latency_ns: Mapping[int, int]
    positions: float
    least: float
    predicted: float
    measured: Interval | None = None


def choose_buckets(
    proof: Proof, padding: Padding, count: int, multiple: int, latency_ns: Mapping[int, int]
) -> Buckets:
    """Choose the lengths by measured latencies; by the number of positions where there are none.

    Raises:
        Refused: They gain next to nothing.
    """
    cost = between(latency_ns) if latency_ns else float
    width = max(padding.widths)
    lengths = choose(padding.lengths, width, count, cost, multiple)
    predicted = share(padding.lengths, padding.widths, lengths, cost)
    if predicted > _WORTH:
        raise Refused(
            f"{100 * padding.share:.1f} % of the positions are padding, and without them a call "
            f"takes {100 * predicted:.0f} % of its time: nothing to gain",
            fix="leave the calls padded",
        )
    return Buckets(
        replace(proof.cut, lengths=lengths),
        padding,
        proof,
        latency_ns,
        share(padding.lengths, padding.widths, lengths),
        sum(padding.lengths) / sum(padding.widths),
        predicted,
    )


def choose_position_buckets(
    model: Path, backend: Backend, samples: Path, folder: Path, indices: Sequence[int]
) -> Buckets:
    """Return buckets for a search: by positions alone, so that the same data give the same.

    Args:
        backend: Where padding is proved to be without effect.
        indices: Samples that the proof may use.

    Raises:
        BadData: The data show no padding that could be cut.
        Refused: An answer changes without it, or nothing is gained.
        WorkerFailed: The model does not run.
    """
    padding = find_padding(model_facts.read_facts(file.load(model)).inputs, Stream(samples))
    proof = prove(model, backend, padding, samples, folder, indices=indices)
    return choose_buckets(proof, padding, COUNT, MULTIPLE, {})


def time_lengths(
    model: Path,
    backend: Backend,
    cut: Bucketed,
    padding: Padding,
    samples: Path,
    folder: Path,
    *,
    multiple: int,
    sink: Sink = ignore_event,
) -> dict[int, int]:
    """Return length -> median latency in nanoseconds, at a few lengths that occur.

    Each is timed on a sample cut to it, with all positions marked real. All take turns.
    """
    width = max(padding.widths)
    occur = sorted({min(width, -(-n // multiple) * multiple) for n in padding.lengths} | {width})
    lengths = [occur[k] for k in spread_indices(len(occur), _TIMED)]
    if lengths[-1] != width:
        lengths[-1] = width
    whole = Stream(samples)[padding.widths.index(width)]
    stream_file = folder / "lengths.stream"
    stream.write_stream(stream_file, (_full(cut.cut_feeds(whole, n), cut.mask) for n in lengths))
    latencies_ns: dict[int, list[int]] = {n: [] for n in lengths}
    with Worker(single_model_job(model, backend, stream_file, folder, "lengths")) as worker:
        worker.ask("load")
        for turn in range(_ROUNDS + 1):
            sink(Progress("timing lengths", turn, _ROUNDS + 1))
            for place, length in enumerate(lengths):
                answer = worker.ask("burst", at=place, runs=1)
                if turn:  # the first run at a length allocates, and may compile
                    latencies_ns[length] += answer["latency_ns"]
    return {n: int(median(times_ns)) for n, times_ns in latencies_ns.items()}


def _full(sample: Mapping[str, Any], mask: str) -> dict[str, Any]:
    return {**sample, mask: np.ones_like(sample[mask])}
