"""One version of one model: requests in, answers out, each checked, bounded and counted."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadModel
from ortune.core.facts import TensorSpec
from ortune.engine.batching import QueueFull
from ortune.engine.call import Call
from ortune.engine.instances import Serving
from ortune.engine.joining import Outputs, free
from ortune.protocol import metadata
from ortune.protocol.check import check
from ortune.protocol.classification import classify
from ortune.protocol.datatypes import datatype
from ortune.protocol.inference import Asked, InferRequest, InferResponse, Output
from ortune.protocol.status import Refused, Status, refused
from ortune.server.repository.pictures import Decoder
from ortune.server.repository.tally import Tally

PLATFORM = "onnxruntime_onnx"
"""Triton's word for what computes ONNX files."""
NOT_READY = "Server not ready"
FULL = "Exceeds maximum queue size"
LATE = "Request timeout expired"


@dataclass(frozen=True)
class Limits:
    """What a server lets in.

    Attributes:
        max_queue: Requests that wait for one model at most.
        timeout_s: Seconds after which a request that names no time-out of its own is given up; 0
            for none.
        max_body: Bytes of a request at most, also when they are unpacked.
    """

    max_queue: int = 1024
    timeout_s: float = 60.0
    max_body: int = 64 << 20


class Served:
    """One version of one model, behind the protocol. All of it belongs to one event loop.

    Attributes:
        name: Of the model.
        version: A number in digits.
        inputs: What the model takes.
        outputs: Those of what it gives that the protocol can carry.
        max_batch: Rows of a request at most; 0 where the first dimension is no batch, or the
            engine joins nothing: then requests have as many rows as they like.
        tally: What became of its requests.
    """

    def __init__(
        self,
        name: str,
        version: str,
        call: Call,
        limits: Limits,
        tally: Tally,
        *,
        versions: Callable[[], Sequence[str]] | None = None,
        current: Callable[[str, str], Served] | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """Serve an engine's model.

        Args:
            versions: All versions of the model that are served.
            current: What answers in its place, by name and version, once it is closed.
            decoder: Reads pictures.

        Raises:
            BadModel: It has an input, or nothing but outputs, that the protocol cannot carry.
        """
        self.name, self.version, self.tally = name, version, tally
        self.inputs = call.signature.inputs
        self.outputs = _carried(name, call.signature.inputs, call.signature.outputs)
        self._how: Serving = getattr(call, "serving", Serving())
        joined = free(call.signature) and self._how.max_batch > 1
        self.max_batch = self._how.max_batch if joined else 0
        self._call, self._limits = call, limits
        self._all = tuple(Asked(spec.name) for spec in self.outputs)
        self._datatypes = {spec.name: datatype(spec.dtype) for spec in self.outputs}
        self._texts = tuple(spec.name for spec in self.inputs if spec.dtype == "str")
        self._versions = versions or (lambda: [version])
        self._current, self._decoder = current, decoder or Decoder(1)
        self._running = 0
        self._stopped = self._closed = False
        self._idle = asyncio.Event()
        tally.follow(call)

    @property
    def takes_pictures(self) -> bool:
        """Whether a JPEG or PNG may be posted in the place of tensors."""
        return self._call.pictures is not None

    @property
    def running(self) -> int:
        """Requests that are not answered yet."""
        return self._running

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer one request.

        Raises:
            Refused: It does not fit the model, too many wait, it ran out of time, the server
                stops, or the model failed.
        """
        if self._closed and self._current is not None:
            return await self._current(self.name, self.version).infer(request)
        began, computing = perf_counter_ns(), False
        self._running += 1
        try:
            self._admit(request)
            feeds = self._feeds(request.inputs)
            computing = True
            started = perf_counter_ns()
            outputs = await self._answered(feeds, request.timeout_us / 1e6)
            ended = perf_counter_ns()
            response = self._response(request, outputs)
        except CancelledError:
            self.tally.refuse(Status.CANCELLED, perf_counter_ns() - began)
            raise
        except Exception as error:
            told = refused(error)
            failed = computing and not isinstance(error, Refused)
            self.tally.refuse(told.status, perf_counter_ns() - began, computed=failed)
            raise told from error
        else:
            times = started, started, ended, perf_counter_ns()
            self.tally.count(self._rows(feeds), began, *times)
            return response
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def infer_picture(self, body: bytes, id: str = "") -> InferResponse:
        """Answer one JPEG or PNG, prepared as the model's bundle says.

        Raises:
            Refused: The model takes no pictures, it is none, or as for `infer`.
        """
        taker = self._call.pictures
        if taker is None:
            raise Refused(
                f"model '{self.name}' does not know how pictures become its input",
                Status.UNSUPPORTED,
                "send tensors, or pack the bundle with --preprocess",
            )
        began = perf_counter_ns()
        try:
            self._demand_ready()
            inputs = await self._decoder.tensors(taker, body)
        except Exception as error:
            told = refused(error)
            self.tally.refuse(told.status, perf_counter_ns() - began)
            raise told from error
        return await self.infer(InferRequest(inputs, id=id))

    # --- what it says of itself -------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """Return name, versions, inputs and outputs."""
        return metadata.model_metadata(
            self.name, self._versions(), PLATFORM, self.inputs, self.outputs
        )

    def config(self) -> dict[str, Any]:
        """Return how it is served."""
        how = self._how
        return metadata.model_config(
            self.name,
            PLATFORM,
            self.inputs,
            self.outputs,
            max_batch=self.max_batch,
            instances=how.instances,
            delay_us=how.max_delay_us,
            preferred=getattr(how, "preferred", ()),
        )

    def statistics(self) -> dict[str, Any]:
        """Return its entry of ``model_stats``."""
        return self.tally.told(self.name, self.version)

    # --- its end ----------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuse requests from now on; those that run are answered."""
        self._stopped = True

    async def close(self) -> None:
        """Return when no request runs; those that come later are another one's."""
        while self._running:
            self._idle.clear()
            await self._idle.wait()
        self._closed = True
        self.tally.leave(self._call)

    # --- one request ------------------------------------------------------------------------

    def _admit(self, request: InferRequest) -> None:
        """Refuse what the model cannot take, before it waits."""
        self._demand_ready()
        check(
            request,
            self.inputs,
            max_batch=self.max_batch,
            model=self.name,
            outputs=self.outputs,
        )

    def _demand_ready(self) -> None:
        if self._stopped or self._closed:
            raise Refused(NOT_READY, Status.UNAVAILABLE)

    def _feeds(self, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the inputs with texts in the place of bytes, which the runtimes take."""
        if not self._texts:
            return inputs
        return {**inputs, **{name: _text(name, inputs[name]) for name in self._texts}}

    async def _answered(self, feeds: Mapping[str, NDArray[Any]], seconds: float) -> Outputs:
        """Have a request computed, within its time or not at all: then it leaves the queue."""
        try:
            async with asyncio.timeout(seconds or self._limits.timeout_s or None):
                return await self._call.submit(**feeds)
        except QueueFull:
            raise Refused(FULL, Status.UNAVAILABLE) from None
        except TimeoutError:
            raise Refused(LATE, Status.TIMED_OUT) from None

    def _rows(self, feeds: Mapping[str, NDArray[Any]]) -> int:
        return len(feeds[self.inputs[0].name]) if self.max_batch else 1

    def _response(
        self, request: InferRequest, outputs: Mapping[str, NDArray[Any]]
    ) -> InferResponse:
        chosen = request.outputs or self._all
        made = [
            Output(one.name, self._datatypes[one.name], outputs[one.name])
            if not one.classes
            else self._classes(one, outputs[one.name])
            for one in chosen
        ]
        return InferResponse(self.name, self.version, request.id, made)

    def _classes(self, asked: Asked, array: NDArray[Any]) -> Output:
        batched = self.max_batch > 0
        return Output(asked.name, "BYTES", classify(array, asked.classes, batched=batched))


def _carried(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return the outputs that the protocol can carry: arrays of its datatypes."""
    lost = [spec for spec in inputs if not _is_carried(spec)]
    kept = tuple(spec for spec in outputs if _is_carried(spec))
    if lost or not kept:
        what = f"input '{lost[0].name}' is {lost[0].dtype}" if lost else "no output is an array"
        raise BadModel(
            f"{name} cannot be served: {what}",
            fix="the Open Inference Protocol carries arrays of plain numbers and texts alone",
        )
    return kept


def _is_carried(spec: TensorSpec) -> bool:
    try:
        datatype(spec.dtype)
    except Refused:
        return False
    return spec.shape is not None


def _text(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of ``str``.

    Raises:
        Refused: Bytes are no UTF-8, which is what ONNX' texts are.
    """
    made = np.empty(array.shape, object)
    try:
        made.ravel()[:] = [
            one.decode() if isinstance(one, bytes) else one for one in array.ravel()
        ]
    except UnicodeDecodeError as error:
        raise Refused(f"input '{name}' holds bytes that are no UTF-8: {error.reason}") from None
    return made
