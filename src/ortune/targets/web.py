"""A page that runs the model in the browser by onnxruntime-web, from its own folder alone."""

import base64
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from ortune.bundle.engine.golden import snr_db
from ortune.bundle.target import Replay, Source, Target
from ortune.core import wording
from ortune.core.errors import BadModel, BadSettings, summarize_error
from ortune.core.python_process import make_python_command
from ortune.core.temporary_folder import open_temporary_folder
from ortune.targets.common import plain_session
from ortune.targets.common.replay import ANOTHER

PACKAGE = "onnxruntime-web"
_RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
_FILES = ("index.html", "page.js", "session.mjs", "run.mjs", "serve.py")
_QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
_LIMIT_MS, _LOOK_MS = 240_000, 100


@dataclass(frozen=True)
class WebPage(Target):
    """``index.html`` with WebAssembly, models, golden samples, and a server of a few lines.

    Attributes:
        replayed: Open the page in headless Chromium (or run it under node) and compare answers.
        limit: Not used: a browser's time is no measure of the bundle's.
        runtime: Folder of the npm package onnxruntime-web; by itself ``node_modules`` here and
            ``NODE_PATH`` are looked at.
        version: Of that package.
    """

    places: ClassVar[tuple[str, ...]] = ("runtime",)

    runtime: str = ""
    version: str = "1.30.0"

    def missing(self) -> str | None:
        """The runtime is npm's, not pip's."""
        if find_runtime(self.runtime, self.version) is None:
            return f"npm install {PACKAGE}@{self.version}"
        return None

    def refuses(self, source: Source) -> str:
        """Find by running, where node is here, whether WebAssembly has the kernels."""
        why = plain_session.explain_cpu_refusal(source)
        if why or not shutil.which("node"):
            return why
        with open_temporary_folder() as temporary:
            folder = Path(temporary)
            self.write(source, folder)
            try:
                self._replay_in_node(source, folder)
            except BadModel as error:
                return f"onnxruntime-web {self.version} does not run it: {error.what}"
        return ""

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        package = find_runtime(self.runtime, self.version)
        assert package is not None  # else it is missing
        _write_page(source, folder, package)
        return (
            "python serve.py    then open http://127.0.0.1:8080/",
            "threads need the headers Cross-Origin-Opener-Policy and -Embedder-Policy (serve.py)",
        )

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Open it in Chromium; node runs the same WebAssembly where there is no browser."""
        if find_chromium():
            return replay_in_browser(source, folder)
        return self._replay_in_node(source, folder) if shutil.which("node") else None

    def unrun(self, replay: Replay | None) -> str:
        """A browser needs Playwright and Chromium."""
        if replay is None:
            return "the page, as neither Chromium with Playwright nor node is here"
        return "" if "Chromium" in replay.by else "the page in a browser"

    def _replay_in_node(self, source: Source, folder: Path) -> Replay:
        node = shutil.which("node")
        assert node is not None
        by = f"node, onnxruntime-web {self.version}"
        return plain_session.replay_program(
            source, by, lambda name: [node, folder / "run.mjs", name], where=folder
        )


def find_runtime(named_folder: str, version: str) -> Path | None:
    """Return the folder of the npm package in a version, or None if it is not here.

    It is the named folder, else in ``node_modules`` of the working folder or in what ``NODE_PATH``
    lists. Raises BadSettings: the named folder is not that package in that version.
    """
    if named_folder:
        folder = Path(named_folder)
        release = _read_version(folder)
        if release != version:
            raise BadSettings(
                f"'{named_folder}' holds {PACKAGE} {release or 'in no version'}, not {version}",
                fix=f"npm install {PACKAGE}@{version}, or write web(version=...)",
            )
        return folder
    listed = [Path("node_modules"), *map(Path, os.environ.get("NODE_PATH", "").split(os.pathsep))]
    places = [folder / PACKAGE for folder in listed if folder.name]
    return next((place for place in places if _read_version(place) == version), None)


def _read_version(folder: Path) -> str:
    try:
        manifest = json.loads((folder / "package.json").read_bytes())
    except (OSError, ValueError):
        return ""
    is_package = isinstance(manifest, dict) and manifest.get("name") == PACKAGE
    return str(manifest.get("version", "")) if is_package else ""


def _write_page(source: Source, folder: Path, package: Path) -> None:
    (folder / "ort").mkdir()
    for name in _RUNTIME:
        shutil.copyfile(package / "dist" / name, folder / "ort" / name)
    checks = plain_session.write_sample_folders(source, folder / "check")
    models = []
    for name, home in plain_session.list_model_folders(source, folder / "model").items():
        model = plain_session.copy_model(source, name, home)
        models.append(
            {
                "name": name,
                "file": _make_relative(model, folder),
                "external": [
                    {"path": place, "file": _make_relative(home / place, folder)}
                    for place in source.external(name)
                ],
                "checks": [
                    _make_relative(path, folder) for path in sorted(checks[name].iterdir())
                ],
            }
        )
    document = json.dumps({"title": source.name, "models": models}, indent=1, sort_keys=True)
    (folder / "models.json").write_text(f"{document}\n", encoding="utf-8")
    plain_session.write_settings(folder, plain_session.read_cpu_settings(source))
    for name in _FILES:
        plain_session.write_text_file(folder / name, f"web/{name}")


def _make_relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def find_chromium() -> str | None:
    """Return the browser, where Playwright is installed to drive it."""
    if importlib.util.find_spec("playwright") is None:
        return None
    programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in programs if path), None)


def replay_in_browser(source: Source, folder: Path) -> Replay:
    """Compare the page's answers with the golden ones; BadModel where it fails or asks afar."""
    from playwright.sync_api import sync_playwright

    document = json.loads((folder / "models.json").read_bytes())
    checks = {model["name"]: model["checks"] for model in document["models"]}
    with _serve_folder(folder) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=find_chromium(), args=_QUIET)
        page = browser.new_page()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        page.goto(address)
        # The page's policy forbids what Playwright waits by.
        result: dict[str, Any] | None = None
        for _ in range(_LIMIT_MS // _LOOK_MS):
            if (result := page.evaluate("window.result")) is not None:
                break
            page.wait_for_timeout(_LOOK_MS)
        if result is None:
            raise BadModel(f"the page did not end within {_LIMIT_MS // 1000} s", fix=ANOTHER)
        if "error" in result:
            raise BadModel(f"the page fails: {summarize_error(result['error'])}", fix=ANOTHER)
        worst = float("inf")
        for name in source.models:
            for check, (_, expected) in zip(checks[name], source.feeds(name), strict=True):
                answers = page.evaluate("([name, check]) => answers(name, check)", [name, check])
                arrays = {}
                for output, array in expected.items():
                    raw = base64.b64decode(answers.get(output, ""))
                    values = np.frombuffer(raw, np.asarray(array).dtype)
                    fits = values.size == array.size
                    arrays[output] = values.reshape(array.shape) if fits else values
                worst = min(worst, snr_db(expected, arrays))
        by = f"onnxruntime-web {result['version']} in Chromium {browser.version}"
        browser.close()
    for url in urls:
        split = urlsplit(url)
        if split.scheme not in ("data", "blob") and split.netloc != urlsplit(address).netloc:
            raise BadModel(f"the page asks for {summarize_error(url)}", fix="report this as a bug")
    return Replay(f"{by}, {wording.format_count(int(result['threads']), 'thread')}", worst)


@contextmanager
def _serve_folder(folder: Path) -> Iterator[str]:
    """Serve by the package's own server and give its address."""
    command = make_python_command(folder / "serve.py", "0", isolated=True)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().decode().rpartition(" ")[2].strip()
    finally:
        server.terminate()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
