"""One version of one model: requests in, answers out, each checked, bounded and counted."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine.batching import QueueFull, TimedAnswer, has_free_batch
from ortune.bundle.engine.call import Call, PictureInput
from ortune.core.errors import BadData, BadModel, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.hardware.cpus import effective_cpus
from ortune.serving.protocol import metadata
from ortune.serving.protocol.datatypes import (
    RAW_ONLY,
    classify,
    decode_texts,
    find_datatype,
    has_datatype,
)
from ortune.serving.protocol.inference import (
    SMALL_BYTES,
    DeclaredRequest,
    InferRequest,
    InferResponse,
    Output,
    OutputRequest,
    check_request,
    count_numbers,
)
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused, make_refusal
from ortune.serving.server.repository.counters import Counters
from ortune.serving.server.repository.memory_budget import FULL, MemoryBudget, count_held_bytes

NOT_READY = "Server not ready"
LATE = "Request timeout expired"

T = TypeVar("T")


class Timeouts:
    """Gives up what takes longer than so many seconds, if not 0. It belongs to one event loop.

    As `asyncio.timeout`, whose timer for each request costs as much as all else that is done for a
    small one.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run_within(self, work: Awaitable[T]) -> T:
        """Await some work in the current task; TimeoutError where its time was over."""
        task = asyncio.current_task()
        if not self._seconds or task is None:
            return await work
        loop, cancellations = asyncio.get_running_loop(), task.cancelling()
        self._due[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._cancel_late, loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._late and task.uncancel() <= cancellations:
                raise TimeoutError from None
            raise
        finally:
            del self._due[task]
            self._late.discard(task)

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is late, and look again when the next one will be."""
        self._timer, now = None, loop.time()
        for task, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._cancel_late, loop)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()


def select_carriable(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return outputs of the protocol's datatypes; BadModel: an input has none, or no output."""
    unsupported = [spec for spec in inputs if not has_datatype(spec.dtype)]
    supported = tuple(spec for spec in outputs if has_datatype(spec.dtype))
    if unsupported or not supported:
        problem = (
            f"input '{unsupported[0].name}' is {unsupported[0].dtype}"
            if unsupported
            else "no output is an array"
        )
        raise BadModel(
            f"{name} cannot be served: {problem}",
            fix="export it with arrays of plain numbers or texts: the protocol carries no others",
        )
    return supported


FORMATS = ("JPEG", "PNG")
MOST_PIXELS = 1 << 26
"""A picture of more is refused before it is unpacked: a few kB of PNG may claim any size."""


class Decoder:
    """Turns pictures into tensors while the loop goes on; at `most` so many wait to be read."""

    def __init__(self, most: int) -> None:
        self._most, self._waiting = most, 0
        self._threads = ThreadPoolExecutor(min(4, effective_cpus()), "ortune pictures")

    async def decode_picture(self, taker: PictureInput, body: bytes) -> Mapping[str, NDArray[Any]]:
        """Return the inputs that a picture stands for.

        Raises BadData: it is no JPEG or PNG, too large, or damaged; RequestRefused: too many wait.
        """
        if self._waiting >= self._most:
            raise RequestRefused(FULL, RefusalKind.UNAVAILABLE)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _decode_picture, taker, body)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads behind what they read."""
        self._threads.shutdown(wait=False)


def _decode_picture(taker: PictureInput, body: bytes) -> Mapping[str, NDArray[Any]]:
    try:
        from PIL import Image
    except ImportError:
        raise RequestRefused(
            "this server reads no pictures",
            RefusalKind.UNSUPPORTED,
            "pip install pillow",
        ) from None
    try:
        with Image.open(io.BytesIO(body), formats=FORMATS) as picture:
            wide, high = picture.size
            if wide * high > MOST_PIXELS:
                raise BadData(
                    f"the picture has {wide}x{high} pixels, and {MOST_PIXELS} are the most",
                    fix="make it smaller before it is sent",
                )
            return taker.replace_pictures({taker.tensor_check.spec.name: picture})
    except OrtuneError:
        raise
    except Exception:  # whatever Pillow raises of a broken file
        raise BadData("the body is no JPEG or PNG", fix="send a file of one of these") from None


PLATFORM = "onnxruntime_onnx"
"""Triton's word for what computes ONNX files."""


