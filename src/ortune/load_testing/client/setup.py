"""What a client process is told: once where to, then level by level what to send."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setup:
    """Where to send what.

    Attributes:
        protocol: ``http`` or ``grpc``.
        requests: Files, each a whole request.
        open: It will send at a schedule; else callers wait for answers.
        room: Requests under way at most.
        timeout_s: Longest wait for an answer.
        tls: Encrypted.
        ca: File with certificates to trust; empty for the system's.
        token: Sent along over gRPC; over HTTP the requests hold it.
        kept: Right answers are kept, one of each kind, to be compared.
        spread: Connections at least, used in turn, however few the callers.
    """

    protocol: str
    host: str
    port: int
    requests: tuple[str, ...]
    open: bool
    room: int
    timeout_s: float
    tls: bool = False
    ca: str = ""
    token: str = ""
    kept: bool = False
    spread: int = 0


@dataclass(frozen=True)
class Stretch:
    """Requests of one client process, without a pause.

    Attributes:
        at: When it begins, by ``time.perf_counter_ns``, which all processes of a machine share.
        out: Folder for the log and the answers.
        callers: Of a closed loop.
        requests: Of a closed loop; 0 for as many as there is time for.
        seconds: Of a closed loop without `requests`.
        due: File with the intended starts of an open loop, 64-bit nanoseconds from `at`.
    """

    at: int
    out: str
    callers: int = 0
    requests: int = 0
    seconds: float = 0.0
    due: str = ""


@dataclass(frozen=True)
class Done:
    """What became of a stretch.

    Attributes:
        log: File with four 64-bit numbers a request: intended start, start, end, place in `words`.
        words: What was wrong; the first, empty, for nothing.
        examples: Word -> the text of its first error.
        cpu_s: CPU seconds that the process took for it.
        wall_s: How long it took.
        answers: (sample, count, bytes of JSON at its head or -1, file) of each kind.
        left: Answers beyond those kinds, which were not kept.
    """

    log: str
    words: tuple[str, ...]
    examples: dict[str, str]
    cpu_s: float
    wall_s: float
    answers: tuple[tuple[int, int, int, str], ...] = ()
    left: int = 0
