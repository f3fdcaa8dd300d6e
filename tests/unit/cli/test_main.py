"""Exit codes and the two lines of every error."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from onnx import helper
from tests.unit import studies

from ortune.cli import main as cli
from ortune.cli.terminal import command as retired_words
from ortune.cli.terminal import panels
from ortune.core.errors import OrtuneError
from ortune.core.plugins import catalog
from ortune.core.reading import read_step
from ortune.core.version import __version__, read_commit

VERBS = cli.root.list_commands(click.Context(cli.root))


def two_lines(text: str) -> tuple[str, str]:
    what, fix = text.splitlines()
    assert fix.startswith("  fix: ")
    return what, fix


def test_help_names_every_verb_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.main(["--help"]) == 0
    out, again = capsys.readouterr().out.split("Usage: ortune ")[1:]
    assert out == again
    assert {"demo", "doctor", "inspect"} <= set(VERBS)
    headings = re.findall(r"^(\w.*):$", out, re.MULTILINE)
    assert headings == [*cli.GROUPS, "Options", "Options of most verbs"], "no verb in no group"
    lines = out.partition("Start:\n")[2].partition("Options:\n")[0].splitlines()
    rows = [re.fullmatch(r"  (\w+) +(\w.*)", line) for line in lines if line.startswith("  ")]
    assert [row and row[1] for row in rows] == VERBS, "one line a verb"
    assert len(VERBS) == len(set(VERBS)) == 25
    clauses = [row[2] for row in rows if row]
    assert not [text for text in clauses if re.search(r"\.|:|;|…", text)], "one clause each"
    assert max(map(len, out.splitlines())) < 80


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_begins_with_one_sentence(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "--help"]) == 0
    first = " ".join(capsys.readouterr().out.split("\n\n")[1].split())
    assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*[.?]", first), first
    assert len(first) <= 100, "a line of a page"


def test_completion_has_a_whole_clause_for_every_verb() -> None:
    items = ShellComplete(cli.root, {}, "ortune", "_ORTUNE_COMPLETE").get_completions([], "")
    assert [item.value for item in items] == VERBS
    assert all(item.help and "..." not in item.help for item in items)


def test_the_example_of_apply_names_steps_that_there_are() -> None:
    text = cli.root.get_command(click.Context(cli.root), "apply").help or ""
    lines = [line.split() for line in text.splitlines() if "ortune apply model.onnx" in line]
    words = [itertools.takewhile(lambda word: not word.startswith("-"), one[3:]) for one in lines]
    given = [word.strip('"') for one in words for word in one]
    assert len(given) == 4
    assert all(read_step(word) for word in given)


def test_the_version_names_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    known = read_commit()
    said = f"ortune {__version__} (commit {known})" if known else f"ortune {__version__}"
    assert capsys.readouterr().out == f"{said}\n"


def test_help_needs_no_heavy_package() -> None:
    code = (
        "import sys; from ortune.cli.main import main; main(['--help']);"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'onnxscript', 'rich', 'psutil',"
        " 'torch', 'ortune.cli.bench', 'ortune.search'};"
        "sys.exit(','.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_and_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:" in out
    assert f"  ortune {verb}" in out.partition("Example:")[2]
    assert "--json" in out
    assert "-v, --verbose" in out


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["inspekt", "m.onnx"], "ortune: no verb 'inspekt'", "`ortune inspect`"),
        (["inspect", "m.onnx", "--verbos"], "ortune inspect: no option --verbos", "--verbose"),
        (["inspect"], "ortune inspect: MODEL is missing", "ortune inspect"),
        (["pack", "run"], "ortune pack: -o / --out is missing", "give -o PATH; `ortune pack"),
        (["cost", "run"], "ortune cost: --price is missing", "give --price P/h; `ortune cost"),
        (["doctor", "add", "cuda"], "'add' is not 'env'", "use env"),
        (
            ["recheck", "b", "--signature-only", "--require-signature", "k", "--no-timed"],
            "--no-timed cannot be combined with --signature-only",
            "leave one of them out",
        ),
        (["inspect", "m.onnx", "--json", "a.json", "b.onnx"], "unexpected", "ortune inspect"),
        (
            ["optimize", "m.onnx", "--prefer", "cost"],
            "'--prefer': 'cost' is not one of",
            "use one of speed, size",
        ),
        (["optimize", "m.onnx", "--max-size", "0"], "--max-size: 0 is too small", "give 1 or"),
    ],
)
def test_a_wrong_word_is_named_with_the_right_one(
    words: list[str], what: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == cli.BAD
    lines = two_lines(capsys.readouterr().err)
    assert what in lines[0] and fix in lines[1]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OrtuneError("no such thing", fix="give another"), 2, "no such thing"),
        (OSError(28, "No space left on device", "out.onnx"), 2, "out.onnx: no space left"),
        (PermissionError(13, "Permission denied", "out.onnx"), 2, "out.onnx: permission denied"),
        (MemoryError(), 2, "out of memory"),
        (KeyboardInterrupt(), 3, "interrupted"),
    ],
)
def test_what_a_verb_raises_becomes_an_exit_code(
    error: BaseException,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli.Verbs, "get_command", lambda self, ctx, name: failing)
    assert cli.main(["doctor"]) == code
    err = capsys.readouterr().err.strip()
    assert said in err
    if code == 2:
        two_lines(err)


def test_what_a_package_warns_of_is_no_third_line(tmp_path: Path) -> None:
    model = tmp_path / "undefined.onnx"
    x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["a"], ["y"])], "g", [x], [y])
    model.write_bytes(helper.make_model(graph).SerializeToString())
    done = subprocess.run(
        [sys.executable, "-m", "ortune.cli.main", "inspect", str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "reads 'a'" in two_lines(done.stderr)[0]


@pytest.mark.parametrize("more", [[], ["-v"]])
def test_a_bug_is_two_lines_and_keeps_its_traceback(
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    @click.argument("words", nargs=-1)
    @click.option("-v", is_flag=True)
    def broken(words: tuple[str, ...], v: bool) -> None:
        raise KeyError("\x1b[31mname")

    monkeypatch.setattr(cli.Verbs, "get_command", lambda self, ctx, name: broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = tmp_path / "model.onnx"
    model.write_bytes(b"")
    assert cli.main(["inspect", str(model), *more]) == 2
    err = capsys.readouterr().err
    what, fix = two_lines("\n".join(err.splitlines()[-2:]))
    assert what == f"ortune inspect: {model}: unexpected KeyError: '\\x1b[31mname'"
    assert ("Traceback" in err) == bool(more)
    (log,) = tmp_path.glob("ortune-traceback-*.txt")
    assert str(log) in fix
    kept = log.read_text(encoding="utf-8")
    assert f"ortune inspect {model}" in kept
    assert "raise KeyError" in kept


def test_a_closed_pipe_is_no_error() -> None:
    code = "from ortune.cli.main import main; import sys; sys.exit(main(['doctor', '--help']))"
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    said = running.stderr.read()
    running.stderr.close()
    running.wait()
    assert "Traceback" not in said


VERB = """
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.request import Request, request


