"""Fixes about servers, and about load on them, are followed."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ortune as ot
from ortune.core.errors import OrtuneError
from ortune.reporting.live import LiveServer, Watched
from ortune.serving.load_testing import clients, server
from ortune.serving.load_testing.clients import open_clients
from ortune.serving.load_testing.levels import Load
from ortune.serving.load_testing.requests import LoadTest
from ortune.serving.server import processes
from ortune.serving.server.deployment import divide_cluster
from ortune.serving.server.listeners import check_certificate, read_tokens
from tests.certificates import pair
from tests.unit.fixing.kit import (
    SITUATIONS,
    Pair,
    check_situation,
    demand,
    follow,
    prepare,
    save_text,
)
from tests.unit.following import Room, end_at
from tests.unit.serving.load_testing.test_goal import Machine
from tests.unit.serving.load_testing.toy_servers import Script, over_http
from tests.unit.serving.server.grpc.test_server import made as make_grpc_server


@follow("serving/load_testing/clients:open_clients", "--model")
def a_server_of_several_models(room: Room) -> Iterator[Pair]:
    with over_http(Script(models=("double", "other"))) as url:
        yield lambda: ask_server(url), lambda: ask_server(url, model="double")


@follow("serving/load_testing/clients:open_clients", "--model")
def a_server_without_a_list_of_models(room: Room) -> Iterator[Pair]:
    with over_http(Script(told={"/v2/repository/index": None})) as url:
        yield lambda: ask_server(url), lambda: ask_server(url, model="double")


@follow("serving/load_testing/server:Admin.fetch_metadata", "--model")
def a_model_that_the_server_does_not_have(room: Room) -> Iterator[Pair]:
    with over_http(Script()) as url:
        yield lambda: ask_server(url, model="triple"), lambda: ask_server(url, model="double")


@follow("serving/load_testing/server:Admin.list_models", "--token-file")
def a_server_that_asks_for_a_token(room: Room) -> Iterator[Pair]:
    token = save_text(room.folder / "token", "secret")
    with over_http(Script(token="secret")) as url:
        yield lambda: ask_server(url), lambda: ask_server(url, token_file=token)


def ask_server(url: str, **more: Any) -> None:
    with open_clients(LoadTest(url, **more)):
        pass


@follow("serving/load_testing/clients:_Process._make_error", "--clients")
def a_client_process_for_which_there_is_no_room(room: Room) -> Iterator[Pair]:
    """The second one ends at once, as one does that the kernel kills for want of memory."""
    started: list[Sequence[str]] = []
    real = clients.make_python_command

    def spell(*words: str) -> list[str]:
        started.append(words)
        return real(*words) if len(started) == 1 else ["false"]

    def act(count: int) -> None:
        started.clear()
        with open_clients(LoadTest(url, clients=count)) as found:
            found.measure_level(Load(2, requests=4), warm_up_s=0)

    room.patch.setattr(clients, "make_python_command", spell)
    with over_http(Script()) as url:
        yield lambda: act(2), lambda: act(1)


@follow("analysis/costs/cost:of_load_test", "--json")
def levels_that_cannot_be_read(room: Room) -> Iterator[Pair]:
    rows = json.dumps({"rows": [{"measure": "latency from the intended start"}]})
    places = {"X": str(save_text(room.folder / "x.json", rows)), "J": str(room.folder / "j.json")}
    few = "--concurrency 1 --requests 20 --repeats 1 --warm-up 0"

    def measure() -> None:
        demand(f"loadtest {url} {few} --json J", places)
        demand("cost J --price 1/h", places)

    with over_http(Script()) as url:
        yield lambda: demand("cost X --price 1/h", places), measure


@follow("reporting/live:LiveServer.__init__", "--port")
def a_port_of_the_page_that_is_taken(room: Room) -> Iterator[Pair]:
    with prepare(room.folder) as places:

        def act(port: str) -> None:
            LiveServer(Watched((), room.folder), int(port)).server_close()

        yield lambda: act(places["TAKEN"]), lambda: act("0")


@follow("serving/server/grpc/server:GrpcServer.__init__", "--grpc-port")
def a_port_of_grpc_that_is_taken_meanwhile(room: Room) -> Iterator[Pair]:
    async def listen(port: str) -> None:
        make_grpc_server(f"127.0.0.1:{port}")

    with prepare(room.folder) as places:
        yield lambda: asyncio.run(listen(places["TAKEN"])), lambda: asyncio.run(listen("0"))


@follow("serving/server/deployment:divide_cluster", "--processes")
def replicas_that_do_not_fit(room: Room) -> Iterator[Pair]:
    yield lambda: divide_cluster([4, 2], 4, 2), lambda: divide_cluster([4, 2], 4, 1)


@follow("serving/load_testing/goal:Search.run_search", "--time")
def a_goal_for_which_there_is_too_little_time(room: Room) -> Iterator[Pair]:
    def search(minutes: float) -> None:
        Machine(lambda one: 4.0).found(60 * minutes)

    def search_as_told() -> None:
        with pytest.raises(OrtuneError) as caught:
            search(10)
        told = re.search(r"--time (\d+)m", caught.value.fix)
        assert told is not None
        search(int(told[1]))

    yield lambda: search(10), search_as_told


@follow("serving/load_testing/clients:run_perf_analyzer", "--client")
def a_client_that_is_not_installed(room: Room) -> Iterator[Pair]:
    room.patch.setenv("PATH", str(room.folder))
    with over_http(Script()) as url:
        few = {"requests": 5, "repeats": 1, "warm_up": 0, "concurrency": "1"}
        yield (
            lambda: ot.loadtest(url, client="perf_analyzer", **few),
            lambda: ot.loadtest(url, **few),
        )


@follow("serving/server/listeners:check_certificate.refuse_encrypted", "openssl pkey")
def a_key_that_is_encrypted(room: Room) -> Iterator[Pair]:
    hidden = pair(room.folder, password=b"secret")

    def check(key: Path) -> None:
        check_certificate(hidden.certificate, key, lambda text: None)

    def decrypt(fix: str) -> None:
        command = shlex.split(fix.split("`")[1])
        subprocess.run([*command, "-passin", "pass:secret"], check=True, capture_output=True)
        check(Path(command[-1]))

    yield lambda: check(hidden.key), decrypt


@follow("serving/load_testing/server:_wait_ready", "ortune serve")
def a_server_that_says_nothing(room: Room) -> Iterator[Pair]:
    """It ends at once, as one does that the kernel kills; by hand it says what is amiss."""
    room.patch.setattr(server, "make_python_command", lambda *_: ["false"])
    with prepare(room.folder, "M") as places:
        yield (
            lambda: demand("loadtest M --requests 5 --repeats 1 --concurrency 1", places),
            end_at("port|listen", lambda: demand("serve M --http-port TAKEN", places)),
        )


@follow("serving/server/processes:_Supervisor._start_process", "--processes 1")
def a_process_that_dies_as_it_loads(room: Room) -> Iterator[Pair]:
    room.patch.setattr(processes, "make_python_command", lambda *_: ["false"])
    with prepare(room.folder, "BUNDLE") as places:
        text = "serve BUNDLE --no-grpc --http-port"
        yield (
            lambda: demand(f"{text} 0 --processes 2", places),
            end_at("listen", lambda: demand(f"{text} TAKEN --processes 1", places)),
        )


def read_then_write_tokens(room: Room, text: str | None) -> Pair:
    path = room.folder / "tokens"
    if text is not None:
        save_text(path, text)

    def write(fix: str) -> None:
        made = subprocess.run(shlex.split(fix.split("`")[1]), capture_output=True, text=True)
        save_text(path, made.stdout).chmod(0o600)
        read_tokens(path, print)

    return lambda: read_tokens(path, print), write


@follow("serving/server/listeners:read_tokens", "openssl rand")
def a_file_of_tokens_that_is_not_there(room: Room) -> Iterator[Pair]:
    yield read_then_write_tokens(room, None)


@follow("serving/server/listeners:read_tokens#2", "openssl rand")
def a_file_without_tokens(room: Room) -> Iterator[Pair]:
    yield read_then_write_tokens(room, "# only\n")


@follow("serving/server/listeners:read_tokens#3", "openssl rand")
def a_token_that_is_too_short(room: Room) -> Iterator[Pair]:
    yield read_then_write_tokens(room, "short\n")


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
