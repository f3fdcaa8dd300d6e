"""Models are found by name and version, and exchanged without anybody's noticing."""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.bundle.engine.scripted import Doubling
from tests.unit.serving.server.repository import toys
from tests.unit.serving.server.repository.toys import (
    asks,
    behind,
    holding,
    opened,
    output,
    refusal,
    settled,
    write,
)

from ortune.bundle.engine.engine import Engine
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.repository.repository import Repository, watch_files
from ortune.serving.server.repository.sources import ModelSource, find_sources


async def factor(repository: Repository, name: str = "toy", version: str = "") -> float:
    """Return which file answers, by what it multiplies with."""
    response = await repository.find_model(name, version).infer(asks(1))
    return float(output(response)[0, 0])


async def test_the_highest_version_answers_where_none_is_named(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        write(tmp_path / "toy" / str(version) / "any.onnx", version)
    repository = Repository(find_sources([tmp_path / "toy"]), opened)
    await repository.start()
    assert [await factor(repository, version=v) for v in ("1", "2", "10", "")] == [1, 2, 10, 10]
    assert repository.find_model("toy").version == "10"
    assert repository.find_model("toy").build_metadata()["versions"] == ["1", "2", "10"]
    assert repository.build_index() == [
        {"name": "toy", "version": v, "state": "READY", "reason": ""} for v in ("1", "2", "10")
    ]


@pytest.mark.parametrize(
    ("name", "version", "status", "words"),
    [
        ("net", "", RefusalKind.NOT_FOUND, "Request for unknown model: 'net' is not found"),
        (
            "toy",
            "3",
            RefusalKind.NOT_FOUND,
            "Request for unknown model: 'toy' version 3 is not found",
        ),
        ("toy", "one", RefusalKind.INVALID, "should be an integral value"),
        ("toy", "²", RefusalKind.INVALID, "should be an integral value"),
        ("../toy", "", RefusalKind.NOT_FOUND, "is not found"),
        ("toy", "../1", RefusalKind.INVALID, "should be an integral value"),
    ],
)
async def test_what_is_not_there_is_refused_in_triton_s_words(
    tmp_path: Path, name: str, version: str, status: RefusalKind, words: str
) -> None:
    repository = await toys.started(write(tmp_path / "toy.onnx"))
    with pytest.raises(RequestRefused) as found:
        repository.find_model(name, version)
    assert found.value.status is status
    assert words in found.value.text


async def test_several_models_of_one_file_have_names_of_their_own(tmp_path: Path) -> None:
    def several(path: Path) -> Engine:
        both = {name: opened(write(path.parent / f"{name}.onnx", k)) for name, k in PARTS.items()}
        stack = ExitStack()
        for one in both.values():
            stack.callback(one.close)
        first = next(iter(both.values()))
        return Engine({name: one[""] for name, one in both.items()}, first.backend, stack)

    path = write(tmp_path / "speech.ortune")
    repository = Repository(find_sources([path]), several)
    await repository.start()
    assert [one["name"] for one in repository.build_index()] == [
        "speech.encoder",
        "speech.decoder",
    ]
    assert [await factor(repository, f"speech.{name}") for name in PARTS] == [3, 5]
    with pytest.raises(RequestRefused, match=r"'speech' is not found.*'speech.encoder'"):
        repository.find_model("speech")


PARTS = {"encoder": 3, "decoder": 5}


async def test_two_sources_do_not_share_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.onnx")

    def named(file: Path) -> Engine:
        engine, stack = opened(file), ExitStack()
        stack.callback(engine.close)
        return Engine({"x": engine[""]}, engine.backend, stack)

    sources = [ModelSource("toy.x", path), ModelSource("toy", path)]
    openers = iter([opened, named])
    repository = Repository(sources, lambda file: next(openers)(file))
    with pytest.raises(BadSettings, match=r"two models would be served as 'toy\.x'"):
        await repository.start()


async def test_a_server_does_not_start_without_all_its_models(tmp_path: Path) -> None:
    write(tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    repository = Repository(find_sources([tmp_path / "good.onnx", tmp_path / "bad.onnx"]), opened)
    with pytest.raises(BadModel):
        await repository.start()
    assert not repository.ready


async def test_before_it_is_open_a_model_is_not_ready(tmp_path: Path) -> None:
    repository = toys.one(write(tmp_path / "toy.onnx"))
    assert not repository.ready
    with pytest.raises(RequestRefused, match="is not at ready state") as found:
        repository.find_model("toy")
    assert found.value.status is RefusalKind.UNAVAILABLE
    assert repository.build_index(ready=True) == []
    await repository.start()
    assert repository.ready
    assert len(repository.build_index(ready=True)) == 1


async def test_unloaded_and_loaded_again(tmp_path: Path) -> None:
    repository = await toys.started(write(tmp_path / "toy.onnx", 3), explicit=True)
    await factor(repository)
    await repository.unload("toy")
    with pytest.raises(RequestRefused, match="has no available versions"):
        repository.find_model("toy")
    assert repository.build_index() == [
        {"name": "toy", "version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
    ]
    assert repository.ready
    write(tmp_path / "toy.onnx", 4)
    assert not repository.find_changes(), "what is not wanted is not watched"
    await repository.load("toy")
    assert await factor(repository) == 4
    assert repository.find_model("toy").counters.answered == 2, "counts go on"


async def test_what_cannot_be_loaded_or_unloaded_is_said(tmp_path: Path) -> None:
    repository = await toys.started(write(tmp_path / "toy.onnx"), explicit=True)
    words = "failed to load 'net', failed to poll from model repository"
    assert await refusal(repository.load("net")) == (RefusalKind.INTERNAL, words)
    assert (await refusal(repository.unload("net")))[0] is RefusalKind.NOT_FOUND
    (tmp_path / "toy.onnx").write_bytes(b"no model")
    status, text = await refusal(repository.load("toy"))
    assert status is RefusalKind.INTERNAL
    assert text.startswith("failed to load 'toy', ")
    assert str(tmp_path) not in text


async def test_a_load_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    repository = await toys.started(write(tmp_path / "toy.onnx", 3), explicit=True)
    write(tmp_path / "toy.onnx", 4)
    task = asyncio.create_task(repository.load("toy"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    seen = repository.find_model("toy")
    await settled(lambda: repository.find_model("toy") is not seen)
    assert await factor(repository) == 4


async def test_a_reload_under_load_drops_nothing_and_never_mixes(tmp_path: Path) -> None:
    """Every answer is wholly of one file, and after an exchange only of the new one."""
    path = write(tmp_path / "toy.onnx", 2)

    async def client(repository: Repository, found: Counter[float], stop: asyncio.Event) -> None:
        while not stop.is_set():
            lowest = max(found, default=2)
            response = await repository.find_model("toy").infer(asks(1))
            (row,) = output(response)
            assert (row / row[0]).tolist() == [1, 2, 3, 4]
            assert row[0] >= lowest, "an answer of a version that was replaced before it was asked"
            found[float(row[0])] += 1

    repository = await toys.started(path)
    found, stop = Counter[float](), asyncio.Event()
    clients = [asyncio.create_task(client(repository, found, stop)) for _ in range(8)]
    for value in (3, 4, 5):
        write(path, value)
        await repository.reload("toy")
        before = sum(found.values())
        await settled(lambda before=before: sum(found.values()) > before + 20)
    stop.set()
    await asyncio.gather(*clients)
    assert max(found) == 5
    counters = repository.find_model("toy").counters
    assert (counters.answered, counters.failed.total()) == (sum(found.values()), 0)
    assert sum(one.requests for one in counters.runs.values()) == counters.answered


async def test_what_runs_ends_on_the_old_and_what_comes_waits_for_nobody(
    tmp_path: Path, session: Doubling
) -> None:
    path, real = tmp_path / "toy.onnx", tmp_path / "real.onnx"
    write(real, 5)
    path.write_bytes(b"old")
    engines = iter([toys.scripted(session), opened(real)])
    repository = Repository([ModelSource("toy", path)], lambda _: next(engines))
    await repository.start()
    session.entered.clear()
    old = repository.find_model("toy")
    first = await behind(old, session)
    path.write_bytes(b"new one")
    await repository.reload("toy")
    assert await factor(repository) == 5
    assert not first.done()
    session.go.set()
    assert output(await first)[0, 0] == 2000
    await settled(lambda: old.running == 0)
    await asyncio.sleep(0.05)
    assert output(await old.infer(asks(1)))[0, 0] == 5, "it hands on what comes too late"


@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04 torn"])
async def test_a_bad_new_file_leaves_the_old(tmp_path: Path, content: bytes) -> None:
    path, told = write(tmp_path / "toy.onnx", 3), list[str]()
    repository = await toys.started(path, note=told.append)
    path.write_bytes(content)
    with pytest.raises(OrtuneError):
        await repository.reload("toy")
    assert await factor(repository) == 3
    assert repository.ready
    assert len(told) == 1
    assert "answers on" in told[0]
    assert "\n" not in told[0]
    write(path, 4)
    await repository.reload("toy")
    assert await factor(repository) == 4


async def test_what_did_not_change_is_not_opened_again(tmp_path: Path) -> None:
    repository = await toys.started(write(tmp_path / "toy.onnx"))
    before = repository.find_model("toy")
    await repository.reload("toy")
    assert repository.find_model("toy") is before


async def test_versions_come_and_go(tmp_path: Path) -> None:
    one = write(tmp_path / "toy" / "1" / "any.onnx", 1)
    repository = Repository(find_sources([tmp_path / "toy"]), opened)
    await repository.start()
    first = repository.find_model("toy")
    write(tmp_path / "toy" / "2" / "any.onnx", 2)
    assert set(repository.find_changes()) == {"toy"}
    await repository.reload("toy")
    assert await factor(repository) == 2
    assert repository.find_model("toy", "1") is first, "the other version is left alone"
    one.unlink()
    one.parent.rmdir()
    (tmp_path / "toy" / "3").mkdir()
    (tmp_path / "toy" / "3" / "any.onnx").write_bytes(b"bad")
    with pytest.raises(OrtuneError):
        await repository.reload("toy")
    assert [row["version"] for row in repository.build_index()] == ["2"]
    with pytest.raises(RequestRefused, match="version 1 is not found"):
        repository.find_model("toy", "1")


async def test_changes_are_watched(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.onnx", 3)
    told: list[str] = []
    repository = await toys.started(path, note=told.append)
    watching = asyncio.create_task(watch_files(repository, 0.05))
    first = repository.find_model("toy")
    path.write_bytes(b"half of a fi")
    await settled(lambda: bool(told))
    await asyncio.sleep(0.3)
    assert len(told) == 1, "a bad file is tried once"
    assert repository.find_model("toy") is first
    path.unlink()
    await asyncio.sleep(0.2)
    assert repository.find_model("toy") is first, "a file that is gone is no new one"
    write(path, 4)
    await settled(lambda: repository.find_model("toy") is not first)
    assert await factor(repository) == 4
    watching.cancel()


async def test_drained_it_answers_what_runs_and_refuses_the_rest(
    tmp_path: Path, session: Doubling
) -> None:
    repository, model = await holding(session, tmp_path)
    first = await behind(model, session)
    waiting = [asyncio.create_task(model.infer(asks(n))) for n in range(5)]
    await settled(lambda: model.counters.waiting == 5)
    draining = asyncio.create_task(repository.drain(30))
    await asyncio.sleep(0)
    assert not repository.ready
    assert await refusal(model.infer(asks(9))) == (RefusalKind.UNAVAILABLE, "Server not ready")
    session.go.set()
    assert await draining == 0
    found = [output(one)[0, 0] for one in await asyncio.gather(first, *waiting)]
    assert found == [2000, 0, 2, 4, 6, 8]
    assert (await refusal(model.infer(asks(9))))[0] is RefusalKind.UNAVAILABLE


async def test_a_drain_ends_in_its_time_and_counts_what_is_lost(
    tmp_path: Path, session: Doubling
) -> None:
    repository, model = await holding(session, tmp_path)
    first = await behind(model, session)
    begun = time.monotonic()
    assert await repository.drain(0.1) == 1
    assert time.monotonic() - begun < 5
    session.go.set()
    await first


async def test_what_is_opened_while_it_ends_is_closed_again(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.onnx", 3)
    engines: list[Engine] = []

    def slow(file: Path) -> Engine:
        if engines:
            time.sleep(0.2)
        engines.append(opened(file))
        return engines[-1]

    repository = Repository(find_sources([path]), slow)
    await repository.start()
    write(path, 4)
    task = asyncio.create_task(repository.reload("toy"))
    await asyncio.sleep(0.05)
    assert await repository.drain(10) == 0
    with pytest.raises(RequestRefused, match="Server not ready"):
        await task
    for engine in engines:  # the second may have been told to end while it warmed up
        with pytest.raises(OrtuneError, match="closed"):
            engine(**asks(1).inputs)


@pytest.fixture
def session() -> Doubling:
    return Doubling()
