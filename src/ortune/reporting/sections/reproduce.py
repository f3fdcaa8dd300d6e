"""The commands that repeat the run, and digests of what went in."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study


@dataclass(frozen=True)
class ReproduceSection(Section):
    """How to see it again, as a whole and one plan alone."""

    order: ClassVar[int] = 80

    def blocks(self, study: Study) -> Iterable[Block]:
        yield Heading("Reproduce", folded=True)
        if study.command:
            yield Text("The whole search (in the same folder it continues where it stopped):")
            yield Text(study.command, "code")
        if study.job.budget_rule:
            yield Text("The derived budget, to use for other models with `--budget`:")
            yield Text(shlex.quote(str(study.budget)), "code")
        yield Text("Pack the winner into a bundle:")
        yield Text(f"ortune pack {shlex.quote(study.root)} -o model.ortune", "code")
        yield Text("All plans in full, with the keys that `ortune pack --plan` takes:")
        latest = say.list_latest_trials(study)
        rows = tuple((study.label(t.plan), str(t.plan), t.key[:8]) for t in latest)
        yield Table(("plan", "in full", "trial"), rows)
        best = study.best
        if best.reproduce:
            yield Text("Run the process that timed the winner again:")
            yield Text(best.reproduce, "code")
        digests = (
            ("model", study.job.model_digest),
            ("data", study.job.data_digest),
            ("winning recipe", best.plan.recipe.key),
            ("winning trial", best.key),
        )
        yield Table(("digest of", "value"), digests)