@dataclass(frozen=True)
class Limits:
    """What a server lets in.

    Attributes:
        max_queue: Requests that wait for one model at most.
        timeout_s: Seconds after which a request that names no time-out of its own is given up; 0
            for none.
        max_body: Bytes of a request at most, also when they are unpacked.
        fits_models: A request may have no more than the inputs of its model can take either.
        max_held: Bytes of all requests and answers, until these are sent, at most; one alone may
            have more.
    """

    max_queue: int = 1024
    timeout_s: float = 60.0
    max_body: int = 64 << 20
    fits_models: bool = False
    max_held: int = 1 << 30


@dataclass(frozen=True, slots=True)
class TimedResponse(InferResponse):
    """An answer with its rows, what it waited and what its run took.

    Its outputs hold bytes of the server's `MemoryBudget`; who sends them gives these back when the
    client has taken them.
    """

    rows: int = 1
    queue_ns: int = 0
    infer_ns: int = 0
    held_bytes: int = 0


_NUMBER_CHARS, _NUMBER_BYTES = 64, 16
"""Of a number at most: in JSON, with its place in a list that is set out by lines; in any other
form, the widest of which is protobuf's of typed contents."""
_BESIDE_NUMBERS = 1 << 20
"""Bytes of a request beside its numbers: names, parameters, what is asked for."""


@dataclass(frozen=True, eq=False)
class ServerContext:
    """What the models of a server share.

    `timeouts` bounds what names no bound; `current` is the model of a name and version, `versions`
    those of a name, as served now.
    """

    limits: Limits
    memory: MemoryBudget
    timeouts: Timeouts
    decoder: Decoder
    current: Callable[[str, str], ServedModel]
    versions: Callable[[str], Sequence[str]]


