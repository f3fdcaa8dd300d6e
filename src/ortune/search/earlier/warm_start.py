"""A search begins with what paid on this kind of machine before, and leaves what paid in it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.hardware.paid import Paid
from ortune.core.study import Study
from ortune.core.wording import count
from ortune.experiment.context import Context
from ortune.experiment.ledger import read_header, read_study, write_header
from ortune.measurement.capabilities import capabilities
from ortune.search.earlier.machine_record import MachineRecord, machine_kind
from ortune.search.earlier.tallies import tallied
from ortune.search.request import Optimize


def record_for(asked: Optimize) -> MachineRecord | None:
    """Return the record for a job on this machine; None where it is off or has no place."""
    if not asked.warm_start:
        return None
    original = asked.original
    return MachineRecord.of(machine_kind(original, asked.driven, capabilities(original)))


def begun(
    context: Context, record: MachineRecord | None, sink: Sink, *, by_region: bool = True
) -> Context:
    """Return the context with all that the run knows before its first trial: its header's.

    Before that trial the record is copied into the header; later the header alone counts, so that
    a run goes on, or is replayed, whatever the record says by then.

    Args:
        by_region: Whether this command lets plans differ in precision by region.
    """
    header = read_header(context.root)
    assert header is not None, "a prepared run has a header"
    if record is not None and not (context.root / "ledger.jsonl").is_file():
        header = replace(header, paid=_read(record, sink))
        write_header(context.root, header)
    return replace(
        context,
        paid=header.paid,
        by_operator=header.by_operator,
        by_region=by_region and header.by_region,
    )


def _read(record: MachineRecord, sink: Sink) -> Paid:
    try:
        found = record.read()
    except BadData as error:
        sink(Note(error.what))
        return Paid()
    if found.tallies:
        many = count(len(found.tallies), "kind")
        text = f"known from earlier searches on this kind of machine: {many} of plans"
        sink(Note(f"{text} ({record.path}; --no-warm-start leaves it out)"))
    return found


def concluded(root: Path) -> bool:
    """Whether an earlier command brought the run to its end: then its trials are counted."""
    with suppress(OrtuneError):
        return read_study(root).finished != "interrupted"
    return False


def learn(study: Study, record: MachineRecord, sink: Sink) -> None:
    """Add what paid to the record of the machine; a record that cannot be written is said."""
    try:
        record.add(tallied(study.trials, study.header.facts))
    except OrtuneError as error:
        sink(Note(f"what paid is not recorded: {error.what}"))
