"""The page in headless Chromium and its WebAssembly under node: the numbers are the bundle's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.bundle.pack import package
from ortune.bundle.target import Source
from ortune.core import wording
from ortune.core.errors import BadModel
from ortune.targets import web
from ortune.targets.web import WebPage
from tests.packages.tools import npm, program
from tests.unit import packaged

RICH = Cpu(threads=2, level="extended", affinity="2", spin=False, prepack=False)


@pytest.fixture
def target() -> WebPage:
    return WebPage(runtime=str(npm("onnxruntime-web")))


@pytest.fixture(params=[Cpu(threads=1), RICH], ids=["plain", "rich"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    with packaged.source(tmp_path, request.param) as opened:
        yield opened


@pytest.fixture
def written(source: Source, target: WebPage, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    target.write(source, out)
    return out


def with_browser() -> None:
    pytest.importorskip("playwright.sync_api")
    program("chromium", "chromium-browser", install="apt-get install chromium")


def test_in_a_browser(source: Source, written: Path) -> None:
    with_browser()
    found = web.replay_in_browser(source, written)
    assert found.difference_db == float("inf")
    assert "Chromium" in found.by and "1.30.0" in found.by
    assert wording.format_count(source.backend.threads, "thread") in found.by


@pytest.mark.parametrize("change", [packaged.external, packaged.pair])
def test_several_files(
    source: Source, target: WebPage, tmp_path: Path, change: Callable[[Source], Source]
) -> None:
    changed = change(source)
    out = tmp_path / "out"
    out.mkdir()
    target.write(changed, out)
    assert target.refuses(changed) == ""  # as node found, where it is installed
    with_browser()
    assert web.replay_in_browser(changed, out).difference_db == float("inf")


def test_a_page_that_asks_elsewhere_does_not_get_it(source: Source, written: Path) -> None:
    with_browser()
    page = written / "page.js"
    text = page.read_text(encoding="utf-8")
    page.write_text("fetch('http://127.0.0.2:9/');\n" + text, encoding="utf-8")
    # The page's own policy stops it before a request is made.
    assert web.replay_in_browser(source, written).difference_db == float("inf")
    index = written / "index.html"
    lines = index.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if "Content-Security-Policy" not in line]
    index.write_text("\n".join(kept), encoding="utf-8")
    with pytest.raises(BadModel, match="the page asks for http"):
        web.replay_in_browser(source, written)


def test_changed_weights_are_seen(source: Source, written: Path) -> None:
    with_browser()
    model = written / "model" / "model.onnx"
    data = model.read_bytes()
    one, nine = (bytes.fromhex(text) for text in ("0000803f", "00001041"))
    assert one in data
    model.write_bytes(data.replace(one, nine))
    assert web.replay_in_browser(source, written).difference_db < 40


def test_a_page_that_fails_says_why(source: Source, written: Path) -> None:
    with_browser()
    (written / "model" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(BadModel, match="the page fails"):
        web.replay_in_browser(source, written)


def test_packed_and_run(tmp_path: Path, target: WebPage) -> None:
    program("node", install="apt-get install nodejs")
    found = package([packaged.bundle(tmp_path)], tmp_path / "out", target)
    assert found.replay is not None and found.replay.difference_db == float("inf")


BLOCKS = """<ir_version: 8, opset_import: ["": 17, "com.microsoft.nchwc": 1]>
g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
  r = com.microsoft.nchwc.ReorderInput(x)
  y = com.microsoft.nchwc.ReorderOutput<channels: int = 16>(r)
}
"""
"""Convolutions in blocks of a CPU's vectors: what an x86 onnxruntime writes when it optimizes a
file, and what WebAssembly has no kernels for."""


def test_what_webassembly_lacks_is_refused_by_running(source: Source, target: WebPage) -> None:
    program("node", install="apt-get install nodejs")
    assert target.refuses(source) == ""
    onnx.save(onnx.parser.parse_model(BLOCKS), source.models[""])
    why = target.refuses(source)
    assert "onnxruntime-web 1.30.0 does not run it" in why and "ReorderInput" in why
