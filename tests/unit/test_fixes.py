"""What every `fix:` says can be done: verbs, options, steps, extras and pages are there."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import ortune
from ortune.cli.main import root
from ortune.core import regular_file, settings
from ortune.core.augmentation import Augmentation
from ortune.core.backend import Backend
from ortune.core.facts import TensorSpec
from ortune.core.metric import Metric
from ortune.core.observer import Observer
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.reading import read_step
from ortune.core.workload import Workload
from ortune.data.synthetic import generate_feeds
from ortune.graph.io import file
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.raise_opset import RaiseOpset
from tests.unit.quantizing import model_of, normal

PACKAGE = Path(ortune.__file__).parent
HOME = Path(__file__).parents[2]
VERB = re.compile(r"\bortune (?!\{|\w+\[)([a-z][\w-]*)([^`;]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_OTHER_PROGRAMS = {"--force-reinstall", "--break-system-packages", "--local-dir"}
OF_OTHER_PROGRAMS |= {"--address", "--head", "--resources"}  # of `ray start`
EXTRAS = re.compile(r"(?:\.|\.whl|ortune)\[([\w,-]+)\]")
BY_NAME = re.compile(r"pip install [^`\n#]*?(?<=[\s'\"])ortune(?![\w./-])(?!\S* @ ).*")
NOT_VERBS = {
    "or",
    "itself",
    "with",
    "again",
    "is",
    "and",
    "that",
    "of",
    "on",
    "in",
    "does",
    "wrote",
}
ROUND = str.maketrans("{}", "()")
KINDS = (Augmentation, Backend, Metric, Observer, Workload)


class Fix(NamedTuple):
    """A text that stands in the source as a fix."""

    where: str
    text: str
    cut: bool
    """It lists names and leaves some out."""


def is_cut_list(part: ast.expr) -> bool:
    """Say whether a part of a text joins the first few of some names."""
    joins = [
        call.args[0]
        for call in ast.walk(part)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "join"
    ]
    sources = [
        source
        for joined in joins
        for source in (
            [inner.iter for inner in joined.generators]
            if isinstance(joined, ast.GeneratorExp)
            else [joined, *(joined.args if isinstance(joined, ast.Call) else ())]
        )
    ]
    return any(
        isinstance(source, ast.Subscript)
        and isinstance(source.slice, ast.Slice)
        and source.slice.upper is not None
        for source in sources
    )


def list_texts(node: ast.expr, constants: dict[str, list[ast.expr]]) -> Iterator[tuple[str, bool]]:
    """Yield the texts that an expression may be, with what is filled in between braces."""
    match node:
        case ast.Constant(value=str(text)):
            yield text, False
        case ast.JoinedStr(values=values):
            parts = [
                str(part.value)
                if isinstance(part, ast.Constant)
                else f"{{{ast.unparse(part)[2:-2].translate(ROUND)}}}"
                for part in values
            ]
            yield "".join(parts), any(map(is_cut_list, values))
        case ast.IfExp(body=body, orelse=otherwise):
            yield from list_texts(body, constants)
            yield from list_texts(otherwise, constants)
        case ast.BoolOp(values=values):
            for value in values:
                yield from list_texts(value, constants)
        case ast.BinOp(left=left, right=right):
            for head, one in list_texts(left, constants):
                for tail, other in list_texts(right, constants):
                    yield head + tail, one or other
        case ast.Name(id=name):
            for value in constants.get(name, []):
                yield from list_texts(value, {})


@cache
def list_fixes() -> tuple[Fix, ...]:
    """Return every fix that stands in the package."""
    fixes = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(tree):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                if keyword.arg == "fix":
                    where = f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}"
                    texts = list_texts(keyword.value, constants)
                    fixes += [Fix(where, text, cut) for text, cut in texts]
    return tuple(fixes)


@cache
def list_options(*, hidden: bool = True) -> dict[str, set[str]]:
    """Return verb -> its options; those of groups within it count as its own.

    Args:
        hidden: Also those that `--help` does not show.
    """
    ctx = click.Context(root)

    def collect(command: click.Command) -> set[str]:
        options = {
            name
            for param in command.params
            if hidden or not getattr(param, "hidden", False)
            for name in (*param.opts, *param.secondary_opts)
        }
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                inner = command.get_command(ctx, name)
                options |= collect(inner) if inner is not None else set()
        return options | {"--help", "--version"}

    commands = {name: root.get_command(ctx, name) for name in root.list_commands(ctx)}
    return {name: collect(command) for name, command in commands.items() if command is not None}


def report(problems: list[str]) -> None:
    """Fail with all problems, a line each."""
    assert not problems, "\n" + "\n".join(problems)


def test_most_fixes_are_read() -> None:
    """What is put together elsewhere, such as another error's fix, is not seen here."""
    assert len(list_fixes()) > 800