class ServedModel:
    """One version of one model, behind the protocol. All of it belongs to one event loop.

    Attributes:
        version: A number in digits.
        outputs: Those of what it gives that the protocol can carry.
        max_batch: Rows of a request at most; 0 where the first dimension is no batch, or the
            engine joins nothing: then requests have as many rows as they like.
        running: Requests that are not answered yet.
    """

    def __init__(
        self, name: str, version: str, call: Call, counters: Counters, around: ServerContext
    ) -> None:
        """Serve a model; BadModel for an input, or only outputs, that the protocol has not."""
        self.name, self.version, self.call, self.counters = name, version, call, counters
        self.inputs = call.signature.inputs
        self.outputs = select_carriable(name, call.signature.inputs, call.signature.outputs)
        joined = has_free_batch(call.signature) and call.serving.max_batch > 1
        self.max_batch = call.serving.max_batch if joined else 0
        self._context = around
        self._all = tuple(OutputRequest(spec.name) for spec in self.outputs)
        self._datatypes = {spec.name: find_datatype(spec.dtype) for spec in self.outputs}
        self._raw_only = not RAW_ONLY.isdisjoint(self._datatypes.values())
        self._described = tuple(
            [
                replace(tensor, shape=(None,)) if tensor.shape is None else tensor
                for tensor in specs
            ]
            for specs in (self.inputs, self.outputs)
        )  # one free dimension where the rank is not known
        self._texts = tuple(spec.name for spec in self.inputs if spec.dtype == "str")
        self._most_numbers = count_numbers(self.inputs, self.max_batch)
        self.running = 0
        self._stopped = self._closed = False
        self._idle = asyncio.Event()

    async def read(self, declared: DeclaredRequest) -> InferRequest:
        """Return a request with its data; of a large one what it declares is checked first.

        What is parsed element by element then is so in a thread, while the loop goes on. Raises
        RequestRefused: it does not fit the model, or its data does not fit its shapes.
        """
        if declared.parsed_bytes <= SMALL_BYTES:
            return declared.read()
        began = perf_counter_ns()
        try:
            self._check_request(declared.request)
        except RequestRefused as error:
            raise self._count_refusal(error, began) from None
        return await asyncio.to_thread(declared.read)

    def bound_json(self) -> int:
        """Return how many bytes a request may have that is JSON alone."""
        most, numbers = self._context.limits.max_body, self._most_numbers
        return most if numbers is None else min(most, SMALL_BYTES + _NUMBER_CHARS * numbers)

    def bound_body(self, json_bytes: int) -> int:
        """Return how many bytes a request may have with so many of JSON, and tensors in binary.

        Raises RequestRefused: its JSON is larger than that of any request that the model takes.
        """
        limits, numbers = self._context.limits, self._most_numbers
        if numbers is None:
            return limits.max_body
        if json_bytes > (most := SMALL_BYTES + _NUMBER_CHARS * numbers):
            raise RequestRefused(
                f"{json_bytes} bytes of JSON are more than any inputs of model '{self.name}' "
                f"take: {most}",
                RefusalKind.TOO_LARGE,
                "send as many rows and elements as the model takes",
            )
        if not limits.fits_models:
            return limits.max_body
        return min(limits.max_body, _BESIDE_NUMBERS + json_bytes + _NUMBER_BYTES * numbers)

    def _check_request(self, request: InferRequest) -> None:
        check_request(
            request,
            self.inputs,
            max_batch=self.max_batch,
            model=self.name,
            outputs=self.outputs if request.outputs or self._raw_only else (),
            optional=self.call.optional,
        )

    async def infer(self, request: InferRequest) -> TimedResponse:
        """Answer one request.

        Raises RequestRefused: it does not fit the model, too many wait, it ran out of time, the
        server stops, or the model failed.
        """
        if (other := self._find_successor()) is not None:
            return await other.infer(request)
        began, computing, size = perf_counter_ns(), False, 0
        self.running += 1
        try:
            # Refuse what the model cannot take, before it waits.
            if self._stopped or self._closed:
                raise RequestRefused(NOT_READY, RefusalKind.UNAVAILABLE)
            self._check_request(request)
            self._context.memory.reserve_bytes(
                arrived := sum(map(count_held_bytes, request.inputs.values()))
            )
            size = arrived
            feeds = dict(request.inputs)
            for name in filter(feeds.__contains__, self._texts):  # runtimes take texts, not bytes
                array = np.empty(feeds[name].shape, object)
                array.ravel()[:] = decode_texts(feeds[name], f"input '{name}'", "send texts alone")
                feeds[name] = array
            computing = True
            answer = await self._compute_answer(feeds, request.timeout_us / 1e6)
            chosen = request.outputs or self._all
            outputs = [
                await self._make_output(tensor, answer.outputs[tensor.name]) for tensor in chosen
            ]
            self._context.memory.release_bytes(size)
            size = 0
            self._context.memory.reserve_bytes(
                answer_bytes := sum(count_held_bytes(output.array) for output in outputs)
            )
        except BaseException as error:
            raise self._count_refusal(error, began, computing=computing) from None
        else:
            rows = len(feeds[self.inputs[0].name]) if self.max_batch else 1
            self.counters.count_answer(rows, began, answer, perf_counter_ns())
            waited = answer.started_ns - answer.queued_ns
            took = answer.ended_ns - answer.started_ns
            return TimedResponse(
                self.name, self.version, request.id, outputs, {}, rows, waited, took, answer_bytes
            )
        finally:
            self._context.memory.release_bytes(size)
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def infer_picture(self, body: bytes, id: str = "") -> TimedResponse:
        """Answer one JPEG or PNG, prepared as the model's bundle says.

        Raises RequestRefused: the model takes no pictures, it is none, or as for `infer`.
        """
        if (other := self._find_successor()) is not None:
            return await other.infer_picture(body, id)
        taker = self.call.pictures
        if taker is None:
            raise RequestRefused(
                f"model '{self.name}' does not know how pictures become its input",
                RefusalKind.UNSUPPORTED,
                "send tensors, or pack the bundle with --preprocess",
            )
        began = perf_counter_ns()
        try:
            inputs = await self._context.decoder.decode_picture(taker, body)
        except BaseException as error:
            raise self._count_refusal(error, began) from None
        return await self.infer(InferRequest(inputs, id=id))

    # --- what it says of itself -------------------------------------------------------------

    def build_metadata(self) -> dict[str, Any]:
        """Return name, versions, inputs and outputs."""
        versions = self._context.versions(self.name)
        return metadata.model_metadata(self.name, versions, PLATFORM, *self._described)

    def build_config(self) -> dict[str, Any]:
        """Return how it is served."""
        how = self.call.serving
        return metadata.model_config(
            self.name,
            PLATFORM,
            *self._described,
            max_batch=self.max_batch,
            instances=how.groups,
            delay_us=how.max_delay_us,
            preferred=how.preferred,
            optional=self.call.optional,
        )

    def build_statistics(self) -> dict[str, Any]:
        """Return its entry of ``model_stats``."""
        return self.counters.build_statistics(self.name, self.version)

    # --- its end ----------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuse requests from now on; those that run are answered."""
        self._stopped = True

    async def close(self) -> None:
        """Return when no request runs; those that come later are another one's."""
        while self.running:
            self._idle.clear()
            await self._idle.wait()
        self._closed = True

    # --- one request ------------------------------------------------------------------------

    def _find_successor(self) -> ServedModel | None:
        """Return what answers in the place of a model that is closed."""
        if not self._closed:
            return None
        successor = self._context.current(self.name, self.version)
        return None if successor is self else successor

    async def _compute_answer(
        self, feeds: Mapping[str, NDArray[Any]], seconds: float
    ) -> TimedAnswer:
        """Have a request computed, within its time or not at all: then it leaves the queue."""
        work = self.call.answered(**feeds)
        try:
            if not seconds:
                return await self._context.timeouts.run_within(work)
            async with asyncio.timeout(seconds):
                return await work
        except QueueFull:
            raise RequestRefused(FULL, RefusalKind.UNAVAILABLE) from None
        except TimeoutError:
            raise RequestRefused(LATE, RefusalKind.TIMED_OUT) from None

    def _count_refusal(
        self, error: BaseException, began: int, *, computing: bool = False
    ) -> BaseException:
        """Count a request without an answer, and return what is raised of it.

        It is raised by who has caught the error, not here: a frame that holds an error that holds
        the frame keeps the request in memory until garbage is collected. Where it was `computing`,
        what is raised is the model's.
        """
        took = perf_counter_ns() - began
        if isinstance(error, RequestRefused):
            self.counters.count_refusal(error.status, took)
            return error
        if not isinstance(error, Exception):
            self.counters.count_refusal(RefusalKind.CANCELLED, took)
            return error
        refusal = make_refusal(error)
        self.counters.count_refusal(refusal.status, took, computed=computing)
        return refusal

    async def _make_output(self, output_request: OutputRequest, array: NDArray[Any]) -> Output:
        """Return an output as it is, or its classes: sorting them must not hold up the loop."""
        if not output_request.classes:
            return Output(output_request.name, self._datatypes[output_request.name], array)
        batched = self.max_batch > 0
        ranked = await asyncio.to_thread(classify, array, output_request.classes, batched=batched)
        return Output(output_request.name, "BYTES", ranked)
