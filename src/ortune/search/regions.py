"""Surveys of regions in a running search, and the journal of what followed from them."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.core.trial import Status, Trial
from ortune.experiment.context import Context
from ortune.experiment.evaluate import Attempts
from ortune.experiment.surveys.journal import unfinished_s
from ortune.regions.survey import MixtureTried, Survey, SurveyRequest
from ortune.search.compare import leaders
from ortune.search.expectation.mixtures import Mixing
from ortune.search.expectation.surveying import longest_s
from ortune.search.policy import View


class RegionSearch:
    """What a search does by region; what it knows is in the run's journal.

    Args:
        context: What is fixed.
        attempts: Make surveys and keep the journal.
    """

    def __init__(self, context: Context, attempts: Attempts) -> None:
        self._context, self._attempts = context, attempts

    @property
    def possible(self) -> bool:
        """Whether surveys are made: of one model, and where they are not switched off."""
        return self._context.by_region and len(self._context.models) <= 1

    @property
    def known(self) -> Sequence[Survey]:
        """All surveys so far, in order; none of plugins that were edited since."""
        key = self._attempts.key
        return [one for one in self._attempts.surveys.known if one.key == key(one.plan)]

    @property
    def seconds(self) -> float:
        """What they took, and what went into one that was killed."""
        every = self._attempts.surveys.known
        lost = unfinished_s(self._context.root, {one.key for one in every})
        return sum(survey.seconds for survey in self.known) + lost

    def survey(self, request: SurveyRequest, view: View) -> None:
        """Make a survey within the time that is not the finalists'.

        Raises:
            AssertionError: The policy asks for one a second time.
        """
        if any(one.plan.spelled == request.plan.spelled for one in self.known):
            raise AssertionError(f"{request.plan} is to be surveyed a second time")
        self._attempts.survey(request, min(request.seconds, longest_s(view)))

    def settle(self, view: View) -> None:
        """Write down what came of mixtures, once each, those of a run that was killed too."""
        written = {one.key for one in self._attempts.surveys.mixtures}
        for survey in view.surveys:
            known = Mixing.of(survey, view)
            for trial in known.mixtures if known is not None else ():
                if trial.key not in written:
                    assert known is not None
                    expected = known.expected(trial)
                    kept, why = _kept(trial, view)
                    self._attempts.surveys.add(
                        MixtureTried(
                            survey=known.survey.key,
                            key=trial.key,
                            plan=trial.plan,
                            left=expected.left,
                            regions=len(known.survey.regions),
                            expected_ratio=expected.ratio,
                            expected_lost=expected.lost,
                            ratio=trial.ratio,
                            lost=known.lost(trial),
                            kept=kept,
                            why=why,
                        )
                    )


def _kept(trial: Trial, view: View) -> tuple[bool, str]:
    """Say whether a mixture is the best so far, and why it is or is not."""
    if trial.status is Status.FAILS:
        return False, "it fails the budget"
    if trial.ratio is None or trial.status not in (Status.OK, Status.LEVEL, Status.SCREENED):
        return False, trial.why or str(trial.status)
    best = next(iter(leaders(view.trials, view.wanted)), None)
    if best is None or best.key == trial.key:
        return best is not None, "the best so far" if best else "it is no faster than the original"
    return False, f"{best.plan} is preferred"
