"""What was done to the model, and what was undone."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.plan_label import label_recipe
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study


@dataclass(frozen=True)
class StepsSection(Section):
    """The winner's recipe step by step, then every step that any plan rolled back."""

    order: ClassVar[int] = 50

    def blocks(self, study: Study) -> Iterable[Block]:
        best = study.best
        if best.edits:
            yield Heading(f"What was done to the winner ({label_recipe(best.plan)})", folded=True)
            rows = tuple(
                (edit.step, f"{edit.count:,}", f"{edit.seconds:.1f}", note)
                for edit in best.edits
                for note in [edit.note if edit.kept else f"rolled back: {edit.note}"]
            )
            yield Table(("step", "edits", "seconds", "note"), rows)
        # Each step and reason once, with the first recipes that it happened in.
        rollbacks: dict[tuple[str, str], dict[str, None]] = {}
        for trial in study.trials:
            for edit in trial.edits:
                if not edit.kept:
                    rollbacks.setdefault((edit.step, edit.note), {})[trial.plan.recipe.name] = None
        undone = tuple(
            (step, ", ".join(list(recipes)[:3]) + (", ..." if len(recipes) > 3 else ""), note)
            for (step, note), recipes in rollbacks.items()
        )
        if undone:
            yield Heading("Steps that were rolled back", folded=True)
            yield Text("A step that breaks the graph, a type or the outputs is undone.")
            yield Table(("step", "in", "why"), undone)
