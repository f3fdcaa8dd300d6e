"""The accuracy budget, fixed before any candidate exists."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ortune.core import hub
from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.hub import HubFolder
from ortune.core.metric import Kind, stack_records
from ortune.core.session import Tensors
from ortune.core.wording import format_count
from ortune.core.workload import spread_indices
from ortune.data import derive
from ortune.data.classes import read_alphabet
from ortune.data.sequences.rolling import match_states
from ortune.data.stream import Stream
from ortune.measurement.accuracy import compute_score
from ortune.measurement.evidence import check_bounds
from ortune.metrics.score import EvaluateScore
from ortune.metrics.sentence_cosine import SentenceCosine
from ortune.metrics.wer import Wer
from ortune.search.experiment.context import ScoredPart

_LOOKED_AT = 64  # samples from which a budget is derived


def budget_for(
    budget: Budget | None,
    outputs: Stream,
    labels: Sequence[Any] | None,
    inputs: Tensors,
    settings: HubFolder | None = None,
) -> tuple[Budget, str]:
    """Return the given budget, or derive one, and the rule that gave it; empty where given.

    Args:
        inputs: Of one sample: some outputs may be states that it takes.
        settings: The model's folder, which says what it is for.

    Raises:
        BadData: It needs labels and there are none.
    """
    if budget is not None:
        _require_missable(budget)
        if budget.metric.needs_labels and labels is None:
            raise BadData(
                f"budget '{budget}' needs labels and the data have none",
                fix="put an array 'label' into the samples, or give --labels FILE",
            )
        return budget, ""
    if (
        settings is not None
        and (budget := _derive_from_task(settings, labels, outputs[0])) is not None
    ):
        kind = "tokens" if isinstance(budget.metric, Wer) and labels is None else ""
        return budget, f"model for {settings.task}: {_TASK_RULES[kind or budget.metric.name()]}"
    looked = spread_indices(len(outputs), _LOOKED_AT)
    tensors = {name: [outputs[i][name] for i in looked] for name in outputs[0]}
    chosen = None if labels is None else [labels[i] for i in looked]
    states = frozenset(pair.output for pair in match_states(inputs, outputs[0]))
    return derive.derive_budget(tensors, chosen, states)


_TASK_RULES = {
    "spearman": "the rank correlation with the scores may fall by 0.01",
    "sentence-cosine": "95 % of inputs must keep cosine 0.99 of their sentences' vectors",
    "agreement": "95 % of inputs must keep 99 % of their likeliest next tokens",
    "f1": "F1 over the labelled tokens may fall by 1 point",
    "wer": "the mean share of wrong words may rise by 1 point",
    "tokens": "95 % of inputs must keep 99 % of their decoded tokens",
}


def _derive_from_task(
    settings: HubFolder, labels: Sequence[Any] | None, outputs: Tensors
) -> Budget | None:
    """Return the budget that the task of a model's folder asks for; None where outputs say it."""
    first = None if labels is None else labels[0]
    if settings.pooling:
        return Budget(SentenceCosine(pooling=settings.pooling), 0.99)
    if settings.task == hub.GENERATION and "logits" in outputs:
        return Budget.parse("agreement(output=logits)>=0.99")
    if settings.spells and "logits" in outputs:
        alphabet = read_alphabet(settings)
        if alphabet is None or labels is None:
            return Budget(Wer(blank=settings.blank, share=0.95), 0.01)
        return Budget(Wer(blank=settings.blank, delimiter=alphabet.words_end), 0.01, relative=True)
    if settings.task == hub.TOKEN_CLASSES and isinstance(first, list):
        classes = settings.classes
        without = f"(without={classes.index('O')})" if "O" in classes else ""
        return Budget.parse(f"f1{without}>=base-0.01")
    if settings.task == hub.TEXT_CLASSES and len(settings.classes) == 1 and first is not None:
        return Budget.parse("spearman>=base-0.01")
    return None


