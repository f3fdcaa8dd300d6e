"""A decoder at work: it reads a prompt and writes tokens, one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import mean, median
from typing import Annotated, Any, ClassVar

import numpy as np

from ortune.core.errors import BadData
from ortune.core.plugins.bounds import Bounds
from ortune.core.workload import Driven, Rig, Span, Workload
from ortune.data.checks import IDS
from ortune.data.sequences.generation import CachedDecoder, Generation
from ortune.measurement.arrivals import lanes

_WARM = 2


@dataclass(frozen=True)
class Generate(Workload):
    """Greedy generation with a cache that grows: an entry is the time of a whole answer.

    A prompt is the beginning of a sample's tokens, which are repeated where they are too few.
    That a token ends a text is not heeded: every answer is as long.

    Attributes:
        prompt: Tokens that are read at once.
        tokens: Tokens that are written, the first by the run that reads the prompt.
    """

    measure: ClassVar[str] = "time of an answer"

    prompt: Annotated[int, Bounds(high=1e6)] = 64
    tokens: Annotated[int, Bounds(high=1e6)] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand(self.prompt > 0, "prompt", "1 or more")
        self.demand(self.tokens > 1, "tokens", "2 or more")

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Time every answer, and every token in it.

        Raises:
            BadData: The model is no decoder with a cache, or there are several models.
        """
        lane = rig.lanes[0]
        calls = lane.calls(span.at)
        if len(calls) != 1:
            raise BadData(
                "the workload needs one decoder, several models are given",
                fix="give one model, or --evaluate",
            )
        decoder = CachedDecoder(calls[0][0].run, calls[0][1])
        if span.drop:
            list(islice(Generation(decoder, self._make_prompt(calls[0][1][IDS])), _WARM))
        latency, first_ns, token_ns = list[int](), list[int](), list[int]()
        waited, cache = list[float](), 0
        for entry in range(span.runs):
            positions = range(span.at + entry * span.each, span.at + (entry + 1) * span.each)
            prompts = [self._make_prompt(lane.calls(place)[0][1][IDS]) for place in positions]
            meter, start = lanes.RunQueueMeter(lane), lane.clock()
            for prompt in prompts:
                generation, before = Generation(decoder, prompt), lane.clock()
                for place in range(self.tokens):
                    next(generation)
                    now = lane.clock()
                    (token_ns if place else first_ns).append(now - before)
                    before = now
                cache = generation.cache_bytes
            latency.append((lane.clock() - start) // span.each)
            waited.append(meter.share())
        measured = {"first_ns": first_ns, "token_ns": token_ns, "cache_bytes": cache}
        return Driven(latency, waited, 1 + span.total, measured)

    def _make_prompt(self, ids: Any) -> Any:
        times = -(-self.prompt // max(1, ids.shape[1]))
        return np.tile(ids, (1, times))[:, : self.prompt]

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return medians of the first token's time and of a later one's, and tokens a second.

        ``cache_bytes`` are those of keys and values at the longest context.
        """
        first, later = (
            [ns for detail in details for ns in detail[key]] for key in ("first_ns", "token_ns")
        )
        return {
            "first_token_ns": median(first),
            "token_ns": median(later),
            "tokens_per_s": 1e9 * max(1, self.batch) / mean(later),
            "cache_bytes": max(detail["cache_bytes"] for detail in details),
        }
