"""A page that runs the model in the browser by onnxruntime-web, from its own folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from ortune.bundle.source import Source
from ortune.bundle.target import Replay, Target
from ortune.core.errors import BadModel
from ortune.deployment import check_samples, model_files
from ortune.deployment.web import browser, page


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
        if page.runtime(self.runtime, self.version) is None:
            return f"npm install {page.PACKAGE}@{self.version}"
        return None

    def refuses(self, source: Source) -> str:
        """Find by running, where node is here, whether WebAssembly has the kernels."""
        why = model_files.refusal(source) or check_samples.refusal(source)
        if why or not check_samples.found("node"):
            return why
        with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            self.write(source, folder)
            try:
                self._node(source, folder)
            except BadModel as error:
                return f"onnxruntime-web {self.version} does not run it: {error.what}"
        return ""

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write everything that the page fetches."""
        package = page.runtime(self.runtime, self.version)
        assert package is not None  # else it is missing
        page.write(source, folder, package)
        return (
            "python serve.py    then open http://127.0.0.1:8080/",
            "threads need the headers Cross-Origin-Opener-Policy and -Embedder-Policy (serve.py)",
        )

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Open it in Chromium; node runs the same WebAssembly where there is no browser."""
        if browser.chromium():
            return browser.replay(source, folder)
        return self._node(source, folder) if check_samples.found("node") else None

    def unrun(self, replay: Replay | None) -> str:
        """A browser needs Playwright and Chromium."""
        if replay is None:
            return "the page, as neither Chromium with Playwright nor node is here"
        return "" if "Chromium" in replay.by else "the page in a browser"

    def _node(self, source: Source, folder: Path) -> Replay:
        node = check_samples.found("node")
        assert node is not None
        by = f"node, onnxruntime-web {self.version}"
        return check_samples.replay(
            source, by, lambda name: [node, folder / "run.mjs", name], where=folder
        )
