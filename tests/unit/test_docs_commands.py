"""Every command, Python block, plugin spelling, option and file that the documentation names."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import click
import pytest

import ortune as ot
from ortune.bundle.target import Target
from ortune.cli.main import root
from ortune.core.augmentation import Augmentation
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadSettings
from ortune.core.observer import Observer
from ortune.core.plugins import catalog
from ortune.core.plugins.plugin import Plugin
from ortune.core.plugins.spelling import parse_list, parse_plugin
from ortune.core.reading import read_step
from ortune.core.workload import Workload

HOME = Path(__file__).parents[2]
FOLDERS = [HOME / name for name in ("docs", "examples", "tests")]
PAGES = [HOME / "README.md", *sorted(p for folder in FOLDERS for p in folder.rglob("*.md"))]
TODAY = [page for page in PAGES if page.parent.name != "decisions"]
"""Decision pages tell what was so when they were written."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
PLACEHOLDER = re.compile(r"[A-Z][A-Z,]*|.*\bSPECS?|\.*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN = re.compile(
    r"benchmarks\.|tests\.fuzz|pip |--fresh|cmake |trtexec|hf download|ray start|curl "
)
"""Lines with the options of other programs."""

HARDWARE_OR_SERVED = re.compile(r"cpu|gpu|tensorrt|cuda|directml|\w+://\S+|\S+\.(ortune|onnx)")
MADE_UP = "plain"
"""The backend that the how-to of a backend writes."""
SPELLED: dict[str, Callable[[str], object]] = {
    "augment": lambda text: parse_list(Augmentation, text),
    "baseline": lambda text: parse_plugin(Backend, text),
    "budget": Budget.parse,
    "observers": lambda text: parse_plugin(Observer, text),
    "on": lambda text: (
        text in ("auto", MADE_UP)
        or parse_list(Backend, re.sub(r" in [\w.-]+|," + MADE_UP, "", text))
    ),
    "step": read_step,
    "steps": read_step,
    "target": lambda text: bool(HARDWARE_OR_SERVED.fullmatch(text)) or parse_plugin(Target, text),
    "workload": lambda text: parse_plugin(Workload, text),
}
"""Parameter of a verb -> what reads the spelling."""


def verbs() -> dict[str, click.Command]:
    ctx = click.Context(root)
    found = {name: root.get_command(ctx, name) for name in root.list_commands(ctx)}
    return {name: command for name, command in found.items() if command is not None}


def commands(text: str) -> Iterator[str]:
    """Yield the command lines of a page: of its code blocks and between backticks."""
    for _, block in FENCE.findall(text):
        yield from block_commands(block)
    for span in SPAN.findall(FENCE.sub("", text)):
        if span.startswith("ortune ") and len(span.split()) > 2:
            yield from lines(" ".join(span.split()))


def block_commands(block: str) -> Iterator[str]:
    for line in block.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        if line.startswith("ortune ") and " -> " not in line:
            yield from lines(line)


def lines(text: str) -> Iterator[str]:
    """Split off what a line says of its command, and what is in brackets for "may be left out"."""
    for part in re.split(r" && |  +(?!-)|\s#\s", text):
        if part.startswith("ortune ") and ":" not in part.split()[1]:
            while part != (inner := re.sub(r"\[(-[^][]*)\]", r"\1", part)):
                part = inner
            yield part.replace("...", "")


def written() -> list[tuple[str, str]]:
    found = [(str(p.relative_to(HOME)), line) for p in TODAY for line in commands(p.read_text())]
    for name, command in verbs().items():
        found += [(f"{name} --help", line) for line in block_commands(command.help or "")]
    found += [("ortune --help", line) for line in block_commands(root.help or "")]
    return list(dict.fromkeys(found))


WRITTEN = written()


def test_they_are_found() -> None:
    assert len(WRITTEN) > 100
    missing = set(verbs()) - {line.split()[1] for _, line in WRITTEN}
    assert not missing, "no page shows them"


@pytest.mark.parametrize(("where", "line"), WRITTEN)
def test_command(where: str, line: str) -> None:
    name, *words = shlex.split(line)[1:]
    assert name in verbs() or name.startswith("-") or name == "VERB"
    if name not in verbs() or "--help" in words:
        return
    command = verbs()[name]
    ctx = click.Context(command, info_name=name)
    if any(words[-1:] == [word] for one in command.params for word in takes_a_value(one)):
        words.append("VALUE")
    for position, word in enumerate(words):
        if word == "--json":
            told = [*words[position + 1 :], ""][0]
            words[position : position + 1 + told.endswith(".json")] = [f"--json={told or '-'}"]
    given, rest, _ = command.make_parser(ctx).parse_args([word.split("|")[0] for word in words])
    assert not rest, "arguments too many"
    for parameter in command.params:
        value = given.get(parameter.name or "")
        if isinstance(parameter, click.Argument) and parameter.required:
            in_file = words[:1] and words[0].endswith(".toml")
            about_options = not any(re.match(r"[^-]", word) for word in words)
            assert value or in_file or about_options, f"{parameter.name} is missing"
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str):
                check(ctx, parameter, one)


