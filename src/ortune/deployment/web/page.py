"""Write the page: runtime, models, samples, settings."""

from __future__ import annotations

import json
import os
import shutil
from importlib.resources import files
from pathlib import Path
from string import Template

from ortune.bundle.source import Source
from ortune.core.errors import BadSettings
from ortune.deployment import check_samples, model_files
from ortune.deployment.languages.language import WEB, lines
from ortune.deployment.languages.settings import settings

PACKAGE = "onnxruntime-web"
_RUNTIME = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
_FILES = ("index.html", "page.js", "session.mjs", "run.mjs", "serve.py")


def runtime(given: str, version: str) -> Path | None:
    """Return the folder of the npm package in a version, or None if it is not here.

    Args:
        given: The folder that a person named; else ``node_modules`` of the working folder and
            what ``NODE_PATH`` lists are looked at.
        version: The one that the page is made for.

    Raises:
        BadSettings: The folder that was named is not that package in that version.
    """
    if given:
        folder = Path(given)
        found = _version(folder)
        if found != version:
            raise BadSettings(
                f"'{given}' holds {PACKAGE} {found or 'in no version'}, not {version}",
                fix=f"npm install {PACKAGE}@{version}, or write web(version=...)",
            )
        return folder
    listed = [Path("node_modules"), *map(Path, os.environ.get("NODE_PATH", "").split(os.pathsep))]
    places = [folder / PACKAGE for folder in listed if folder.name]
    return next((one for one in places if _version(one) == version), None)


def _version(folder: Path) -> str:
    try:
        held = json.loads((folder / "package.json").read_bytes())
    except (OSError, ValueError):
        return ""
    known = isinstance(held, dict) and held.get("name") == PACKAGE
    return str(held.get("version", "")) if known else ""


def write(source: Source, folder: Path, package: Path) -> None:
    """Write the page with everything that it fetches."""
    (folder / "ort").mkdir()
    for name in _RUNTIME:
        shutil.copyfile(package / "dist" / name, folder / "ort" / name)
    checks = model_files.homes(source, folder / "check")
    models = []
    for name, home in model_files.homes(source, folder / "model").items():
        model = model_files.copy(source, name, home)
        check_samples.write_all(source, name, checks[name])
        models.append(
            {
                "name": name,
                "file": _place(model, folder),
                "external": [
                    {"path": place, "file": _place(home / place, folder)}
                    for place in source.external(name)
                ],
                "checks": [_place(one, folder) for one in sorted(checks[name].iterdir())],
            }
        )
    held = json.dumps({"title": source.name, "models": models}, indent=1, sort_keys=True)
    (folder / "models.json").write_text(f"{held}\n", encoding="utf-8")
    chosen = settings(model_files.cpu(source))
    for name in _FILES:
        text = (files("ortune.deployment.web") / f"{name}.txt").read_text(encoding="utf-8")
        if name == "session.mjs":
            text = Template(text).substitute(settings=lines(WEB, chosen))
        (folder / name).write_text(text, encoding="utf-8")


def _place(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
