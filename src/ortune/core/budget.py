"""The accuracy budget: the worst score a variant may have."""

import math
import re
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from ortune.core.errors import BadSettings, shorten_text
from ortune.core.metric import Metric
from ortune.core.plugins import spelling
from ortune.core.plugins.user_function import is_function

_SIGN = re.compile("[<>]=")
_LONGEST = 100_000
"""Characters: a derived budget names every output."""
_SHOWN = 200
_ROUNDING = 1e-9
"""``base-0.01`` in binary is not exactly what two counts differ by."""
_MARGIN = 1.1
"""Times the miss by which a budget is loosened."""
_MOST_STEPS = 4
"""Each step has its part of a search's time and of the error of its proofs."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class Budget:
    """A metric and its limit, or several limits for which one search finds an answer each.

    Attributes:
        limit: Absolute, or an offset to the baseline's score when `relative`; the strictest.
        relative: Spelled ``base-0.01`` or ``base+0.01``.
        looser: Further limits, each looser than the one before.
    """

    added: ClassVar[frozenset[str]] = frozenset({"looser"})

    metric: Metric
    limit: float
    relative: bool = False
    looser: tuple[float, ...] = ()

    @property
    def steps(self) -> tuple[Self, ...]:
        """One budget per limit, the strictest first."""
        limits = (self.limit, *self.looser)
        return tuple(replace(self, limit=limit, looser=()) for limit in limits)

    def bound(self, base: float) -> float:
        """Return the limit in the metric's units, given the baseline's score."""
        return base + self.limit if self.relative else self.limit

    def admits(self, score: float, base: float) -> bool:
        """Return False for NaN: a variant that cannot be scored is not within the budget."""
        bound, slack = self.bound(base), _ROUNDING * max(1.0, abs(base))
        return score >= bound - slack if self.metric.higher_is_better else score <= bound + slack

    def can_be_missed(self, base: float | None = None) -> bool:
        """Say whether the metric has a score that is outside the budget.

        Args:
            base: The baseline's score; None while it is unknown.
        """
        if (bounds := self.metric.bounds) is None:
            return True
        sign = 1 if self.metric.higher_is_better else -1
        worst, best = sorted((sign * bounds[0], sign * bounds[1]))
        limit = sign * self.limit
        if self.relative:
            limit += best if base is None else sign * base
        return limit > worst

    def loosen_to(self, score: float, base: float) -> Self:
        """Return the budget with one more limit, which admits a score that misses all others.

        Its limit is rounded to two digits of the miss, and reaches a little further, as other
        samples will not give the very same score.
        """
        last = self.steps[-1]
        miss = _MARGIN * abs(last.bound(base) - score)
        digits = 1 - math.floor(math.log10(miss)) if miss > 0 else 0
        step = math.ceil(miss * 10**digits - 1e-6) / 10**digits
        sign = -1 if self.metric.higher_is_better else 1
        limit = round(last.limit + sign * step, max(0, digits))
        return replace(self, looser=(*self.looser, limit)[-_MOST_STEPS + 1 :])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``top1>=base-0.01``, ``cosine(share=0.9)>=0.999`` or ``FILE.py:NAME>=0.9``.

        Several limits, ``cosine>=0.999|0.998``, are steps, the strictest first.

        Raises:
            BadSettings: The text, the metric or the direction is wrong, or the steps are.
        """
        sign = _SIGN.search(text) if len(text) <= _LONGEST else None
        ends = (sign.start(), sign.end()) if sign else (0, len(text))
        name, limit_text = text[: ends[0]].strip(), text[ends[1] :].strip()
        if sign is None or not name or not limit_text:
            raise BadSettings(
                f"cannot read budget '{shorten_text(text, _SHOWN)}'",
                fix="write metric>=number or metric>=base-0.01",
            )
        # Classes of metrics have names in capitals, functions have not.
        custom = is_function(name) and not re.search(r"\.py:_*[A-Z]", name)
        spelled = f'function(path="{name}")' if custom else name
        metric = spelling.parse_plugin(Metric, spelled)
        first, *further = [part.strip() for part in limit_text.split("|")]
        wrong = [part for part in further if not part or _SIGN.search(part)]
        if wrong:
            raise BadSettings(
                f"budget '{shorten_text(text, _SHOWN)}': '{wrong[0]}' is not a limit",
                fix=f"write limits of one metric: {name}{sign[0]}{first}|LIMIT",
            )
        limits = [_parse_limit(part, text) for part in (first, *further)]
        if (sign[0] == ">=") is not metric.higher_is_better:
            better, right = ("higher", ">=") if metric.higher_is_better else ("lower", "<=")
            raise BadSettings(
                f"budget '{text}': {better} {name} is better",
                fix=f"write {name}{right}{limit_text}",
            )
        (limit, relative), *looser = limits
        budget = cls(metric, limit, relative, tuple(limit for limit, _ in looser))
        # Each step is looser than the one before, and all are of one kind.
        kinds = [relative for _, relative in limits]
        higher = budget.metric.higher_is_better
        values = [budget.limit, *budget.looser]
        if len(set(kinds)) > 1:
            raise BadSettings(
                f"budget '{budget.steps[0]}': some of its limits are relative and others are not",
                fix="write base in every limit, or in none",
            )
        if values != sorted(set(values), reverse=higher):
            ordered = sorted(set(values), reverse=higher)
            fixed = replace(budget, limit=ordered[0], looser=tuple(ordered[1:]))
            raise BadSettings(
                f"budget '{budget}': each limit must be looser than the one before",
                fix=f"write {fixed}",
            )
        if len(values) > _MOST_STEPS:
            raise BadSettings(
                f"budget '{budget}' has {len(values)} limits, at most {_MOST_STEPS} are allowed",
                fix="write fewer limits, or run two searches",
            )
        return budget

    def __repr__(self) -> str:
        return f"Budget({self})"

    def __str__(self) -> str:
        sign = ">=" if self.metric.higher_is_better else "<="
        plain = not getattr(self.metric, "share", 0)
        path = getattr(self.metric, "path", "") if plain else ""
        limits = "|".join(self._spell_limit(step.limit) for step in self.steps)
        return f"{path or self.metric}{sign}{limits}"

    def _spell_limit(self, limit: float) -> str:
        if not self.relative:
            return f"{limit:.10g}"
        return f"base{limit:+.10g}" if limit else "base"


def _parse_limit(text: str, whole: str) -> tuple[float, bool]:
    if text == "base":
        return 0.0, True
    plain = re.fullmatch(_NUMBER, text)
    unsigned = _NUMBER.removeprefix("[-+]?")
    match = plain or re.fullmatch(rf"base\s*([-+])\s*({unsigned})", text)
    value = match and float(text if plain else match[1] + match[2])
    if value is None or not math.isfinite(value):
        raise BadSettings(
            f"cannot read the limit '{text}' of budget '{whole}'",
            fix="write a number, or base-0.01 to be relative to the baseline",
        )
    return value, not plain
