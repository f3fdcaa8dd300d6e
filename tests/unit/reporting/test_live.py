"""Pages that a server keeps up to date: of a run that grows, of two, and what is refused."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.unit import studies

from ortune.bundle.engine.load import load_engine
from ortune.core.event import TimeLeft, TrialStarted, ignore_event
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.reporting.live import LiveServer, Watched, list_packable, list_runs
from ortune.search.experiment.ledger import Ledger, keep_now, lock_run, write_ending, write_header


class Page:
    """What a browser asks of a server."""

    def __init__(self, server: LiveServer) -> None:
        self.host = urlsplit(server.address).netloc
        self.home = urlsplit(server.address).path

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(method, path, body, {"Host": self.host, **headers})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, dict(answer.getheaders())

    def data(self, path: str = "", seen: str = "") -> dict[str, Any]:
        status, text, _ = self.ask(f"{self.home}{path}data.json?seen={seen}")
        assert status == 200, text
        told: dict[str, Any] = json.loads(text)
        return told


@contextmanager
def served(watched: Watched) -> Iterator[Page]:
    with LiveServer(watched, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Page(server)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def finished(tmp_path: Path) -> Study:
    """A run's folder with a finished search."""
    made = studies.study(tmp_path)
    store(made, made.trials)
    write_ending(Path(made.root), made.ending)
    return made


def store(made: Study, trials: tuple[Trial, ...]) -> Ledger:
    write_header(Path(made.root), made.header)
    ledger = Ledger(Path(made.root))
    for trial in trials:
        ledger.append(trial)
    return ledger


def words(told: dict[str, Any]) -> str:
    return " ".join(html for _, html in told["parts"])


def test_a_page_follows_a_search_from_its_start_to_its_end(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    root = Path(made.root)
    sink = keep_now(root, ignore_event)
    with served(Watched([root])) as page:
        assert "not measured yet" in words(page.data("run/0/"))
        with lock_run(root):
            sink(TimeLeft(60, may_restart=True))
            sink(TrialStarted(made.baseline.plan, "baseline"))
            now = page.data("run/0/")["now"]
            assert now["plan"] == "baseline: original" and now["best"] == "the original"
            ledger = store(made, made.trials[:1])
            first = page.data("run/0/")
            assert first["title"] == "toy.onnx" and first["packable"] == []
            assert "nothing confirmed yet" in words(first)
            assert "parts" not in page.data("run/0/", first["stamp"]), "nothing is new"
            ledger.append(made.trials[1])
            sink(TrialStarted(made.trials[1].plan, "search"))
            second = page.data("run/0/", first["stamp"])
            assert "optimized graph" in words(second) and "optimized graph" not in words(first)
            assert second["now"]["plan"].startswith("search: optimized graph")
            assert "interrupted" not in words(second)
            for forged in ('{"share": 1e999}', "no JSON", '{"plan": 3}'):
                (root / "now.json").write_text(forged)
                assert page.data("run/0/")["now"] == {}
        for trial in made.trials[2:]:
            ledger.append(trial)
        write_ending(root, made.ending)
        last = page.data("run/0/", second["stamp"])
        assert last["now"] == {} and [plan["key"] for plan in last["packable"]]
        assert "ortune pack" in words(last)


def test_who_does_not_know_the_token_gets_nothing(finished: Study) -> None:
    with served(Watched([Path(finished.root)])) as page:
        for path in ("/", "/data.json", f"/{'x' * 32}/", f"{page.home[:-2]}/", "//", "/%00/"):
            status, text, _ = page.ask(path)
            assert (status, finished.root in text) == (403, False), path
        status, text, headers = page.ask(f"{page.home}run/0/")
        assert status == 200
        policy = text.partition('http-equiv="Content-Security-Policy" content="')[2]
        assert policy.startswith("default-src 'none'; ") and "connect-src 'self'" in policy[:900]
        assert "unsafe-eval" not in policy[:900]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"


def test_pages_of_others_and_other_names_of_this_machine_are_refused(finished: Study) -> None:
    with served(Watched([Path(finished.root)])) as page:
        home, port = f"{page.home}run/0/", page.host.partition(":")[2]
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://{page.host}.evil.example"},
            {"Host": f"evil.example:{port}"},
            {"Host": ""},
        ):
            assert page.ask(f"{home}data.json", **headers)[0] == 403, headers
            assert page.ask(f"{home}pack", "POST", finished.best.key, **headers)[0] == 403
        assert not list(Path(finished.root).glob("*.ortune"))
        for host in (f"localhost:{port}", "localhost:9"):  # as forwarded by ssh
            headers = {"Host": host, "Origin": f"http://{host}"}
            assert page.ask(f"{home}data.json", **headers)[0] == 200


def test_two_runs_have_a_start_page_and_are_compared(finished: Study, tmp_path: Path) -> None:
    other = studies.study(tmp_path / "other")
    slower = replace(other.trials[1], key="ab" * 8)
    store(other, (*other.trials[:1], slower))
    with served(Watched([Path(finished.root), Path(other.root)])) as page:
        start = page.data()
        assert f'<a href="run/1/">{other.root}</a>' in words(start)
        assert "1.92x optimized graph" in words(start) and "compare/0/1/" in words(start)
        compared = words(page.data("compare/0/1/"))
        assert "same model" in compared and "Plans that both tried" in compared
        with lock_run(Path(finished.root)), lock_run(Path(other.root)):
            assert words(page.data()).count(">at work<") == 2
            for place in (0, 1):
                assert "interrupted" not in words(page.data(f"run/{place}/"))
        for path in ("run/2/", "run/x/", "run/-1/", "compare/0/", "other/", "run/0/1/"):
            assert page.ask(f"{page.home}{path}data.json")[0] == 404, path


def test_runs_of_a_folder_come_in_while_it_is_watched(finished: Study) -> None:
    folder = Path(finished.root).parent
    (run,) = list_runs(folder)
    with served(Watched([run], folder)) as page:
        assert "compare" not in words(page.data())
        write_header(folder / "second", finished.header)
        assert "second" in words(page.data())


def test_a_plan_of_the_front_is_packed_and_runs(finished: Study) -> None:
    (*_, other) = list_packable(finished)
    assert other.key != finished.best.key
    with served(Watched([Path(finished.root)])) as page:
        pack = f"{page.home}run/0/pack"
        status, text, _ = page.ask(pack, "POST", finished.best.key)
        assert status == 200, text
        bundle = Path(json.loads(text)["bundle"])
        assert bundle.parent == Path(finished.root).absolute()
        with load_engine(bundle) as engine:
            answers = engine(x=np.ones((1, 4), np.float32))
        assert answers["y"].tolist() == [[2, 3, 4, 5]]
        for key in ("", "0" * 16, "../../x", "x" * 5000):
            assert page.ask(pack, "POST", key)[0] in (409, 413)
        with lock_run(Path(finished.root)):
            status, text, _ = page.ask(pack, "POST", finished.best.key)
            assert status == 409 and "still at work" in text