def check(ctx: click.Context, parameter: click.Parameter, text: str) -> None:
    """Read one value of a command line, unless it is a placeholder or names a file."""
    if PLACEHOLDER.fullmatch(text) or re.match(r"\./\w+\.py:", text):
        return
    assert parameter.type.convert(text, parameter, ctx) is not None
    if parameter.name in SPELLED:
        SPELLED[parameter.name](text)


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_spellings(page: Path) -> None:
    """Plugins with fields, wherever they stand between backticks or quotes."""
    bases = [catalog.base_of(folder) for folder in catalog.BASES if folder != "sections"]
    known: dict[str, list[type[Plugin]]] = {}
    for base in bases:
        for name in catalog.list_plugins(base):
            known.setdefault(name, []).append(base)
    for text in re.findall(r"[`\"']([a-z][a-z0-9-]*\([^`\"]*?\))[`\"']", page.read_text()):
        name, _, fields = text.partition("(")
        if name in known and not re.search(r"=[A-Z]\b|\.\.\.| @ |^[^=]*$", fields):
            assert any(reads(base, " ".join(text.split())) for base in known[name]), text


def reads(base: type[Plugin], text: str) -> bool:
    """Whether it is a plugin of that kind: a backend and a target may have one name."""
    try:
        return bool(parse_list(base, text))
    except BadSettings:
        return False


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_options(page: Path) -> None:
    """Options named in the text are of some verb."""
    known = {word for verb in verbs().values() for one in verb.params for word in options(one)}
    for line in page.read_text().splitlines():
        if not FOREIGN.search(line):
            assert set(OPTION.findall(line)) <= known | {"--help", "--version"}, line


def options(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def takes_a_value(parameter: click.Parameter) -> list[str]:
    plain = isinstance(parameter, click.Option) and not parameter.is_flag
    return [word for word in parameter.opts if plain and word != "--json"]


def blocks() -> list[tuple[str, str]]:
    """Return the Python of the pages, and the calls of the library between backticks."""
    found = []
    for page in TODAY:
        text, place = page.read_text(), str(page.relative_to(HOME))
        found += [(place, dedent(body)) for kind, body in FENCE.findall(text) if kind == "python"]
        spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]
        calls = [
            span for span in spans if re.match(r"(ot|ortune)\.(?!plugins|toml|steps|source)", span)
        ]
        found += [(place, span.replace("(...)", "()")) for span in calls]
    return found


@pytest.mark.parametrize(("where", "code"), blocks())
def test_python(where: str, code: str) -> None:
    """It compiles, names what is there, and calls it with arguments that it takes."""
    called = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            called.add(node.func)
        if isinstance(node, ast.Call) and of_ortune(node.func):
            taken = inspect.signature(getattr(ot, node.func.attr)).parameters  # type: ignore[attr-defined]
            free = any(one.kind is one.VAR_KEYWORD for one in taken.values())
            assert free or {word.arg for word in node.keywords} <= set(taken)
        if of_ortune(node):
            there = f"ortune.{node.attr}"  # type: ignore[attr-defined]
            assert hasattr(ot, node.attr) or find_spec(there)  # type: ignore[attr-defined]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ortune"):
            module = import_module(node.module or "")
            assert all(hasattr(module, name.name) for name in node.names)


def of_ortune(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("ot", "ortune")
    )


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
def test_files(page: Path) -> None:
    """Files of the project that are named between backticks, and the targets of links."""
    text = page.read_text()
    folders = [HOME, HOME / "src", HOME / "src" / "ortune", page.parent]
    for span in SPAN.findall(FENCE.sub("", text)):
        file = re.fullmatch(r"((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|json))?)(:\w+)?", span)
        top = span.split("/")[0]  # what stands below build/ is made
        if file and top != "build" and (span.endswith(".py") or (HOME / top).is_dir()):
            found = [f / file[1] for f in folders if (f / file[1]).exists()]
            assert found, f"{span} is not there"
            name = (file[2] or ":")[1:]
            assert not name or re.search(rf"(def|class) {name}\b", found[0].read_text())
    for module, name in re.findall(r"`((?:core|search)\.[\w.]+):(\w+)`", text):
        assert hasattr(import_module(f"ortune.{module}"), name)
    for module in re.findall(r"(?:-m |`)((?:benchmarks|tools|tests)\.[\w.]+)", text):
        place = HOME / module.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), f"{module} is not there"
    for target, anchor in re.findall(r"\]\(([^)#: ]*)#?([^)]*)\)", text):
        to = page.parent / target if target else page
        assert "http" in target or to.exists(), f"{target} is not there"
        assert not anchor or ":" in anchor or anchor in anchors(to), f"no heading {anchor}"


def anchors(page: Path) -> list[str]:
    """Return the anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]


def test_terms() -> None:
    """Every term of the glossary is a word of the code or of another page."""
    page = HOME / "docs" / "glossary.md"
    terms = re.findall(r"^\| \*\*(.+?)\*\*", page.read_text(), re.MULTILINE)
    others = [*(p for p in PAGES if p != page), *(HOME / "src" / "ortune").rglob("*.py")]
    text = "\n".join(p.read_text() for p in others).lower()
    lacking = [
        word
        for term in terms
        for word in term.split(", ")
        if not re.search(rf"\b{word.lower()}", text)
    ]
    assert terms and not lacking
