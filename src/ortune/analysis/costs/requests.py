"""What `cost` and `timeline` are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.analysis.costs import terms
from ortune.core.custom_ops import BackendRequest
from ortune.core.fields import Option
from ortune.core.request import DataRequest, Request, request


@request
class Cost(Request):
    """Price what RUN measured: an `optimize -o` folder, a file of `bench` or `loadtest`.

    The first row is what is paid today. Money is in the price's own unit.

    Example:
        ortune cost RUN --price 2.50/h --overhead 20ms --processes 6 --effort 4h@80/h
        ortune cost bench.json --price "2.50 EUR/h" --load 150/s

    Attributes:
        sources: The first holds what is paid today in its first row; rows of the others follow.
        price: Of a machine, or of a GPU: "2.50/h".
        load: Samples that must be served: 150/s.
        overhead: Of a run, outside the model: 20ms. What `bench --end-to-end` timed has it inside.
        processes: At work on one machine.
        gpus: Numbers of GPUs to show: 1-8.
        effort: Work the change takes: 4h@80/h.
        hours_per_day: Hours that machines are paid for; a month has 30.4 days.
        within_months: Latest return of the money for the verdict "do it".

    Raises:
        OrtuneError: A word or a source cannot be read.
    """

    sources: Annotated[str | Path | Sequence[str | Path], Option("RUN...")]
    price: Annotated[str, Option("P/h", "--price")]
    _: KW_ONLY
    load: Annotated[str, Option("N/s")] = ""
    overhead: Annotated[str, Option("TIME")] = ""
    processes: Annotated[int, Option(low=1, high=4096)] = 1
    gpus: Annotated[str, Option("N|N-M")] = ""
    effort: Annotated[str, Option("H@P")] = ""
    hours_per_day: Annotated[float, Option(high=24)] = 24.0
    within_months: Annotated[float, Option("MONTHS", "--within", high=1200)] = 6.0

    def __post_init__(self) -> None:
        super().__post_init__()
        terms.read_price(self.price)  # before a source is read
        for text, read in (
            (self.load, terms.read_load),
            (self.overhead, terms.read_overhead),
            (self.effort, terms.read_effort),
            (self.gpus, terms.read_devices),
        ):
            if text:
                read(text)


@request
class TimelineRequest(BackendRequest, DataRequest):
    """Time MODEL plain, optimized, quantized and both: once, a session, an inference.

    Files that onnxruntime optimized offline, as ONNX and as .ort, stand beside optimizing at load.
    Without --data the inputs are made up: the times hold, a quantized model's answers are not
    judged.

    Example:
        ortune timeline model.onnx --data samples/ --inferences-per-session 500 -o timeline.html

    Attributes:
        model: The model file.
        step: The quantizer, such as int8-dynamic; the first that a search would try if not given.
        on: Where to run: cpu with its fields but the level, which is what varies.
        inferences_per_session: Served by one session before the next is started.
        starts: Fresh processes each.
        seconds: Time spent on timing inferences; every line takes some seconds at least.

    Raises:
        OrtuneError: The model, the data or an option cannot be used.
    """

    model: str | Path
    _: KW_ONLY
    step: Annotated[str, Option("SPEC")] = ""
    inferences_per_session: Annotated[float, Option("N", low=1)] = 1000
    starts: Annotated[int, Option(low=1, high=1000)] = 9
    seconds: Annotated[float, Option(low=0.1)] = 20.0
