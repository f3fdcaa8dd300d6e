"""What the libraries below say, in one line that still has the reason."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

from ortune.core.errors import (
    BadData,
    BadModel,
    CutShort,
    Interruption,
    OrtuneError,
    OutOfTime,
    Refused,
    find_interruption,
    shorten_text,
    summarize_error,
    with_article,
)
from ortune.serving.protocol import refusals

MANY = ", ".join(f'"input_{i}": tensor(float)' for i in range(40))
SAID = {
    "[ONNXRuntimeError] : 10 : INVALID_GRAPH : Load model from /tmp/a b/l8.onnx failed:This is an "
    f'invalid model. In Node, ("lstm_int8", DynamicQuantizeLSTM, "com.microsoft", -1) : ({MANY},)'
    ' -> ("y": tensor(float),) , Error Unrecognized attribute: layout for operator Dynamic': (
        'This is an invalid model. In Node, ("lstm_int8", DynamicQuantizeLSTM): '
        "Unrecognized attribute: layout for operator Dynamic"
    ),
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. "
    "Name:'r' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/"
    "reshape_helper.h:91 onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&"
    ", onnxruntime::TensorShapeVector&, bool) input_shape_size == requested_shape_size was false. "
    "The input tensor cannot be reshaped to the requested shape. Input shape:{5}\n": (
        "Non-zero status code returned while running Reshape node. Name:'r' Status Message: "
        "input_shape_size == requested_shape_size was false. "
        "The input tensor cannot be reshaped to the requested shape. Input shape:{5}"
    ),
    "Name:'' Status Message: matmul_helper.h:59 Compute MatMul dimension mismatch": (
        "Name:'' Status Message: Compute MatMul dimension mismatch"
    ),
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x for the "
    "following indices\n index: 1 Got: 4 Expected: 3\n Please fix either the inputs/outputs or "
    "the model.": (
        "Got invalid dimensions for input: x for the following indices index: 1 Got: 4 "
        "Expected: 3 Please fix either the inputs/outputs or the model."
    ),
    "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /onnxruntime/onnxruntime/"
    "core/providers/openvino/backends/basic_backend.cc:136 onnxruntime::openvino_ep::"
    "BasicBackend::BasicBackend(std::unique_ptr<onnx::ModelProto>&, ptr_stream_t&) "
    "/onnxruntime/onnxruntime/core/providers/openvino/ov_interface.cc:28 auto onnxruntime::"
    "openvino_ep::OvExceptionBoundary(Func&&, std::format_string<Args ...>&&, Args&& ...) [with "
    "bool typed = false; Func = OVCore::CompileModel(const std::string&)::<lambda()>; "
    "Args = {const std::__cxx11::basic_string<char>&}] [OpenVINO-EP] Exception while Loading "
    "Network for graph G: Exception from src/inference/src/cpp/core.cpp:154:\nException from "
    "src/frontends/onnx/frontend/src/core/graph_cache.cpp:27:\nw2 is not in graph cache\n": (
        "[OpenVINO-EP] Exception while Loading Network for graph G: w2 is not in graph cache"
    ),
    "Exception from src/inference/src/cpp/infer_request.cpp:189:\nCheck '::getPort(port, name, "
    "{_impl->get_inputs(), _impl->get_outputs()})' failed at src/inference/src/cpp/"
    "infer_request.cpp:191:\nPort for tensor name zq was not found.\n\n": (
        "Port for tensor name zq was not found."
    ),
    "/project/onnx/common/ir.h:283: find: Assertion `!required || it != values_.end()` failed: "
    "required undefined attribute 'scales'": "required undefined attribute 'scales'",
    "Unrecognized attribute: layout for operator Relu\n\n==> Context: Bad node spec for node.": (
        "Unrecognized attribute: layout for operator Relu ==> Context: Bad node spec for node."
    ),
    "a plain text, com.microsoft::Gelu (see docs)": "a plain text, com.microsoft::Gelu (see docs)",
}


@pytest.mark.parametrize(("said", "wanted"), SAID.items(), ids=range(len(SAID)))
def test_the_reason_is_left(said: str, wanted: str) -> None:
    assert summarize_error(RuntimeError(said)) == wanted
    assert summarize_error(said) == wanted


def test_an_exception_without_a_text_is_its_type() -> None:
    assert summarize_error(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert summarize_error("") == ""


def test_a_long_text_ends_behind_a_sentence_or_a_word() -> None:
    words = "Some words of a sentence that goes on. " * 20
    assert summarize_error(words, 100) == f"{'Some words of a sentence that goes on. ' * 2}..."
    assert shorten_text("alpha beta gamma delta", 15) == "alpha beta ..."
    assert shorten_text("alpha, beta", 11) == "alpha, beta"
    assert shorten_text("x" * 30, 14) == f"{'x' * 10} ..."


@pytest.mark.parametrize(
    ("noun", "said"),
    [
        *((noun, f"an {noun}") for noun in ("integer", "observer", "If", "LSTM", "RNN", "Add")),
        *((noun, f"a {noun}") for noun in ("number", "GRU", "MatMul", "Loop", "user", "NoneType")),
        *((noun, f"a {noun}") for noun in ("union", "one", "Scan", "string")),
    ],
)
def test_the_article_follows_the_sound(noun: str, said: str) -> None:
    assert with_article(noun) == said


@pytest.mark.parametrize("kind", [OrtuneError, BadData, Refused])
def test_the_two_lines_come_back_from_a_pool_of_processes(kind: type[OrtuneError]) -> None:
    error = pickle.loads(pickle.dumps(kind("no such file: a\x1b.onnx", fix="name another")))
    assert type(error) is kind
    assert (error.what, error.fix) == ("no such file: a\\x1b.onnx", "name another")
    assert str(error) == "no such file: a\\x1b.onnx\n  fix: name another"


def test_what_a_server_refused_keeps_its_status() -> None:
    error = pickle.loads(
        pickle.dumps(refusals.RequestRefused("no such model", refusals.RefusalKind.NOT_FOUND))
    )
    assert (error.what, error.status, str(error)) == (
        "no such model",
        refusals.RefusalKind.NOT_FOUND,
        "no such model",
    )


# What ended a piece of work from outside is known however often its error was wrapped.


def wrap(error: Exception) -> OrtuneError:
    """Return the error that a caller makes of another one."""
    try:
        try:
            raise error
        except Exception as caught:
            raise BadModel(f"it does not build: {caught}", fix="nothing") from None
    except OrtuneError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (OutOfTime("late", fix="longer"), Interruption.TIME),
        (CutShort("killed", fix="again"), Interruption.KILLED),
        (OSError(errno.ENOSPC, "full"), Interruption.DISK),
        (OSError(errno.EDQUOT, "full"), Interruption.DISK),
        (RuntimeError(f"onnx: {os.strerror(errno.ENOSPC)}"), Interruption.DISK),
        (OSError("1048576 requested and 217045 written"), Interruption.DISK),
        (OSError(errno.EACCES, "no"), None),
        (OrtuneError("wrong", fix="right"), None),
        (ValueError("wrong"), None),
    ],
)
def test_it_is_found_through_other_errors(error: Exception, wanted: Interruption | None) -> None:
    assert find_interruption(error) is wanted
    assert find_interruption(wrap(error)) is wanted


def test_it_comes_back_from_another_process() -> None:
    error = CutShort("full", fix="free some", interruption=Interruption.DISK)
    again = pickle.loads(pickle.dumps(error))
    assert (again.what, again.fix, again.interruption) == ("full", "free some", Interruption.DISK)
