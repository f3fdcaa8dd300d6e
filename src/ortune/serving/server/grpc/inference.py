"""ModelInfer and ModelStreamInfer: messages received within bounds, answers and refusals."""

import asyncio
import zlib
from asyncio import CancelledError, Queue, Semaphore, Task
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Any, NoReturn, TypeAlias

import grpc

from ortune.serving.protocol import messages
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused, make_refusal
from ortune.serving.server.grpc.connections import AnswerWatch, ConnectionWatch
from ortune.serving.server.logs import Journal, LoggedRequest
from ortune.serving.server.repository.memory_budget import AnswerRoom
from ortune.serving.server.repository.repository import Repository

RECEIVE_S = 60.0
"""Seconds for the one message of a call: who sends it slower holds no place for ever."""
IDLE_S = 600.0
"""Seconds that a stream may be idle behind its first message."""
_ENDED_S = 1.0
"""Seconds after which the task of a call that gRPC itself has ended is cancelled for certain."""
_GZIP, _ZLIB = b"\x1f\x8b", b"\x78"
"""How compressed messages begin. No message of the service begins so: 0x1f is no tag of protobuf,
and 0x78 is that of a field 15, which none has."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a call says of itself: ``x-request-id``, ``traceparent``, seconds until its deadline.

    With ``triton_grpc_error`` a stream ends with the first refusal, as its status.
    """

    id: str
    trace: str
    ends_on_error: bool
    seconds: float | None


def read_caller(context: Any) -> Caller:
    """Read a call's metadata and deadline."""
    metadata = dict(context.invocation_metadata() or ())
    return Caller(
        metadata.get("x-request-id", ""),
        metadata.get("traceparent", ""),
        metadata.get("triton_grpc_error") == "true",
        context.time_remaining(),
    )


async def receive_message(context: Any, watch: ConnectionWatch) -> bytes:
    """Return the message of a call that has one; the watch hears of it.

    Raises RequestRefused: it is not there in time, or there is none; CancelledError: the call was
    given up, or its message is larger than the limit.
    """
    try:
        async with asyncio.timeout(RECEIVE_S):
            body: bytes = await context.read()
    except TimeoutError:
        raise RequestRefused(
            f"the message did not arrive within {RECEIVE_S:g} s", RefusalKind.TIMED_OUT
        ) from None
    if body is grpc.aio.EOF:
        await asyncio.sleep(_ENDED_S)
        raise RequestRefused("the call has no message")
    watch.count_message(context.peer(), len(body))
    return body


async def inflate_message(body: bytes, most: int) -> bytes:
    """Return a message as it was before the client compressed it; the loop goes on meanwhile.

    gRPC itself inflates without a bound and looks at the length afterwards, so it is told to leave
    messages as they are. Raises RequestRefused: it is damaged, or longer than `most` bytes.
    """
    if body[:2] != _GZIP and not (body[:1] == _ZLIB and int.from_bytes(body[:2]) % 31 == 0):
        return body
    return await asyncio.to_thread(_inflate, body, most)


