"""Where ours answers otherwise than Triton 2.51, each with its reason; the rest is equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.packages.conformance.asking import Answer, fields


@dataclass(frozen=True)
class Difference:
    """Fields of cases that may differ.

    Attributes:
        cases: Pattern of their names.
        fields: Pattern of the fields' paths.
        reason: Why ours is as it is.
        values: Ours and Triton's; any without them.
    """

    cases: str
    fields: str
    reason: str
    values: tuple[Any, Any] | None = None


_SERVER = r"GET /v2|gRPC: ServerMetadata|.*get_server_metadata"
_CONFIG = r".*/config|gRPC: ModelConfig|.*get_model_config"
DIFFERENCES = (
    Difference(r".*", r"(.*\.)?error", "errors are worded differently; status and code are equal"),
    Difference(
        r".*",
        "type of no answer",
        "errors and empty answers are `application/json`; some of Triton's are `text/plain`",
    ),
    Difference(r".*", "status", "a wrong request gets 400, never 500", values=(400, 500)),
    Difference(
        _SERVER,
        r".*\.(name|version|extensions.*)",
        "the server metadata has ortune's name, version and extensions",
    ),
    Difference(
        _CONFIG,
        r".*\.(default_model_filename|runtime|optimization.*|.*preferred_batch_size.*|priority_.*"
        r"|default_priority_level|is_non_linear_format_io|host_policy|profile|secondary_devices"
        r"|model_transaction_policy.*)",
        "the model configuration lacks settings of Triton's backends; preferred batch sizes are "
        "those that were given",
    ),
    Difference(
        r".*index.*",
        r".*reason",
        "the repository index has an empty `reason`; Triton leaves it out",
    ),
    Difference(
        r".*[sS]tat.*",
        "status|code",
        "statistics of an unknown model: not found, as for its metadata; Triton: 400",
    ),
    Difference(
        r".*version.*(x|no number)",
        "status",
        "a version that is not a number: 400; Triton: 404",
        values=(400, 404),
    ),
    Difference(
        r".*emory.*", "status|code", "shared memory is not supported: 501, or 400 in a request"
    ),
    Difference("HEAD", "status", "HEAD works wherever GET does; Triton: 405", values=(200, 405)),
    Difference(
        r".*outputs in another order",
        r".*outputs?.*",
        "outputs come in the requested order; in Triton the backend decides",
    ),
    Difference(
        r"binary out, but not of one|classes, binary",
        ".*",
        "`binary_data_output` is the default for all outputs, as the extension says; in Triton "
        "only for requests that name no outputs",
    ),
    Difference(
        r".*(too large|too small)",
        "outcome",
        "a number outside the range of its datatype is refused; Triton wraps it around",
    ),
    Difference(
        "JSON FP32, too large", r"json\..*", "infinity in JSON is `null`; Triton writes `Infinity`"
    ),
    Difference("data not a number", "outcome", "`NaN` in JSON is refused"),
    Difference("binary BOOL of other bytes", "tensors.0", "a BOOL is always 0 or 1"),
    Difference(
        "gRPC: raw, one too many", "outcome", "raw data that belongs to no input is refused"
    ),
    Difference(
        "an unknown encoding",
        "status",
        "an unknown encoding gets 415; Triton: 501",
        values=(415, 501),
    ),
)


@dataclass(frozen=True)
class Unlike:
    """One field in which two answers differ; None is a field that one of them has not."""

    case: str
    field: str
    ours: Any
    theirs: Any

    def listed(self) -> Difference | None:
        """Return the entry of the list that covers it."""
        for one in DIFFERENCES:
            if (
                re.fullmatch(one.cases, self.case)
                and re.fullmatch(one.fields, self.field)
                and one.values in (None, (self.ours, self.theirs))
            ):
                return one
        return None


def unlike(case: str, ours: Answer, theirs: Answer) -> Iterator[Unlike]:
    """Yield the fields in which two answers to one request differ.

    Where one alone is an error, that is the difference: field ``outcome``. Numbers agree when they
    are the same float32, which is what JSON carries of most.
    """
    if ("error" in _flat(ours)) != ("error" in _flat(theirs)):
        yield Unlike(case, "outcome", _outcome(ours), _outcome(theirs))
        return
    mine, real = dict(fields(ours)), dict(fields(theirs))
    for field in sorted(mine.keys() | real.keys()):
        if field not in mine or field not in real or not _same(mine[field], real[field]):
            yield Unlike(case, field, mine.get(field), real.get(field))


def _flat(answer: Answer) -> Answer:
    """Return an answer with the error of its body beside its status."""
    body = answer.get("json")
    return {**answer, **body} if isinstance(body, dict) and "error" in body else answer


def _outcome(answer: Answer) -> str:
    found = _flat(answer)
    status = found.get("status", found.get("code", "fine"))
    return f"{status}: {found['error']}" if "error" in found else f"{status}"


def _same(one: Any, other: Any) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if numbers and (isinstance(one, float) or isinstance(other, float)):
        with np.errstate(over="ignore"):
            return bool(np.float32(one) == np.float32(other))
    return type(one) is type(other) and bool(one == other)


def error_of(answer: Answer) -> Any:
    """Return the error that an answer tells; None where it is none."""
    return _flat(answer).get("error")


def said(error: Any) -> bool:
    """Whether an error says something in one clean line of a person's words."""
    return isinstance(error, str) and bool(error.strip()) and "Traceback" not in error


def table() -> str:
    """Return the list as the documentation shows it."""
    return "\n".join(f"- {one.reason}" for one in DIFFERENCES)
