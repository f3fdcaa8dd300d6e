"""Client processes against servers that do as a script says."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.certificates import pair
from tests.unit.serving.load_testing.toy_servers import Script, over_grpc, over_http

from ortune.core.errors import BadData, OrtuneError
from ortune.serving.load_testing.bodies import check_answers
from ortune.serving.load_testing.clients import open_clients
from ortune.serving.load_testing.levels import Load, Run
from ortune.serving.load_testing.requests import LoadTest

Serving = Callable[[Script], AbstractContextManager[str]]
BOTH = pytest.mark.parametrize("serving", [over_http, over_grpc])


def once(serving: Serving, script: Script, load: Load, **how: object) -> Run:
    with serving(script) as url, open_clients(LoadTest(url, **how)) as found:  # type: ignore[arg-type]
        return found.measure_level(load, warm_up_s=0.0).runs[0]


@BOTH
def test_a_closed_loop(serving: Serving) -> None:
    script = Script(delay_s=lambda number: 0.02)
    found = once(serving, script, Load(4, requests=40))
    assert (len(found.latency_ns), found.errors, script.seen) == (40, {}, 40)
    assert min(found.latency_ns) >= 20e6
    assert found.elapsed_s >= 0.2
    assert found.rate == pytest.approx(40 / found.elapsed_s)
    assert found.rate <= 200
    assert found.late_ns == ()
    assert 0 < found.client_cpu_s < 5
    assert found.server["answered"] == found.server["queue"] == found.server["compute"] == 40
    assert (found.server["queue_ns"], found.server["compute_ns"]) == (40e6, 120e6)
    assert found.server["rows"] == 2 * found.server["runs"] == 80


@BOTH
def test_an_open_loop_sees_what_a_stall_does_to_all_behind_it(serving: Serving) -> None:
    """One server thread's stall of 0.3 s: those that came meanwhile have waited too."""
    script = Script(delay_s=lambda number: 0.3 if number == 5 else 0.0)
    load = Load(rate=100, requests=50)
    found = once(serving, script, load, connections=1)
    assert len(found.latency_ns) == 50
    assert len(found.late_ns) == 50
    assert sum(ns > 100e6 for ns in found.latency_ns) > 10
    assert max(found.late_ns) > 100e6


@BOTH
def test_errors_are_counted_by_status(serving: Serving) -> None:
    script = Script(status=lambda number: 503 if number % 4 == 0 else 200)
    found = once(serving, script, Load(1, requests=40))
    word = "503" if serving is over_http else "UNAVAILABLE"
    assert found.errors == {word: 10}
    assert len(found.latency_ns) == 30
    assert found.examples[word]
    assert found.rate == pytest.approx(30 / found.elapsed_s)
    assert not found.keeps_up


@BOTH
def test_what_hangs_is_timed_out(serving: Serving) -> None:
    script = Script(delay_s=lambda number: 3.0 if number == 1 else 0.0)
    found = once(serving, script, Load(1, requests=5), timeout=0.5)
    word = "timed out" if serving is over_http else "DEADLINE_EXCEEDED"
    assert found.errors == {word: 1}
    assert len(found.latency_ns) == 4


def test_few_callers_use_more_connections_in_turn_where_several_processes_answer() -> None:
    script = Script()
    with over_http(script) as url, open_clients(LoadTest("m.onnx", processes=2), url) as found:
        assert found.measure_level(Load(2, requests=80), warm_up_s=0.0).answer_count == 80
    used = sorted(script.by_connection)
    assert len(used) >= 16
    assert all(count >= 4 for count in used[-16:]), "one after the other"


def test_connections_that_the_server_closes_are_opened_again() -> None:
    script = Script(closes=True)
    with over_http(script) as url, open_clients(LoadTest(url)) as found:
        assert found.measure_level(Load(2, requests=6), warm_up_s=0).answer_count == 6
        assert found.measure_level(Load(1, requests=3), warm_up_s=0).answer_count == 3
    assert script.connections > 9