def test_verbs_and_their_options_exist() -> None:
    options = list_options()
    problems = []
    for where, text, _ in list_fixes():
        for verb, rest in VERB.findall(text):
            if verb in NOT_VERBS:
                continue
            if verb not in options:
                problems.append(f"{where}: no verb '{verb}': {text}")
                continue
            command = rest.split("`")[0] if "`" in text else ""
            problems += [
                f"{where}: `ortune {verb}` has no {option}: {text}"
                for option in OPTION.findall(command)
                if option not in options[verb]
            ]
    report(problems)


def test_options_exist() -> None:
    known = set().union(*list_options().values()) | OF_OTHER_PROGRAMS
    report(
        [
            f"{where}: no verb has {option}: {text}"
            for where, text, _ in list_fixes()
            for option in OPTION.findall(text)
            if option not in known
        ]
    )


def test_options_are_shown_unless_they_were_given() -> None:
    """`--help` shows what a fix says to give; what was given may be left out."""
    shown = list_options(hidden=False)
    report(
        [
            f"{where}: no --help shows {option}: {text}"
            for where, text, _ in list_fixes()
            for option in OPTION.findall(text)
            if option not in set().union(*shown.values()) | OF_OTHER_PROGRAMS
            and not re.search(r"\bleave\b", text)
        ]
    )


def test_extras_exist_and_no_index_is_said_to_have_the_package() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pages = [
        HOME / "README.md",
        *(HOME / "docs").rglob("*.md"),
        *(HOME / "examples").rglob("*.y*ml"),
    ]
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in pages]
    texts += [(where, text) for where, text, _ in list_fixes()]
    problems = []
    for where, text in texts:
        asked = [
            names
            for line in re.findall(r"pip install (.*)", text)
            for names in EXTRAS.findall(line)
        ]
        problems += [
            f"{where}: no extra '{name}'"
            for names in asked
            for name in names.split(",")
            if name not in project["optional-dependencies"]
        ]
        problems += [f"{where}: {name}" for name in BY_NAME.findall(text)]
    report(problems)


def test_pages_exist() -> None:
    problems = []
    for where, text, _ in list_fixes():
        problems += [
            f"{where}: no page {page}: {text}"
            for page in re.findall(r"docs/[\w./-]+\.md", text)
            if not (HOME / page).is_file()
        ]
    report(problems)


def test_steps_exist() -> None:
    problems = []
    for where, text, _ in list_fixes():
        for step in re.findall(r"\bapply (?:M |MODEL )?([a-z0-9]+(?:-[a-z0-9]+)+)", text):
            try:
                read_step(step)
            except ortune.OrtuneError as error:
                problems.append(f"{where}: {error.what}: {text}")
    report(problems)


def test_lists_of_names_are_whole_or_say_such_as() -> None:
    problems = [
        f"{where}: a part of a list: {text}"
        for where, text, cut in list_fixes()
        if cut and not re.search(r"such as|the first", text)
    ]
    for kind in KINDS:
        names = set(catalog.list_plugins(kind))
        for where, text, _ in list_fixes():
            words = set(re.findall(r"(?<![\w-])[a-z][\w-]*", text))
            listed = re.search(r"(?:[\w-]+, )+[\w-]+ or [\w-]+", text)
            if listed is None or "such as" in text:
                continue
            named = names & set(re.findall(r"[\w-]+", listed[0]))
            if len(named) > 2 and names - words:
                left = ", ".join(sorted(names - words))
                problems.append(f"{where}: without {left}: {text}")
    report(problems)


