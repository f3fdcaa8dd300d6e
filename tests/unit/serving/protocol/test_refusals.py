"""Refusals in the words of both fronts; nothing of this machine is told."""

import http

import grpc
import pytest

from ortune.core.errors import BadData, OrtuneError
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused, make_refusal


@pytest.mark.parametrize("status", RefusalKind)
def test_both_fronts_know_every_status(status: RefusalKind) -> None:
    assert status.http == 499 or http.HTTPStatus(status.http)  # 499 is nginx's, and Triton's
    assert grpc.StatusCode[status.grpc]


def test_one_line_for_the_wire() -> None:
    assert RequestRefused("it is wrong.", fix="mend it").text == "it is wrong. mend it"
    assert str(RequestRefused("it is wrong")) == "it is wrong"
    assert isinstance(RequestRefused("it is wrong"), OrtuneError)


def test_a_clients_names_are_cut_and_spelled_out() -> None:
    told = RequestRefused(f"no input '\x1b[31m' {'a' * 10**6}").text
    assert len(told) < 600 and "\x1b" not in told and "\\x1b" in told


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (
            BadData("input '/a/x.y' is odd", fix="even it"),
            RefusalKind.INVALID,
            "'/a/x.y' is odd. even",
        ),
        (TimeoutError(), RefusalKind.TIMED_OUT, "timeout"),
        (
            OrtuneError("/srv/me/m.onnx: gone", fix="look in /srv/me"),
            RefusalKind.INTERNAL,
            "m.onnx:",
        ),
        (RuntimeError("open /var/lib/x/y failed"), RefusalKind.INTERNAL, "open y failed"),
        (ValueError("1 / 2 and a/b are fine"), RefusalKind.INTERNAL, "1 / 2 and a/b are fine"),
        (KeyError(), RefusalKind.INTERNAL, "KeyError"),
        (RequestRefused("so", RefusalKind.UNAVAILABLE), RefusalKind.UNAVAILABLE, "so"),
    ],
)
def test_errors_become_refusals(error: Exception, status: RefusalKind, text: str) -> None:
    found = make_refusal(error)
    assert found.status is status and text in found.text
    assert "/home" not in found.text and "/var" not in found.text


def test_a_refusal_holds_no_frames() -> None:
    try:
        raise RequestRefused("so", RefusalKind.UNAVAILABLE, "wait")
    except RequestRefused as error:
        told = make_refusal(error)
    assert told.__traceback__ is None and told.__context__ is None
    assert told.text == "so. wait"


def test_what_a_runtime_says_loses_its_sources() -> None:
    said = (
        "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : /onnxruntime_src/onnxruntime/core/a.cc:90 "
        "Got invalid dimensions"
    )
    assert make_refusal(RuntimeError(said)).text == "Got invalid dimensions"
