"""The layout of `src/ortune` keeps its rules, and every rule sees a file that breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from tools.layout.rules import RULES, check
from tools.layout.tree import Limits, Tree

from ortune.core.plugins import catalog

ROOT = Path(__file__).parents[2] / "src" / "ortune"
TREE = Tree(ROOT)

PROJECT = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["toy.cli", "toy.transforms | toy.metrics", "toy.core", "(toy.absent)"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["toy.core"]
layers = ["rooms", "plugins"]
"""

CLEAN = {
    "src/toy/__init__.py": '"""Toys."""\n',
    "src/toy/cli/__init__.py": '"""Verbs."""\n',
    "src/toy/cli/play.py": '"""Play."""\nfrom toy.transforms import spin\n',
    "src/toy/transforms/__init__.py": '"""Transforms."""\n',
    "src/toy/transforms/spin.py": '"""Spin."""\nfrom toy.core import top\n',
    "src/toy/metrics/__init__.py": '"""Metrics."""\n',
    "src/toy/core/__init__.py": '"""Nouns."""\n',
    "src/toy/core/top.py": """
        '''A top.'''
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from toy.core import wheel
        class Top:
            def spin(self): return self
        class _Private: ...
        """,
    "src/toy/core/wheel.py": "'''A wheel.'''\nclass Wheel: ...\nclass _Private: ...\n",
    "src/toy/core/rooms/__init__.py": '"""Rooms."""\n',
    "src/toy/core/plugins/__init__.py": '"""Plugins."""\n',
    "tests/test_top.py": "from toy.core import top\nassert top.Top()._own is not top.__doc__\n",
}

SHORT = {
    "src/toy/core/spoke.py": "'''A spoke.'''\n",
    "src/toy/core/rim.py": "'''A rim.'''\nfrom toy.core import spoke\n",
}

