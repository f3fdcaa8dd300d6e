"""The documentation as a site: it builds without a warning, and asks nothing of a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="pip install -r requirements/docs.txt")

DOCS = Path(__file__).parents[2] / "docs"
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_reached_from_the_first(site: Path) -> None:
    """Sphinx warns, and so fails above, of links that lead nowhere and pages in no list."""
    index = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html")
        assert (site / name).is_file()
        assert f'href="{name.as_posix()}"' in index or name.name == "index.html"


def test_the_reference_is_generated(site: Path) -> None:
    for name, words in (("options", "--budget"), ("python", "require_signature")):
        text = (site / f"{name}.html").read_text()
        assert words in text and 'id="optimize"' in text


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not LOADED.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text()), sheet
