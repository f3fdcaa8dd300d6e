"""A cache of a team: whole files or none, and only what is what its digest says."""

import threading
from pathlib import Path

import fsspec
import onnx
import pytest
from onnx import parser

from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Event, Note
from ortune.core.settings import read_settings
from ortune.core.step import Recipe
from ortune.search.recipe.build import build_in
from ortune.search.recipe.built import Material
from ortune.search.recipe.shared import SharedCache
from ortune.transforms.simplify import Simplify

KEY = ("model", "steps")


@pytest.fixture(params=["folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty cache, on a disk or in an object store."""
    if request.param == "folder":
        return str(tmp_path / "cache")
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/ortune"


def write_files(folder: Path, **contents: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def test_files_and_records_come_back_under_their_own_key(url: str, tmp_path: Path) -> None:
    cache = SharedCache(url, "samples")
    cache.store_files("builds", KEY, write_files(tmp_path / "a", x=b"one", y=b"two"), ["x", "y"])
    cache.store_record("trials", KEY, {"ratio": 0.5})
    assert cache.fetch_files("builds", KEY, tmp_path / "b", ["x", "y"])
    assert (tmp_path / "b" / "x").read_bytes() == b"one"
    assert SharedCache(url, "samples").fetch_record("trials", KEY) == {"ratio": 0.5}
    for other in (SharedCache(url, "other samples"), cache):
        key = KEY if other is not cache else ("model", "other steps")
        assert other.fetch_record("trials", key) is None
        assert not other.fetch_files("builds", key, tmp_path / "c", ["x", "y"])
    assert not cache.fetch_files("builds", KEY, tmp_path / "c", ["x"]), "a name nobody asked for"
    assert not (tmp_path / "c").exists()


def test_what_is_not_what_its_digest_says_is_refused_and_made_anew(
    url: str, tmp_path: Path
) -> None:
    told: list[Event] = []
    cache = SharedCache(url, "samples", told.append)
    good = write_files(tmp_path / "a", x=b"right")
    cache.store_files("builds", KEY, good, ["x"])
    cache.store_record("trials", KEY, {"ratio": 0.5})
    system, root = fsspec.core.url_to_fs(url)
    (blob,) = system.ls(f"{root}/blobs", detail=False)
    system.pipe_file(blob, b"wrong")
    (entry,) = system.ls(f"{root}/entries/trials", detail=False)
    system.pipe_file(entry, system.cat_file(entry).replace(b"0.5", b"0.1"))
    assert not cache.fetch_files("builds", KEY, tmp_path / "b", ["x"])
    assert cache.fetch_record("trials", KEY) is None
    assert not list((tmp_path / "b").rglob("*"))
    assert sum("refused" in str(event) for event in told if isinstance(event, Note)) == 2
    cache.store_files("builds", KEY, good, ["x"])
    assert cache.fetch_files("builds", KEY, tmp_path / "b", ["x"])


def test_of_two_writers_one_whole_file_stays(tmp_path: Path) -> None:
    url, size = str(tmp_path / "cache"), 1 << 22
    folders = [write_files(tmp_path / name, x=name.encode() * size) for name in "ab"]
    contents = {(folder / "x").read_bytes() for folder in folders}
    reader, seen = SharedCache(url, "samples"), 0

    def write(folder: Path) -> None:
        for _ in range(5):
            SharedCache(url, "samples").store_files("builds", KEY, folder, ["x"])

    writers = [threading.Thread(target=write, args=(folder,)) for folder in folders]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers) or not seen:
        if reader.fetch_files("builds", KEY, tmp_path / "read", ["x"]):
            seen += 1
            assert (tmp_path / "read" / "x").read_bytes() in contents
    assert len(list((tmp_path / "cache" / "blobs").iterdir())) == 2
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_build_is_taken_and_a_broken_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y) {
        a = Identity(x)
        y = Relu(a)
    }"""
    source = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(text), source)
    material = Material(shared=SharedCache(str(tmp_path / "cache"), "samples"))
    recipe = Recipe("clean", (Simplify(),))
    first = build_in(tmp_path / "one", source, recipe, material)
    assert first.changed
    with monkeypatch.context() as patched:
        patched.setattr(
            "ortune.search.recipe.build.EditSession", lambda *_, **__: pytest.fail("built again")
        )
        second = build_in(tmp_path / "two", source, recipe, material)
    assert second.path.read_bytes() == first.path.read_bytes() and second.edits == first.edits
    for blob in (tmp_path / "cache" / "blobs").iterdir():
        blob.write_bytes(b"wrong")
    third = build_in(tmp_path / "three", source, recipe, material)
    assert third.content == first.content


def test_an_address_that_is_none_and_one_that_nobody_typed(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot be opened"):
        SharedCache("nonsense://bucket", "samples")
    settings = tmp_path / "ortune.toml"
    settings.write_text('cache = "s3://bucket"')
    with pytest.raises(OrtuneError, match="asks for a cache"):
        read_settings(settings, ["cache"])