def _inflate(body: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as its head says
    try:
        message = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestRefused(f"the compressed message is damaged: {error}") from None
    if len(message) > most:
        raise RequestRefused(
            f"the message is larger than {most} bytes when it is inflated", RefusalKind.TOO_LARGE
        )
    if not inflater.eof:
        raise RequestRefused("the compressed message is damaged: it ends too early")
    return message


async def abort_call(context: Any, error: RequestRefused) -> NoReturn:
    """End a call with an error's status and text, in one line: names in it are the client's."""
    await context.abort(grpc.StatusCode[error.status.grpc], " ".join(error.text.split()))
    raise AssertionError("a call that was aborted goes on")


async def log_refusal(journal: Journal, context: Any, error: RequestRefused) -> NoReturn:
    """End a call that reached no model, and log it."""
    journal.log_request(
        LoggedRequest(
            "grpc", "", "", read_caller(context).id, error.status.grpc, 0.0, error=error.text
        )
    )
    await abort_call(context, error)


ROOM_BYTES = 32 << 20
"""Of answers that a connection has not taken; further ones wait, and then so do its requests."""
_LARGE_BYTES = 1 << 20
"""Of an answer that a thread puts together: 16 MB take 10 ms, without Python's lock."""
IN_FLIGHT = 128
"""Requests of one stream that wait or are computed at the same time; further ones are not read."""
_MOST_NAME = 128
"""Characters of what a client calls things, in the journal."""
ENDING = RequestRefused("the server is shutting down", RefusalKind.UNAVAILABLE)
_FINAL = "triton_final_response"
"""Parameter of an answer in a stream: no other one follows to the same request."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """What a request got: a serialized answer, or a refusal; with its id to echo.

    Attributes:
        size: Bytes of its outputs, which it holds twice until it is sent.
    """

    id: str
    answer: bytes | RequestRefused
    size: int = 0


_Replies: TypeAlias = "Queue[tuple[Task[_Reply], asyncio.Event] | None]"
"""Replies in the order of their requests, with what says that they are the next to be sent; None
behind the last."""


class Inference:
    """The two methods that ask a model; `answers` watches how they are taken.

    A call that its client gives up, or whose deadline passes, is cancelled by gRPC: what it waits
    for leaves the model's queue. When `ending`, no call begins any more.
    """

    def __init__(
        self, repository: Repository, journal: Journal, watch: ConnectionWatch, max_message: int
    ) -> None:
        self._repository, self._journal, self._watch = repository, journal, watch
        self._max_message = max_message
        self._room, self.answers = AnswerRoom(ROOM_BYTES), AnswerWatch(journal)
        self._limits, self._memory = repository.limits, repository.memory
        self._reading: set[Task[None]] = set()
        self.ending = False

    async def infer_unary(self, requests: Any, context: Any) -> bytes:
        """Answer ModelInfer, as a stream of one message: so its arrival can be bounded in time."""
        call = read_caller(context)
        try:
            body = await receive_message(context, self._watch)
            answering = self._answer_request(body, call, context.peer())
            del body
        except RequestRefused as error:
            await log_refusal(self._journal, context, error)
        answer = (reply := await answering).answer
        if isinstance(answer, RequestRefused):
            await abort_call(context, answer)
        end_watch, call_context = self.answers.begin(context.peer(), len(answer)), copy_context()
        size, peer = reply.size, context.peer()
        del reply

        def end(_: Any) -> None:  # the client has it, or is gone
            end_watch()
            call_context.run(self._release_answer, peer, size)

        context.add_done_callback(end)
        return answer

    async def infer_stream(self, requests: Any, context: Any) -> None:
        """Answer ModelStreamInfer: replies in the order of the requests, errors among them."""
        if self.ending:  # it was let in a moment before
            await abort_call(context, ENDING)
        call = read_caller(context)
        replies: _Replies = Queue()
        pending: tuple[Task[_Reply], asyncio.Event] | None = None
        peer = context.peer()
        room = Semaphore(IN_FLIGHT)
        reading = asyncio.create_task(self._read_requests(context, call, replies, room))
        reading.add_done_callback(lambda _: replies.put_nowait(None))
        self._reading.add(reading)
        try:
            while (pending := await replies.get()) is not None:
                answering, turn = pending
                turn.set()
                answer = (reply := await answering).answer
                if not isinstance(answer, RequestRefused):
                    with self.answers.expect_taken(peer, len(answer)):
                        await context.write(answer)
                    self._release_answer(peer, reply.size)
                    pending = None
                elif call.ends_on_error:
                    await abort_call(context, answer)
                else:
                    failed = messages.find_message_class("ModelStreamInferResponse")(
                        error_message=answer.text, infer_response={"id": reply.id}
                    )
                    await context.write(failed.SerializeToString())
                room.release()
            await asyncio.wait([reading])
        finally:
            self._reading.discard(reading)
            reading.cancel()
            while pending is not None or not replies.empty():
                ended, pending = pending or replies.get_nowait(), None
                if ended is not None and not ended[0].cancel() and not ended[0].cancelled():
                    self._release_answer(peer, ended[0].result().size)
        if reading.cancelled():
            await abort_call(context, ENDING)
        try:
            reading.result()
        except RequestRefused as error:
            await abort_call(context, error)

    def end_streams(self) -> None:
        """Read no more from streams: they end when what was read is answered; none begins."""
        self.ending = True
        for reading in self._reading:
            reading.cancel()

    async def _read_requests(
        self, context: Any, call: Caller, replies: _Replies, room: Semaphore
    ) -> None:
        """Ask for every message of a stream; the tasks are queued before they end."""
        seconds = RECEIVE_S
        while True:
            await room.acquire()
            try:
                async with asyncio.timeout(seconds):
                    body = await context.read()
            except TimeoutError:
                raise RequestRefused(
                    f"the stream was idle for {seconds:g} s", RefusalKind.TIMED_OUT
                ) from None
            seconds = IDLE_S
            if body is grpc.aio.EOF:
                return
            self._watch.count_message(context.peer(), len(body))
            turn = asyncio.Event()
            streamed = self._answer_request(body, call, context.peer(), turn)
            del body  # the next one may be long in coming
            replies.put_nowait((asyncio.create_task(streamed), turn))

    def _release_answer(self, peer: str, size: int) -> None:
        """Take note that an answer was sent, or will never be."""
        self._memory.release_bytes(2 * size)
        self._room.leave(peer, size)

    async def _answer_request(
        self, body: bytes, call: Caller, peer: str, turn: asyncio.Event | None = None
    ) -> _Reply:
        """Answer one request, or say why not; nothing but a cancellation is raised.

        Of a stream, `turn` says that it is the next to be sent. Before that its answer takes no
        room, for which those before it may wait.
        """
        began = perf_counter_ns()
        model = version = id = error = ""
        status, queue_ms, rows = "OK", 0.0, 0
        answer: bytes | RequestRefused
        held_bytes = answer_bytes = size = 0
        try:
            self._memory.reserve_bytes(len(body))
            held_bytes = len(body)
            addressed = messages.deserialize_request(
                await inflate_message(body, self._max_message)
            )
            model, version = addressed.model, addressed.version
            id = addressed.declared.request.id
            served = self._repository.find_model(model, version)
            version = served.version
            request = await served.read(addressed.declared)
            if call.seconds is not None:  # it waits no longer than its call
                remaining_us = max(1, int(call.seconds * 1e6))
                if remaining_us < (
                    request.timeout_us or self._limits.timeout_s * 1e6 or remaining_us + 1
                ):
                    request = replace(request, timeout_us=remaining_us)
            await self._room.enter(peer, 0)
            self._memory.release_bytes(held_bytes)  # its inputs count from here on
            held_bytes, body = 0, b""
            response = await served.infer(request)
            answer_bytes = response.held_bytes
            queue_ms, rows = response.queue_ns / 1e6, response.rows
            if turn is not None:
                final = {**response.parameters, _FINAL: True}
                response = replace(response, parameters=final)
                await turn.wait()
            await self._room.enter(peer, answer_bytes)
            size = answer_bytes
            self._memory.reserve_bytes(size)  # a copy
            answer_bytes += size
            serialize = partial(messages.serialize_response, response, streamed=turn is not None)
            answer = serialize() if size < _LARGE_BYTES else await asyncio.to_thread(serialize)
        except CancelledError:
            self._memory.release_bytes(answer_bytes)
            self._room.leave(peer, size)
            status = RefusalKind.CANCELLED.grpc
            raise
        except Exception as raised:
            self._memory.release_bytes(answer_bytes)
            self._room.leave(peer, size)
            size, answer = 0, make_refusal(raised)
            status, error = answer.status.grpc, answer.text
        finally:
            self._memory.release_bytes(held_bytes)
            self._journal.log_request(
                LoggedRequest(
                    front="grpc",
                    model=model[:_MOST_NAME],
                    version=version[:_MOST_NAME],
                    id=(id or call.id)[:_MOST_NAME],
                    status=status,
                    ms=(perf_counter_ns() - began) / 1e6,
                    queue_ms=queue_ms,
                    rows=rows,
                    error=error,
                    trace=call.trace,
                )
            )
        return _Reply(id, answer, size)
