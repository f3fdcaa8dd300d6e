"""A worker rolls a model's states through sequences; one step and its states are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortune.core.errors import BadData, OrtuneError, gist
from ortune.core.plugins import codec
from ortune.core.session import Tensors
from ortune.data import stream
from ortune.data.sequences import rolling
from ortune.measurement.job import MAIN
from ortune.measurement.worker.observers import KEPT
from ortune.measurement.worker.workbench import Workbench


def roll(
    bench: Workbench,
    out: str,
    sequences: Sequence[Sequence[int]],
    how: Mapping[str, Any],
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
            why = error.what if isinstance(error, OrtuneError) else gist(error)
            raise BadData(
                f"{where} step {at}: the model does not run: {why}",
                fix=f"check the data and the states ({pairs}); name others with --state OUT:IN",
            ) from error

    where, at = "", 0

    def samples() -> Iterator[Tensors]:
        nonlocal where, at, done
        read = 0
        for number, indices in enumerate(sequences):
            where, given = f"sequence {number}", (bench.sample(index) for index in indices)
            for step, sample in enumerate(rolling.roll(plan, given, run, where)):
                at, done = step, done + 1
                read += sum(array.nbytes for array in sample.values())
                bench.progress("rolling states", done, total)
                yield sample
            if read > KEPT:
                bench.feeds[MAIN].release()
                read = 0

    stream.write(Path(out), samples())
    return {"steps": done}