@BOTH
def test_several_processes_and_a_batch(serving: Serving) -> None:
    script = Script(delay_s=lambda number: 0.005)
    asked = LoadTest("m.onnx", batch=3, clients=2, check="m.onnx")
    others = psutil.Process().children()
    with serving(script) as url, open_clients(asked, url) as found:
        level = found.measure_level(Load(3, requests=31), warm_up_s=0.1, pid=os.getpid())
        assert found.model.batch == 3
        assert found.model.samples[0]["x"].shape == (3, 4)
        children = [one for one in psutil.Process().children() if one not in others]
        assert len(children) >= 2
        answers, samples = found.answers, found.model.samples
        protocol = url.partition(":")[0]
        right = check_answers(answers, 1, samples, _double(2.0), protocol)  # type: ignore[arg-type]
        wrong = check_answers(answers, 0, samples, _double(2.1), protocol)  # type: ignore[arg-type]
    assert level.answer_count == 31
    assert level.runs[0].server_cpu_s is not None
    assert level.runs[0].server_rss
    assert (right.answers, right.wrong, right.unread) == (31, 0, 1)
    assert right.worst_db > 100
    assert wrong.wrong == 31
    assert not [one for one in children if one.is_running()], "they end with the block"


def _double(factor: float) -> object:
    return lambda x: {"y": np.asarray(x) * np.float32(factor)}


def test_samples_of_a_file_are_sent(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(8, dtype=np.float32).reshape(2, 4))
    with over_http(Script()) as url, open_clients(LoadTest(url, data=tmp_path)) as found:
        assert [one["x"].tolist() for one in found.model.samples] == [
            [[0, 1, 2, 3]],
            [[4, 5, 6, 7]],
        ]


@BOTH
def test_the_model_must_be_named_where_there_are_several(serving: Serving) -> None:
    with serving(Script(models=("double", "other"))) as url:
        with (
            pytest.raises(BadData, match="several models: double, other"),
            open_clients(LoadTest(url)),
        ):
            pass
        with open_clients(LoadTest(url, model="double/1")) as found:
            assert (found.model.name, found.model.version) == ("double", "1")


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    with (
        over_http(Script()) as url,
        pytest.raises(BadData, match="refuses model 'triple': not found") as error,
        open_clients(LoadTest(url, model="triple")),
    ):
        pass
    assert "double" in error.value.fix


def test_a_server_that_says_less() -> None:
    """KServe's has no list of models and no statistics."""
    told = {"/v2/repository/index": None, "/v2/models/double/stats": None}
    with over_http(Script(told=told)) as url:
        with pytest.raises(BadData, match="lists no model"):
            open_clients(LoadTest(url)).__enter__()
        with open_clients(LoadTest(url, model="double")) as found:
            level = found.measure_level(Load(2, requests=10), warm_up_s=0)
    assert (level.answer_count, level.runs[0].server) == (10, None)


@pytest.mark.parametrize("inputs", [3, [{"name": "x"}], [{"name": "x", "datatype": 5}], [[]]])
def test_a_server_that_says_something_else(inputs: object) -> None:
    script = Script(told={"/v2/models/double": {"inputs": inputs}})
    with over_http(script) as url, pytest.raises(OrtuneError, match=r"cannot be read|datatype"):
        open_clients(LoadTest(url, model="double")).__enter__()


def test_a_token_is_sent(tmp_path: Path) -> None:
    script = Script(token="secret")
    with over_http(script) as url:
        for model in ("double", ""):
            with pytest.raises(BadData, match="requires a token: no token"):
                open_clients(LoadTest(url, model=model)).__enter__()
        token = tmp_path / "token"
        token.write_text("secret\n")
        with open_clients(LoadTest(url, token_file=token)) as found:
            assert found.measure_level(Load(1, requests=3), warm_up_s=0).errors == {}


@BOTH
def test_over_tls(serving: Serving, tmp_path: Path) -> None:
    one, other = pair(tmp_path, "one"), pair(tmp_path, "other")
    with serving(Script(), one) as url:  # type: ignore[call-arg]
        with open_clients(LoadTest(url, ca=one.certificate)) as found:
            assert found.measure_level(Load(2, requests=10), warm_up_s=0).answer_count == 10
        if serving is over_http:  # gRPC tries again and again for some seconds
            with pytest.raises(OrtuneError, match="no server answers") as error:
                open_clients(LoadTest(url, ca=other.certificate)).__enter__()
            assert "--ca" in error.value.fix
