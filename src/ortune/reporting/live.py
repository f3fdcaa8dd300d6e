"""Reports of runs in a browser of this machine, kept up to date while their searches go on.

A page is a frame that asks its own server for its parts every two seconds. Whoever does not know
the token in the address gets nothing, and neither does a page of another origin, nor a name that
was made to point to this machine.
"""

import hmac
import json
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ortune.bundle.pack import pack
from ortune.core import wording as say
from ortune.core.errors import OrtuneError, escape_control_chars, make_unexpected_error
from ortune.core.result import format_size
from ortune.core.section import Text
from ortune.core.study import AT_WORK, Study
from ortune.core.trial import Trial
from ortune.reporting.beside import build_report_parts
from ortune.reporting.blocks import Part
from ortune.reporting.compared import build_compared_parts
from ortune.reporting.html import FOOT, describe_job, name_study, render_page, render_section
from ortune.search.experiment.ledger import (
    has_trials,
    is_at_work,
    read_now,
    stamp_run,
    watch_study,
)

_THIS_MACHINE = ("127.0.0.1", "localhost")
_LONGEST = 4096
"""Bytes of what a page may send."""
_STATES = {"time": "done, all time used", "target": "done, target reached"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
_REPORT = "report it, with the run where you may"
_NOT_YET = "The original is not measured yet."


def list_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder, itself among them, by name."""
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [path for path in places if (path / "header.json").is_file()]


@dataclass(frozen=True)
class Watched:
    """The runs that pages show, by their places."""

    runs: list[Path]  # their folders; those that come into `folder` later stand behind them
    folder: Path | None = None  # where to look for more; None looks nowhere
    _built: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find_run(self, place: str) -> Path:
        """Return a run by its place.

        Raises:
            LookupError: There is none.
        """
        if not place.isdecimal():
            raise LookupError(place)
        return self.runs[int(place)]

    def describe(self, path: Sequence[str], seen: str) -> dict[str, Any]:
        """Return what a page shows; its parts only where they are not those that it has seen.

        Raises:
            LookupError: There is no such page.
        """
        with self._lock:
            if self.folder is not None:
                self.runs.extend(run for run in list_runs(self.folder) if run not in self.runs)
            roots = [self.find_run(place) for place in path[1:]] if path else self.runs
            stamp = "/".join((str(len(self.runs)), *map(stamp_run, roots)))
            name = "/".join(path)
            if self._built.get(name, ("",))[0] != stamp:
                self._built[name] = (stamp, _build_page(path, roots))
            content: Mapping[str, Any] = {} if stamp == seen else self._built[name][1]
        now = _describe_now(roots[0]) if path[:1] == ["run"] else {}
        return {"stamp": stamp, "now": now, "start": len(self.runs) > 1 and bool(path), **content}

    def pack_plan(self, root: Path, key: str) -> Path:
        """Pack a plan of a run into a bundle in its folder, `KEY.ortune`.

        Raises:
            OrtuneError: A search is at work there, the plan is none of its front, or it cannot be
                packed.
        """
        with self._lock:
            study = watch_study(root)
            if study.finished == AT_WORK:
                raise OrtuneError("the search is still at work", fix="pack it when that has ended")
            if key not in {trial.key for trial in list_packable(study)}:
                raise OrtuneError("this plan is not on the front", fix="load the page again")
            confirmed = study.is_confirmed(study.find(key) or study.baseline)
            path = root / f"{key[:8]}.ortune"
            return pack(study, path, trial=key, unconfirmed=not confirmed, force=True)


def list_packable(study: Study) -> list[Trial]:
    """Return the plans that may be packed from a page: finalists, then others of the front."""
    trials = {trial.key: trial for trial in (study.best, *study.final, *study.front())}
    return [study.find(key) or trial for key, trial in trials.items() if not trial.error]


def _build_page(path: Sequence[str], roots: Sequence[Path]) -> dict[str, Any]:
    """Return title, subtitle, parts as HTML, and plans to pack, of a page."""
    studies = [_read_or_excuse(root) for root in roots]
    if not path:
        return {"title": "Runs", "about": "", "parts": [["runs", _list_as_table(roots, studies)]]}
    read = [study for study in studies if isinstance(study, Study)]
    if excuses := [study for study in studies if isinstance(study, str)]:
        waiting = Part("waiting", tuple(map(Text, excuses)))
        return {"title": " and ".join(map(str, roots)), "about": "", "parts": _render([waiting])}
    if path[0] == "compare":
        title, parts = build_compared_parts(*read)
        return {"title": title, "about": "", "parts": _render(parts)}
    (study,) = read
    at_work = study.finished == AT_WORK
    packable = [] if at_work else [_describe_packable(study, t) for t in list_packable(study)]
    return {
        "title": name_study(study),
        "about": describe_job(study),
        "parts": _render(build_report_parts(study, graphs=not at_work)),
        "packable": packable,
    }


def _read_or_excuse(root: Path) -> Study | str:
    """Return a run's study, or why there is none."""
    try:
        return watch_study(root)
    except OrtuneError as error:
        return f"{error.what}." if has_trials(root) and not is_at_work(root) else _NOT_YET


def _render(parts: Sequence[Part]) -> list[list[str]]:
    return [[part.name, render_section(part)] for part in parts]


def _describe_packable(study: Study, trial: Trial) -> dict[str, str]:
    speed = say.format_speedup(study.speedup(trial))
    state = "winner" if trial.key == study.best.key else "front"
    confirmed = "" if study.is_confirmed(trial) else ", not re-measured"
    text = f"{speed}, {say.format_score(study, trial)}, {say.format_megabytes(trial.size)} MB"
    text = f"{text} ({state}{confirmed})"
    return {"key": trial.key, "plan": study.label(trial.plan), "text": text}


def _list_as_table(roots: Sequence[Path], studies: Sequence[Study | str]) -> str:
    """Return the start page's table: a row a run, with what it has come to."""
    names = ("run", "state", "model", "best so far", "")
    heads = "".join(f"<th>{name}</th>" if name else "<td></td>" for name in names)
    rows = []
    for place, (root, study) in enumerate(zip(roots, studies, strict=True)):
        cells = [f'<a href="run/{place}/">{escape(str(root))}</a>']
        if isinstance(study, Study):
            state = _STATES.get(study.finished, study.finished)
            cells += map(escape, (state, name_study(study), describe_best(study)))
        else:
            cells += [escape(study), "", ""]
        beside = f'<a href="compare/0/{place}/">compare with the first</a>' if place else ""
        row = zip(names, (*cells, beside), strict=True)
        rows.append("".join(f'<td data-column="{name}">{cell}</td>' for name, cell in row))
    body = escape_control_chars("".join(f"<tr>{row}</tr>" for row in rows))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section id="runs"><div class="box">{table}</div></section>'


def describe_best(study: Study) -> str:
    """Return the winner, or what is fastest so far, behind its speed-up."""
    best, mark = study.best, ""
    if best.key == study.baseline.key and study.unconfirmed:
        best, mark = study.unconfirmed[0], ", not re-measured"
    return f"{say.format_speedup(study.speedup(best))} {study.label(best.plan)}{mark}"


def _describe_now(root: Path) -> dict[str, Any]:
    """Return what the search of a run is at; nothing where none is at work."""
    try:
        now = read_now(root)
    except OrtuneError:
        return {}
    if now is None or not math.isfinite(now.share + now.until):
        return {}
    plan = f"{now.stage}: {now.plan}" if now.plan else "reading the data"
    return {"plan": plan, "best": now.best, "share": now.share, "until": now.until}


class LiveServer(ThreadingHTTPServer):
    """Serves pages of runs on this machine's own address; the first's has the token in it."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        try:
            super().__init__((_THIS_MACHINE[0], port), _Handler)
        except OSError as error:
            raise OrtuneError(
                f"port {port} cannot be listened on: {error.strerror}",
                fix="give another --port, or leave it out for a free one",
            ) from None
        self.watched = watched
        self.token = secrets.token_urlsafe(24)
        host, bound = self.server_address[:2]
        self.address = f"http://{host!s}:{bound}/{self.token}/"
        self.frame = render_page("ortune", (), FOOT, live=True)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 20

    def do_GET(self) -> None:
        """Answer with a page or with what it shows."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Pack a plan."""
        self._answer(self._post)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: its lines would hold the token."""

    def _answer(self, act: Callable[[Sequence[str]], tuple[str, str]]) -> None:
        """Send what a request asks for, or refuse it."""
        status, kind = HTTPStatus.OK, "text/plain"
        try:
            kind, text = act(self._check_path())
        except _Refused as refused:
            status, text = refused.status, f"{refused}\n"
        except (LookupError, ValueError):
            status, text = HTTPStatus.NOT_FOUND, "there is no such page\n"
        except OrtuneError as error:
            status, kind = HTTPStatus.CONFLICT, "application/json"
            text = json.dumps({"error": error.what, "fix": error.fix})
        except Exception as error:  # a page says so, and goes on asking
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            text = make_unexpected_error(error, [], _REPORT).what
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _check_path(self) -> Sequence[str]:
        """Return the words of the address behind the token.

        Raises:
            _Refused: The token is wrong, the request comes from a page of another origin, or it
                is for a name other than this machine's own.
        """
        host = self.headers.get("Host", "")
        if urlsplit(f"//{host}").hostname not in _THIS_MACHINE:
            raise _Refused(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 alone")
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            raise _Refused(HTTPStatus.FORBIDDEN, "this server answers to its own pages alone")
        token, *words = urlsplit(self.path).path.removeprefix("/").split("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, "the address lacks its token, or has another")
        return words

    def _get(self, words: Sequence[str]) -> tuple[str, str]:
        *path, last = words or [""]
        lengths = {"": (0,), "run": (2,), "compare": (3,)}
        if len(path) not in lengths.get(path[0] if path else "", ()):
            raise LookupError(path)
        if last == "data.json":
            seen = parse_qs(urlsplit(self.path).query).get("seen", [""])[0]
            data = self.server.watched.describe(path, seen)
            return "application/json", json.dumps(data, allow_nan=False)
        if last:
            raise LookupError(last)
        return "text/html; charset=utf-8", self.server.frame

    def _post(self, words: Sequence[str]) -> tuple[str, str]:
        if len(words) != 3 or (words[0], words[2]) != ("run", "pack"):
            raise LookupError(words)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LONGEST:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "say how long it is, and be brief")
        root = self.server.watched.find_run(words[1])
        bundle = self.server.watched.pack_plan(root, self.rfile.read(int(length)).decode())
        size = format_size(bundle.stat().st_size)
        return "application/json", json.dumps({"bundle": str(bundle.absolute()), "size": size})