UNBOUNDED_IDS = """<ir_version: 8, opset_import: ["": 17]>
g (int64[b,s] ids) => (float[b,s,4] y) { i = Abs(ids) y = Gather(table, i) }"""
UNKNOWN_WIDTH = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,n] x) => (float[b,4] y) { y = MatMul(x, w) }"""


def test_made_up_values_that_are_refused(tmp_path: Path) -> None:
    model = file.save(model_of(UNBOUNDED_IDS, {"table": normal(10, 4)}), tmp_path / "m.onnx")
    with pytest.raises(ortune.OrtuneError) as caught:
        ortune.verify(model, model)
    advised = re.search(r"--range (ids:0\.\.9)", caught.value.fix)
    assert advised is not None, caught.value.fix
    assert ortune.verify(model, model, ranges=[advised[1]]).synthetic


def test_made_up_sizes_that_are_refused(tmp_path: Path) -> None:
    model = file.save(model_of(UNKNOWN_WIDTH, {"w": normal(8, 4)}), tmp_path / "m.onnx")
    with pytest.raises(ortune.OrtuneError) as caught:
        ortune.verify(model, model)
    assert re.search(r"--shape and --range of x$", caught.value.fix), caught.value.fix
    assert ortune.verify(model, model, shapes=["x:1x8"]).synthetic


IDS = TensorSpec("ids", "int64", (None, 4), rows=10)
RAW = TensorSpec("x", "float32", None)
SOFTMAX = """<ir_version: 8, opset_import: ["": 9]>
g (float[b,4] x) => (float[b,4] y) { y = Softmax(x) }"""


def make_up(spec: TensorSpec, folder: Path, **words: Any) -> object:
    return generate_feeds([spec], folder, **{"shapes": {}, "ranges": {}, **words})


def raise_opset(to: str) -> object:
    return RaiseOpset(int(to)).apply(model_of(SOFTMAX))


def read_toml(folder: Path, key: str) -> object:
    path = folder / "a.toml"
    path.write_text(f'{key} = "x"\n')
    return settings.read_settings(path, ["data", "labels"])


def read_range(text: str) -> dict[str, tuple[float, float]]:
    name, _, bounds = text.partition(":")
    low, _, high = bounds.partition("..")
    return {name: (float(low), float(high))}


def read_shape(text: str) -> dict[str, tuple[int, ...]]:
    name, _, dims = text.partition(":")
    return {name: tuple(map(int, dims.split("x")))}


def unpack(folder: Path, limit: str) -> object:
    with regular_file.limit_unpacking(int(limit.removesuffix("G")) << 30):
        return regular_file.require_unpacked(5 << 30, 100, folder / "a.npz")


SITUATIONS: dict[str, tuple[Callable[[Path, str], object], str, str]] = {
    "a range beyond a table": (
        lambda folder, text: make_up(IDS, folder, ranges=read_range(text)),
        "ids:0..90",
        r"--range (\S+\d)",
    ),
    "a shape that nobody knows": (
        lambda folder, text: make_up(RAW, folder, shapes=read_shape(text) if text else {}),
        "",
        r"--shape (\S+)",
    ),
    "an input of another name": (
        lambda folder, text: make_up(IDS, folder, ranges={text: (0, 1)}),
        "idss",
        r"write (\w+)",
    ),
    "an opset that is not there": (lambda _, text: raise_opset(text), "999", r"at most (\d+)"),
    "a step misspelled": (lambda _, text: read_step(text), "simplifi", r"write ([\w-]+)"),
    "a step unlike any": (lambda _, text: read_step(text), "zzzzzz", r"such as ([\w-]+)"),
    "a setting that is not there": (read_toml, "dato", r"write (\w+)"),
    "archives that unpack to much": (unpack, "1G", r"--unpack-limit (\w+)"),
    "an observer without ranges": (
        lambda _, text: Int8Static(observer=parse_plugin(Observer, text)),
        "magnitude",
        r"such as ([\w-]+)",
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_fix_that_is_followed_helps(situation: str, tmp_path: Path) -> None:
    try_it, wrong, followed = SITUATIONS[situation]
    with pytest.raises(ortune.OrtuneError) as caught:
        try_it(tmp_path, wrong)
    advised = re.search(followed, caught.value.fix)
    assert advised is not None, caught.value.fix
    try_it(
        tmp_path / "followed" if situation != "a setting that is not there" else tmp_path,
        advised[1],
    )


def test_every_name_in_a_list_of_fixes_can_be_used(tmp_path: Path) -> None:
    """All that the fix of a misspelled step, observer and setting lists, not the first alone."""
    for wrong in ("simplif", "int8", "fuse"):
        with pytest.raises(ortune.OrtuneError) as caught:
            read_step(wrong)
        for name in re.findall(r"[a-z][\w-]+", caught.value.fix.partition(": ")[2]):
            read_step(name)
    with pytest.raises(ortune.OrtuneError) as caught:
        Int8Static(observer=parse_plugin(Observer, "magnitude"))
    for name in re.findall(
        r"[\w-]+", caught.value.fix.partition("such as ")[2].replace(" or ", " ")
    ):
        Int8Static(observer=parse_plugin(Observer, name))
