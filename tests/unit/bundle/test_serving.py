"""How a bundle is to be served, written into a copy of it, and read again."""

import asyncio
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import studies
from tests.unit.packaged import forge

from ortune.bundle.engine import archive
from ortune.bundle.engine.instances import UNSAID, Serving, load_serving
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import SBOM, SERVING
from ortune.bundle.members import with_serving
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.hardware.cpus import effective_cpus

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
HOW = Serving(1, 4, 250, preferred=(2, 4), threads=1)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return pack(studies.study(tmp_path), tmp_path / "toy.ortune")


def packed(path: Path) -> Serving:
    with archive.open_bundle(path) as (file, manifest):
        return load_serving(path.name, file, manifest)


def test_it_is_read_as_it_was_written(bundle: Path, tmp_path: Path) -> None:
    before = bundle.read_bytes()
    copy = with_serving(bundle, tmp_path / "copy.ortune", HOW)
    assert bundle.read_bytes() == before
    assert packed(copy) == HOW and packed(bundle) == UNSAID
    again = with_serving(copy, tmp_path / "again.ortune", Serving(max_batch=1))
    assert packed(again) == Serving(max_batch=1)
    assert read_bundle(copy).backend == read_bundle(bundle).backend
    with zipfile.ZipFile(bundle) as one, zipfile.ZipFile(copy) as two:
        assert {*two.namelist()} - {*one.namelist()} == {SERVING}
        assert two.getinfo(SERVING).compress_type == zipfile.ZIP_STORED, "older readers open it"
        for name in set(one.namelist()) - {SBOM, "manifest.json"}:
            assert one.read(name) == two.read(name)
        bill = json.loads(two.read(SBOM))
    assert [one["name"] for one in bill["components"]].count(SERVING) == 1
    assert SERVING in bill["dependencies"][0]["dependsOn"]
    assert with_serving(copy, tmp_path / "same.ortune", HOW).read_bytes() == copy.read_bytes()


def test_engines_open_it(bundle: Path, tmp_path: Path) -> None:
    copy = with_serving(bundle, tmp_path / "copy.ortune", HOW)
    with load_engine(copy) as model:
        np.testing.assert_array_equal(model(x=X)["y"], Y)
    with load_engine(copy, max_delay_us=1) as engine:

        async def many() -> None:
            found = await asyncio.gather(*(engine.submit(x=X + n) for n in range(20)))
            for n, one in enumerate(found):
                np.testing.assert_array_equal(one["y"], engine(x=X + n)["y"])

        asyncio.run(many())
        assert max(engine.statistics.batches) <= 4


def test_more_than_this_machine_has_is_lowered(bundle: Path, tmp_path: Path) -> None:
    copy = with_serving(bundle, tmp_path / "big.ortune", Serving(900, threads=100))
    assert packed(copy).instances == effective_cpus()
    with load_engine(copy, instances=1) as engine:
        assert engine.backend.threads == effective_cpus()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (b"{", "cannot be read"),
        (b"[]", "no mapping"),
        ({"instances": 0}, "instances: 0 is not between"),
        ({"instances": "2"}, "is not an integer"),
        ({"max_batch": 1 << 30}, "is not between"),
        ({"max_delay_us": -1}, "is not between"),
        ({"preferred": [0]}, "is not between"),
        ({"preferred": 4}, "is not a list"),
        ({"threads": True}, "is not an integer"),
        ({"max_queue": 1}, "'max_queue' is not one of"),
        ({"path": "/etc"}, "'path' is not one of"),
    ],
)
def test_what_a_bundle_may_not_say(bundle: Path, told: Any, said: str) -> None:
    forge(bundle, {SERVING: told if isinstance(told, bytes) else json.dumps(told).encode()})
    with pytest.raises(BadModel, match=said) as caught:
        load_engine(bundle)
    assert len(str(caught.value).splitlines()) == 2


def test_a_bundle_that_was_changed_is_not_copied(bundle: Path, tmp_path: Path) -> None:
    content = bytearray(bundle.read_bytes())
    with zipfile.ZipFile(bundle) as file:
        model = next(one for one in file.infolist() if one.filename.endswith(".onnx"))
    content[model.header_offset + 30 + len(model.filename) + 40] ^= 1
    bundle.write_bytes(content)
    with pytest.raises(BadModel, match="was changed after packing"):
        with_serving(bundle, tmp_path / "copy.ortune", HOW)
    assert not (tmp_path / "copy.ortune").exists()


def test_what_is_no_bundle_or_no_place(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadModel, match="is not a bundle"):
        with_serving(tmp_path / "text", tmp_path / "copy.ortune", HOW)
    with pytest.raises(OrtuneError, match="the source itself"):
        with_serving(bundle, bundle, HOW, force=True)