def budget_for_evaluate(function: str, budget: Budget | None) -> tuple[Budget, str]:
    """Return the budget of an evaluate function's records, and the rule that gave it.

    Raises:
        BadSettings: The given one does not judge what is scored.
    """
    metric = EvaluateScore(path=function)
    if budget is None:
        limit = -0.01 if metric.higher_is_better else 0.01
        return Budget(metric, limit, relative=True), "--evaluate: within 0.01 of the original"
    _require_missable(replace(budget, metric=metric))
    metric_path = getattr(budget.metric, "path", "")
    if budget.metric.name() not in ("score", "function") or metric_path not in ("", function):
        raise BadSettings(
            f"budget '{budget}' does not judge what --evaluate returns",
            fix="write score>=base-0.01",
        )
    return replace(budget, metric=metric), ""


_NEAR_CHANCE = 0.1
"""Of the way from chance to 1: of ten classes that were numbered wrongly one or two are right."""
_ONE_POINT = 100


def validate_budget(budget: Budget, parts: Sequence[ScoredPart]) -> tuple[str, bool]:
    """Refuse a budget that the original itself misses, or whose bounds its records leave.

    Returns:
        What is to be said of the original's own score before anything else, empty where that is
        nothing; and whether something can be proved against it.

    Raises:
        BadSettings: It does, or cannot be scored at all, or no score can miss it.
        BadData: A record is outside the bounds that the metric declares.
    """
    if budget.metric.kind() is Kind.MEAN:
        for part in parts:
            check_bounds(budget.metric, part.records)
    groups = [name for part in parts for name in part.groups or ()] or None
    records = stack_records([part.records for part in parts])
    base = compute_score(budget.metric, records, groups)
    if not budget.admits(base, base):
        raise BadSettings(
            f"the original itself scores {base:.4g} and misses the budget {budget}",
            fix="loosen the budget, or make it relative: metric>=base-0.01",
        )
    labels = [label for part in parts for label in part.labels or ()]
    worst = (
        budget.metric.bounds and budget.metric.bounds[0 if budget.metric.higher_is_better else 1]
    )
    if base != worst:
        _require_missable(budget, base)
    doubt, is_useless = _doubt_original(budget, base, worst, len(records), labels)
    return doubt, not is_useless


def _require_missable(budget: Budget, base: float | None = None) -> None:
    """Refuse a limit that no score can miss: raise BadSettings, with what was likely meant."""
    budget = budget.steps[-1]  # whoever can miss the loosest can miss all
    metric, bounds = budget.metric, budget.metric.bounds
    if bounds is None or budget.can_be_missed(base):
        return
    reach = f"{getattr(metric, 'path', '') or metric} lies between {bounds[0]:g} and {bounds[1]:g}"
    if base is not None:
        reach += f", and the original scores {base:.4g}"
    fix = f"write a limit between {bounds[0]:g} and {bounds[1]:g}"
    if bounds == (0, 1):
        is_percentage = budget.relative and 1 < abs(budget.limit) < _ONE_POINT / 2
        loss = abs(budget.limit) / _ONE_POINT if is_percentage else 1 / _ONE_POINT
        likely = replace(budget, limit=-loss if metric.higher_is_better else loss, relative=True)
        fix = f'write "{likely}", which allows a loss of {100 * loss:g} percentage points'
    raise BadSettings(f"no score can miss the budget {budget}: {reach}", fix=fix)


def _doubt_original(
    budget: Budget, base: float, worst: float | None, count: int, labels: Sequence[Any]
) -> tuple[str, bool]:
    """Say where original or limit are no better than chance; and whether that ends all proofs."""
    budget = budget.steps[-1]  # the nearest to chance
    metric = budget.metric
    advice = "check the order of the labels and how classes are numbered"
    score = f"the original itself scores {base:.4g} on {format_count(count, 'sample')}"
    if base == worst:
        return f"{score}, the worst possible score: no loss can be detected; {advice}", True
    if base == 0 and metric.higher_is_better and isinstance(metric, EvaluateScore):
        return f"{score}: that says nothing if 0 is the worst; {advice}", False
    chance = metric.chance(labels) if labels or not metric.needs_labels else None
    if chance is None:
        return "", False
    same = f"a constant answer scores {chance:.4g}"
    if base <= chance:
        return f"{score}, and {same}: no loss can be detected; {advice}", True
    if (limit := budget.bound(base)) <= chance:
        return f"{score}, the budget {budget} allows {limit:.4g}, but {same}: no proof", True
    if base - chance > _NEAR_CHANCE * (1 - chance):
        return "", False
    return f"{score}, hardly above chance: {same}; {advice}", False
