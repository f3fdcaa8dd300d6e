"""For a search: the buckets that its data want, where padding is without effect."""

from __future__ import annotations

from collections.abc import Callable

from ortune.analysis.padding.buckets import proposed
from ortune.backends.bucketed import Bucketed
from ortune.core.errors import BadData, OrtuneError
from ortune.experiment.context import Context
from ortune.measurement.job import MAIN
from ortune.measurement.process import WorkerFailed, worker_folder


def unpadded(context: Context, note: Callable[[str], None]) -> Bucketed | None:
    """Return the baseline behind buckets; None where padding cannot be cut, or gains nothing.

    That padding is without effect is proved on the original as it came; what a plan itself
    answers behind the buckets is scored like any other plan's.
    """
    if set(context.models) != {MAIN}:
        return None
    folder = worker_folder(context.root / "workers", "padding")
    folder.mkdir(parents=True, exist_ok=True)
    indices = () if context.evaluate else context.parts["search"].indices
    model, samples = context.models[MAIN], context.feeds[MAIN]
    try:
        found = proposed(model, context.job.baseline, samples, folder, indices)
    except BadData:
        return None
    except WorkerFailed as error:
        note(f"padding is not cut: {error.failure.reason}")
        return None
    except OrtuneError as error:
        note(f"padding is not cut: {error.what}")
        return None
    note(
        f"{100 * found.padding.share:.0f} % of the positions are padding: cut in buckets of "
        f"{', '.join(map(str, found.backend.lengths))}, which compute "
        f"{100 * found.positions:.0f} % of them"
    )
    return found.backend
