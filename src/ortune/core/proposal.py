"""A plan that is proposed to be tried, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ortune.core.trial import Plan


@dataclass(frozen=True)
class Proposal:
    """A plan to try.

    Attributes:
        stage: What the policy is about, in a word; stored with the trial.
        why: Why this plan and why now; stored with the trial.
        effort: ``screen`` times a single block; ``search`` until the answer is clear.
        score: Whether its accuracy is judged; it never is where the plan has lost on time.
        neighbour_of: Key of the trial of which it changes one setting: where it gains nothing
            over that one, it is no finalist.
        index: Its place among the plans of the stage, from 1.
        total: Plans of the stage; 0 where that is not known.
    """

    plan: Plan
    stage: str
    why: str = ""
    effort: Literal["screen", "search"] = "search"
    score: bool = True
    neighbour_of: str = ""
    index: int = 1
    total: int = 0
