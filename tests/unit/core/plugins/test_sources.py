"""A plugin's digest follows the code that it really imports: stale builds are made anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ortune.core.plugins import catalog, sources
from ortune.core.reading import read_step
from ortune.core.step import Transform
from ortune.search.recipe.built import BuiltModel, find_build, record_build, steps_key

PACKAGE = {
    "__init__.py": '"""Toys."""\n',
    "transforms/__init__.py": "",
    "transforms/paint.py": """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ortune.core.step import Stage, Transform

if TYPE_CHECKING:
    from toys.typing_only import Shade


@dataclass(frozen=True)
class Paint(Transform):
    \"\"\"Paint.\"\"\"

    stage: ClassVar[Stage] = Stage.FUSE

    def apply(self, model: Any) -> int:
        from ..brushes import wide

        return wide.stroke(model)
""",
    "transforms/other.py": "from toys.pigments import red\n",
    "brushes/__init__.py": "",
    "brushes/wide.py": (
        '"""Wide."""\n\nfrom toys import pigments\n\n\ndef stroke(model):\n    """Stroke."""\n'
        "    return pigments.red(model)\n"
    ),
    "brushes/narrow.py": "WIDTH = 1\n",
    "pigments.py": "def red(model):\n    # nothing yet\n    return 0\n",
    "typing_only.py": "Shade = int\n",
}

Edit = Callable[[str, str, str], None]


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site" / "toys"
    for name, text in PACKAGE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(catalog, "list_plugin_packages", lambda: ("ortune", "toys"))
    _forget()
    yield folder
    _forget()


def _forget() -> None:
    """Drop what a process keeps of the files it has seen, as a new process would."""
    for cached in (
        catalog.map_modules,
        catalog.code_digest,
        sources.find_module_file,
        sources.read_module_source,
    ):
        cached.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toys"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "old", "new", "reused"),
    [
        ("pigments.py", "return 0", "return 1", False),
        ("brushes/wide.py", "pigments.red(model)", "pigments.red(model) + 1", False),
        ("brushes/__init__.py", "", "import toys.brushes.narrow\n", False),
        ("transforms/paint.py", "Stage.FUSE", "Stage.FINISH", False),
        ("pigments.py", "# nothing yet", "# not yet", True),
        ("brushes/wide.py", '"""Stroke."""', '"""Paint a stroke.\n\n    Slowly.\n    """', True),
        ("brushes/narrow.py", "1", "2", True),
        ("transforms/other.py", "red", "red as crimson", True),
        ("typing_only.py", "int", "str", True),
    ],
)
def test_a_build_is_reused_until_code_behind_it_changes(
    toys: Path, tmp_path: Path, file: str, old: str, new: str, reused: bool
) -> None:
    cache = tmp_path / "cache"
    steps = [catalog.load_plugin(Transform, "paint")()]
    path = cache / steps_key(steps) / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"built")
    record_build(BuiltModel(path, ()), "model")
    assert find_build(cache, "model", steps) == BuiltModel(path, ())

    text = (toys / file).read_text(encoding="utf-8")
    assert old in text
    (toys / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    _forget()
    again = find_build(cache, "model", [catalog.load_plugin(Transform, "paint")()])
    assert (again == BuiltModel(path, ())) is reused


def test_plugins_in_fields_and_those_taken_from_the_catalog_count(toys: Path) -> None:
    (toys / "transforms" / "late.py").write_text(
        PACKAGE["transforms/paint.py"]
        .replace("class Paint", "class Late")
        .replace("from ..brushes import wide", "from ortune.core.plugins import catalog")
        .replace("wide.stroke(model)", 'catalog.load_plugin(Transform, "paint")().apply(model)')
    )
    _forget()
    before = catalog.source_digest(catalog.load_plugin(Transform, "late")())
    (toys / "pigments.py").write_text("def red(model):\n    return 2\n")
    _forget()
    assert catalog.source_digest(catalog.load_plugin(Transform, "late")()) != before


def test_ortunes_own_plugins_differ_in_what_they_import() -> None:
    names = catalog.list_plugins(Transform)
    plain, other = (read_step(f"int8-static(observer={name})") for name in ("min-max", "mse"))
    assert catalog.source_digest(plain) != catalog.source_digest(other)
    assert (
        len({catalog.source_digest(catalog.load_plugin(Transform, name)()) for name in names}) > 20
    )