@request
class Greet(Request):
    \"\"\"Greet NAME.

    Example:
        ortune greet you

    Attributes:
        name: Whom.
    \"\"\"

    name: str


@make_command(Greet)
def command(asked: Greet) -> int:
    print_result({"name": asked.name}, lambda: print_text(f"hello {asked.name}"))
    return 0
"""


def test_a_file_in_the_cli_folder_of_a_plugin_package_is_a_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other_package" / "cli"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        (path / "__init__.py").touch()
    (folder / "greet.py").write_text(VERB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "list_plugin_packages", lambda: ("ortune", "other_package"))
    catalog.map_modules.cache_clear()
    try:
        assert cli.main(["greet", "you"]) == 0
        assert capsys.readouterr().out == "hello you\n"
        assert cli.main(["--help"]) == 0
        assert capsys.readouterr().out.partition("Of plugins:\n")[2].split()[:2] == [
            "greet",
            "Options:",
        ]
    finally:
        catalog.map_modules.cache_clear()


def test_every_verb_takes_a_settings_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.toml"
    path.write_text('models = ["none.onnx"]\nthreads = "1,2"\nseconds = 0.0001\n')
    assert cli.main(["bench", str(path)]) == 2
    assert "--time" in two_lines(capsys.readouterr().err)[0]
    assert cli.main(["bench", str(path), "--time", "1", "--threads", "one"]) == 2
    assert (
        two_lines(capsys.readouterr().err)[0] == "ortune bench: --threads: 'one' is not a number"
    )


@pytest.mark.parametrize(
    ("words", "retired", "name"),
    [
        (["timelines", "m.onnx"], "timelines", "ortune"),
        (["inspect", "m.onnx", "--old-way=3"], "inspect --old-way", "ortune inspect"),
        (["inspect", "old.toml"], "inspect --old-way", "ortune inspect"),
    ],
)
def test_a_retired_word_is_answered_with_the_new_way(
    words: list[str],
    retired: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "old.toml").write_text("old_way = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retired_words, "RETIRED", {retired: "write `ortune cost --timeline`"})
    assert cli.main(words) == 2
    what, fix = two_lines(capsys.readouterr().err)
    assert what == f"{name}: `{retired}` was removed"
    assert fix == "  fix: write `ortune cost --timeline`"


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_fits_80_columns_and_has_a_heading_for_every_option(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    options = re.split(r"^  Example:\n(?:    .*\n)+", out, flags=re.MULTILINE)[1]
    assert max(map(len, options.splitlines())) <= 80
    options, _, common = options.partition("Common options")
    assert "-v, --verbose, --json [FILE.json]" in common and common.count("\n") <= 4
    command = cli.root.get_command(click.Context(cli.root), verb)
    own = panels.list_own(command)
    assert set(re.findall(r"^  (?:-o, )?(--[a-z-]+)", options, re.MULTILINE)) == {*own}
    assert len(own) <= 37, "fewer words"


def test_what_people_try_is_answered_with_the_verb_that_does_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word for text in cli.OFTEN_TRIED.values() for word in text.split()]
    assert len(words) == len(set(words)) > 60 and not {*words} & {*VERBS}
    for word in words:
        assert cli.main([word, "model.onnx"]) == 2
        what, fix = two_lines(capsys.readouterr().err)
        assert what == f"ortune: no verb '{word}'"
        for line in re.findall(r"`(ortune [^`]+)`", fix):
            verb, *given = shlex.split(line)[1:]
            command = cli.root.get_command(click.Context(cli.root), verb)
            assert command is not None or verb in ("--help", "VERB")
            known = {option for param in getattr(command, "params", ()) for option in param.opts}
            assert {option for option in given if option.startswith("-")} <= {*known, "--help"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "M", "--seconds", "0.1", "--sets", "1"], "--seconds is called --time now"),
        (["profile", "M", "--seconds=0.1", "--no-ceilings"], "--seconds is called --time now"),
    ],
)
def test_an_option_by_its_old_name_is_taken_and_told(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(studies.write_model(tmp_path / "m.onnx", studies.MODEL))
    assert cli.main([model if word == "M" else word for word in words]) == 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["timeline", "m.onnx", "--starts", "3"], "`ortune cost MODEL --timeline`"),
        (["buckets", "m.onnx"], "`ortune optimize MODEL --data SOURCE --buckets`"),
        (["verify-signature", "m.ortune"], "--require-signature KEY --signature-only`"),
        (["env", "add", "cuda"], "`ortune doctor env`"),
    ],
)
def test_a_verb_that_went_into_another_names_it(
    old: list[str], new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(old) == 2
    what, fix = two_lines(capsys.readouterr().err)
    assert what == f"ortune: `{old[0]}` was removed" and new in fix
    words = re.findall(r"`ortune (\S+)([^`]*)`", fix)
    verb = cli.root.get_command(click.Context(cli.root), words[0][0])
    assert verb is not None
    options = {option for param in verb.params for option in param.opts}
    assert set(re.findall(r"--\S+", words[0][1])) <= options
