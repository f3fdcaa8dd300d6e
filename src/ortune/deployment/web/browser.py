"""Open a written page in headless Chromium and take its answers."""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ortune.bundle.source import Source
from ortune.bundle.target import Replay
from ortune.core import wording
from ortune.core.errors import BadModel, gist
from ortune.core.session import Tensors
from ortune.deployment.check_samples import found
from ortune.engine.golden import snr_db

_QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
_LIMIT_MS, _LOOK_MS = 240_000, 100
_AGAIN = "pack another trial (--trial KEY)"


def chromium() -> str | None:
    """Return the browser, where Playwright is installed to drive it."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return found("chromium", "chromium-browser", "google-chrome")


def replay(source: Source, folder: Path) -> Replay:
    """Serve the folder, open the page and compare its answers to the golden ones.

    Raises:
        BadModel: The page fails, or asks for anything beyond its origin.
    """
    from playwright.sync_api import sync_playwright

    held = json.loads((folder / "models.json").read_bytes())
    checks = {model["name"]: model["checks"] for model in held["models"]}
    with _served(folder) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=_QUIET)
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        result = _result(page)
        if "error" in result:
            raise BadModel(f"the page fails: {gist(result['error'])}", fix=_AGAIN)
        worst = float("inf")
        for name in source.models:
            for check, (_, expected) in zip(checks[name], source.feeds(name), strict=True):
                answers = page.evaluate("([name, check]) => answers(name, check)", [name, check])
                worst = min(worst, snr_db(expected, _arrays(answers, expected)))
        by = f"onnxruntime-web {result['version']} in Chromium {browser.version}"
        browser.close()
    _demand_inside(asked, address)
    return Replay(f"{by}, {wording.count(int(result['threads']), 'thread')}", worst)


def _result(page: Any) -> dict[str, Any]:
    """Wait for what the page says of itself; its policy forbids what Playwright waits by.

    Raises:
        BadModel: It says nothing for four minutes.
    """
    for _ in range(_LIMIT_MS // _LOOK_MS):
        found: dict[str, Any] | None = page.evaluate("window.result")
        if found is not None:
            return found
        page.wait_for_timeout(_LOOK_MS)
    raise BadModel(f"the page did not end within {_LIMIT_MS // 1000} s", fix=_AGAIN)


def _arrays(answers: dict[str, str], expected: Tensors) -> Tensors:
    made = {}
    for name, wanted in expected.items():
        values = np.frombuffer(base64.b64decode(answers.get(name, "")), np.asarray(wanted).dtype)
        made[name] = values.reshape(wanted.shape) if values.size == wanted.size else values
    return made


def _demand_inside(asked: list[str], address: str) -> None:
    """Refuse a page that asked anybody but the server that it came from.

    Raises:
        BadModel: It did.
    """
    for url in asked:
        split = urlsplit(url)
        if split.scheme not in ("data", "blob") and split.netloc != urlsplit(address).netloc:
            raise BadModel(f"the page asks for {gist(url)}", fix="report this as a bug")


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve by the package's own server and give its address."""
    command = [sys.executable, str(folder / "serve.py"), "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().decode().rpartition(" ")[2].strip()
    finally:
        server.terminate()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