PLANTED: list[tuple[str, Mapping[str, str], str]] = [
    (
        "long file",
        {"src/toy/core/long.py": "'''Long.'''\n" + "x = 1\n" * 600},
        "core/long.py: long file: 601 lines, at most 600",
    ),
    (
        "long function",
        {"src/toy/core/long.py": "'''Long.'''\n@f\ndef deep():\n" + "    x = 1\n" * 80},
        "core/long.py: long function: deep has 81 lines, at most 80",
    ),
    (
        "first line",
        {"src/toy/core/wordy.py": f"'''{'W' * 90}.\n\nMore.'''\n"},
        "core/wordy.py: first line: 91 characters, at most 90: WWW",
    ),
    ("first line", {"src/toy/core/mute.py": "x = 1\n"}, "core/mute.py: first line: no docstring"),
    (
        "no plugin",
        {"src/toy/metrics/_shared.py": "'''Shared.'''"},
        "metrics/_shared.py: no plugin: a private module",
    ),
    (
        "no plugin",
        {"src/toy/cli/_tables.py": '"""Tables."""'},
        "cli/_tables.py: no plugin: a private module",
    ),
    (
        "same name",
        {"src/toy/cli/top.py": "'''A verb.'''\nclass Top: ...\n"},
        "cli/top.py: same name: class Top is defined in toy.core.top too",
    ),
    (
        "import circle",
        {
            "src/toy/core/a.py": "'''A.'''\nfrom toy.core import b\n",
            "src/toy/core/b.py": "'''B.'''\nimport toy.core.c\n",
            "src/toy/core/c.py": "'''C.'''\ndef f():\n    from toy.core.a import x\n",
        },
        "core/a.py: import circle: toy.core.a -> toy.core.b -> toy.core.c -> toy.core.a",
    ),
    (
        "import circle",
        {
            "src/toy/core/a.py": '"""A."""\nfrom toy.core import b\n',
            "src/toy/core/b.py": (
                '"""B."""\nfrom typing import TYPE_CHECKING\n'
                "if TYPE_CHECKING:\n    from toy.core.a import x\n"
            ),
        },
        "core/a.py: import circle: toy.core.a -> toy.core.b -> toy.core.a",
    ),
    (
        "upward import",
        {"src/toy/core/up.py": "'''Up.'''\nfrom toy.cli.play import word\n"},
        "core/up.py: upward import: imports toy.cli.play, which is not below",
    ),
    (
        "upward import",
        {"src/toy/core/plugins/up.py": "'''Up.'''\ndef f():\n    import toy.core.rooms\n"},
        "core/plugins/up.py: upward import: imports toy.core.rooms, which is not below",
    ),
    (
        "upward import",
        {"src/toy/metrics/beside.py": "'''Beside.'''\nfrom toy.transforms import spin\n"},
        "metrics/beside.py: upward import: imports toy.transforms.spin, which is not below",
    ),
    (
        "no floor",
        {"src/toy/attic/__init__.py": "'''Attic.'''"},
        "attic/__init__.py: no floor: not in the layers of toy in pyproject.toml",
    ),
    (
        "imports the root",
        {"src/toy/cli/show.py": "'''Show.'''\ndef f():\n    from toy import __version__\n"},
        "cli/show.py: imports the root: imports toy itself",
    ),
    (
        "same name",
        {
            "src/toy/cli/top.py": "'''A verb.'''\ndef run(): ...\ndef turn(): ...\n",
            "src/toy/core/turn.py": "'''Turns.'''\ndef run(): ...\ndef turn(): ...\n",
        },
        "cli/top.py: same name: turn() is defined in toy.core.turn too",
    ),
    *(
        (
            "filler",
            {"src/toy/core/words.py": f"'''Words.'''\n{text}\n"},
            f"words.py: filler: {said}",
        )
        for text, said in (
            ("def count(given): ...", "line 2: 'given' says nothing alone"),
            ("for one in (): ...", "line 2: 'one' says nothing alone"),
            ("class Bag:\n    def fill(self): self._rest = 1", "line 3: '_rest' says nothing"),
            ("class Bag:\n    every: int = 0", "line 3: 'every' says nothing alone"),
        )
    ),
    *(
        (
            "participle",
            {"src/toy/core/words.py": f"'''Words.'''\n{text}\n"},
            f"words.py: participle: line {line}: {word}() begins with a participle",
        )
        for text, line, word in (
            ("def _joined_rows(): ...", 2, "_joined_rows"),
            ("def built_model(): ...", 2, "built_model"),
            ("class Bag:\n    def emptied(self): ...", 3, "emptied"),
        )
    ),
    *(
        (
            "half a sentence",
            {"src/toy/core/words.py": f"'''Words.'''\ndef count():\n    '''{text}'''\n"},
            f"words.py: half a sentence: line 2: no sentence by itself: {text}",
        )
        for text in ("Of the bag.", "counts what is in it.", "Count what is in it")
    ),
    *(
        (
            "child interpreter",
            {"src/toy/core/start.py": f"'''Starting.'''\n{text}\n"},
            f"core/start.py: child interpreter: line 2: {way}: use make_python_command",
        )
        for text, way in (
            ("run([sys.executable, top])", "sys.executable"),
            ("CODE = 'os.execv(sys.executable, words)'", "sys.executable in a text"),
            ("run([python, '-m', 'toy'])", "the words of an interpreter"),
            ("run((*python, '-c', code))", "the words of an interpreter"),
            ("os.posix_spawn(path, words, {})", "os.posix_spawn"),
            ("os.system(line)", "os.system"),
            ("from sys import executable", "import of executable"),
            ("import multiprocessing.pool", "import of multiprocessing"),
            ("from multiprocessing import Pool", "import of multiprocessing"),
            (
                "from concurrent.futures import ProcessPoolExecutor",
                "import of ProcessPoolExecutor",
            ),
        )
    ),
    *(
        (
            "temporary folder",
            {"src/toy/core/scratch.py": f"'''Scratch.'''\n{text}\n"},
            "core/scratch.py: temporary folder: line 2: ",
        )
        for text in ("open(tempfile.TemporaryDirectory(prefix='x'))", "home = mkdtemp()")
    ),
    (
        "small module",
        SHORT,
        "core/spoke.py: small module: 1 lines, and only toy.core.rim imports it",
    ),
    *(
        (
            "request below its door",
            {
                "src/toy/core/play.py": "'''Play.'''\n@request\nclass Play(Request): ...\n",
                "src/toy/metrics/taking.py": f"'''Taking.'''\n{text}\n",
            },
            f"metrics/taking.py: request below its door: {place} is a Play, which its verb takes",
        )
        for text, place in (
            ("def take(game: Play): ...", "game of take"),
            ("async def take(*, game: 'int' | list[play.Play]): ...", "game of take"),
            ("class Taker:\n    game: Play | None", "game of Taker"),
        )
    ),
    *(
        (
            "private name in a test",
            {"tests/test_private.py": text},
            f"tests/test_private.py: private name in a test: toy.core.top._Private, line {line}",
        )
        for text, line in (
            ("from toy.core.top import _Private\n", 1),
            ("from toy.core import top\nprint(top._Private)\n", 2),
            ("import toy.core.top\nprint(toy.core.top._Private)\n", 2),
            ("import toy.core.top as t\ndef f(m): m.setattr(t, '_Private', 1)\n", 2),
            ("def f(m): m.setattr('toy.core.top._Private', 1)\n", 1),
        )
    ),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps(rule: str) -> None:
    """No file of ours breaks a rule."""
    assert not [str(one) for one in check(TREE, rule)]


def test_plugin_folders_are_the_catalogs() -> None:
    """The free folders are those that the catalog lists."""
    homes = {
        next(iter(catalog.map_modules(one).values())).rpartition(".")[0] for one in catalog.BASES
    }
    assert {f"ortune.{one}" for one in Limits().plugin_folders} == homes


def test_short_modules_have_reasons() -> None:
    """An exception without a reason is none."""
    reasons = [*Limits().small.values(), *Limits().doors.values()]
    assert all(len(reason) > 20 for reason in reasons)


def test_clean_project(tmp_path: Path) -> None:
    """Type checkers' imports, private classes and attributes of objects are nobody's business."""
    assert not check(_project(tmp_path, {}))


@pytest.mark.parametrize(
    "text",
    [
        "from toy.core.request import make_verb\ndef take(game: Play): ...",
        "def run(asked: Play): ...\ndef take(game: Play): ...",
        "from toy.core.request import request\ndef read(asked: Play): ...",
        "def spell(asked: Request, kind: type[Request]): ...",
    ],
)
def test_doors_take_requests(tmp_path: Path, text: str) -> None:
    """Where a request or its verb is made it is taken apart; anything may be of all requests."""
    play = "'''Play.'''\n@request\nclass Play(Request): ...\n"
    files = {"src/toy/core/play.py": play, "src/toy/metrics/door.py": f"'''Door.'''\n{text}\n"}
    assert not check(_project(tmp_path, files), "request below its door")


@pytest.mark.parametrize(("rule", "files", "message"), PLANTED)
def test_planted(tmp_path: Path, rule: str, files: Mapping[str, str], message: str) -> None:
    """A planted file breaks one rule, and the message names both."""
    (found,) = check(_project(tmp_path, files))
    assert found.rule == rule
    assert message in str(found)


def test_a_reason_that_nobody_needs(tmp_path: Path) -> None:
    """A short module passes with its reason; one that several import needs none."""
    limits = Limits(
        least=2, small={"toy.core.spoke": "for the test", "toy.core.top": "for the test"}
    )
    (found,) = check(_project(tmp_path, SHORT, limits))
    assert "top.py: small module: needs no reason" in str(found)


def test_names_that_are_not_ours(tmp_path: Path) -> None:
    """Interfaces of plugins, options of requests and fields of results keep their names."""
    files = {
        "src/toy/core/parts.py": """
            '''Parts.'''
            class Plugin: ...
            class Part(Plugin):
                def held(self, tool: Tool) -> None: ...
            class Tool:
                def joined(self) -> int: ...
            class Spoken(Protocol):
                def told(self) -> str: ...
            @request
            class Ask:
                what: str
            class Answer(Result):
                some: Row
            class Row:
                left: int
            """,
        "src/toy/transforms/join.py": """
            '''Join.'''
            class Join(Part):
                def held(self, tool): ...
            class Voice:
                def told(self): ...
            """,
    }
    assert not check(_project(tmp_path, files))


def _project(folder: Path, files: Mapping[str, str], limits: Limits | None = None) -> Tree:
    for name, text in {"pyproject.toml": PROJECT, **CLEAN, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text).lstrip())
    return Tree(folder / "src" / "toy", limits or Limits(least=2))
