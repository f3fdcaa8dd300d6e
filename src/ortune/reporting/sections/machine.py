"""Where and with what it was measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.section import Block, Heading, Section, Table
from ortune.core.study import Study


@dataclass(frozen=True)
class MachineSection(Section):
    """CPU, instruction sets, CPUs that could be used, and versions: results hold for these."""

    order: ClassVar[int] = 70

    def blocks(self, study: Study) -> Iterable[Block]:
        job = study.job
        rows = [*job.machine.items(), *job.versions.items()]
        if rows:
            yield Heading("Machine and versions", folded=True)
            yield Table(("part", "value"), tuple(rows))
