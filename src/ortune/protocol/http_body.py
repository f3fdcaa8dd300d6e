"""Bodies of infer requests and answers over HTTP: JSON, then binary tensors."""

from __future__ import annotations

from ortune.protocol.inference import InferRequest, InferResponse


def parse(body: bytes | memoryview, header_length: int | None) -> InferRequest:
    """Read the body of an infer request.

    Args:
        body: All of it, inflated. Arrays that lie aligned in it are views of it, others copies: a
            body whose JSON ends at a multiple of 8 bytes in memory is copied nowhere.
        header_length: Bytes of the JSON at its head (``Inference-Header-Content-Length``); None
            where the body is JSON alone.

    Raises:
        Refused: It is no request, or its data does not fit its shapes.
    """
    raise NotImplementedError


def write(
    response: InferResponse, request: InferRequest
) -> tuple[list[bytes | memoryview], int | None]:
    """Return the body of an answer in chunks, and the length of its JSON.

    The length is None where no output is binary: then the body is JSON alone.

    Raises:
        Refused: An output that JSON cannot carry is asked for in JSON.
    """
    raise NotImplementedError
