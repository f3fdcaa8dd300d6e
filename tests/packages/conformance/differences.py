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
    Difference(r".*", r"(.*\.)?error", "the wording of errors; status and code are equal"),
    Difference(
        r".*",
        "type of no answer",
        "errors and empty answers are `application/json`; Triton says `text/plain` of some",
    ),
    Difference(
        r".*", "status", "what is wrong with a request is 400, never 500", values=(400, 500)
    ),
    Difference(
        _SERVER,
        r".*\.(name|version|extensions.*)",
        "the server's own name, version, and what it can: no shared memory, sequences, tracing",
    ),
    Difference(
        _CONFIG,
        r".*\.(default_model_filename|runtime|optimization.*|.*preferred_batch_size.*|priority_.*"
        r"|default_priority_level|is_non_linear_format_io|host_policy|profile|secondary_devices"
        r"|model_transaction_policy.*)",
        "settings of Triton's backends that ours has not; preferred sizes as they were asked for",
    ),
    Difference(
        r".*index.*",
        r".*reason",
        "the index tells an empty reason; Triton leaves it out",
    ),
    Difference(
        r".*[sS]tat.*",
        "status|code",
        "statistics of a model that is not there: not found, as its metadata; Triton: 400",
    ),
    Difference(
        r".*version.*(x|no number)",
        "status",
        "a version that is no number is a wrong request; Triton: 404",
        values=(400, 404),
    ),
    Difference(
        r".*emory.*", "status|code", "shared memory is not offered: 501, or 400 where it is named"
    ),
    Difference("HEAD", "status", "HEAD is answered where GET is", values=(200, 405)),
    Difference(
        r".*outputs in another order",
        r".*outputs?.*",
        "outputs come in the order asked for; in Triton the backend decides",
    ),
    Difference(
        r"binary out, but not of one|classes, binary",
        ".*",
        "`binary_data_output` is the default of all outputs, as its extension says; in Triton "
        "of requests alone that name none",
    ),
    Difference(
        r".*(too large|too small)",
        "outcome",
        "a number out of the datatype's range is refused; Triton wraps it around",
    ),
    Difference(
        "JSON FP32, too large",
        r"json\..*",
        "infinity is `null`, as JSON has no word for it; Triton writes `Infinity`",
    ),
    Difference("data not a number", "outcome", "`NaN` is no JSON"),
    Difference("binary BOOL of other bytes", "tensors.0", "a BOOL is 0 or 1"),
    Difference(
        "gRPC: raw, one too many", "outcome", "a tensor that belongs to no input is refused"
    ),
    Difference(
        "an unknown encoding", "status", "an encoding that is not known is 415", values=(415, 501)
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
    lines = ["| fields | of requests | why |", "|---|---|---|"]
    for one in DIFFERENCES:
        cells = (f"`{one.fields}`", f"`{one.cases}`", one.reason)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
