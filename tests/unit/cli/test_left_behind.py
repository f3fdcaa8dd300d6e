"""A verb that fails before its first result leaves nothing behind, and removes nothing else."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click
import pytest

from ortune.cli.main import BAD, main, root
from ortune.cli.terminal.output import JSON, print_result
from ortune.core.errors import BadModel
from ortune.core.plugins import codec
from ortune.core.request import WorkerRequest, list_request_fields, run_request

_CTX = click.Context(root)
VERBS = {name: root.get_command(_CTX, name) for name in root.list_commands(_CTX)}
REQUESTS = {name: verb.request for name, verb in VERBS.items()} | {
    f"{name} --{flag.replace('_', '-')}": form
    for name, verb in VERBS.items()
    for flag, form in verb.forms.items()
}
"""Verb, with the flag of a form -> what it is asked."""
WITHOUT_WORKERS = {"ui", "compare", "cost", "diff", "explain", "pack", "report"} | {
    "loadtest",
    "recheck --signature-only",
    "serve",
}
"""Verbs that read files of results, or write them, in this process alone; servers."""
_GIVEN = {"price": "1/h", "bisect": True, "on": "cpu"}
WRITING = [
    name
    for name, kind in REQUESTS.items()
    if {"out", "bisect"} & {one.name for one in list_request_fields(kind)}
]


def asked(verb: str, folder: Path, out: Path):
    """Return a verb's request with all that must be given, and an output."""
    kind = REQUESTS[verb]
    fields = {
        one.name: _GIVEN.get(one.name, str(folder / f"{one.name}.onnx"))
        for one in list_request_fields(kind)
        if one.is_required
    }
    names = {one.name for one in list_request_fields(kind)}
    fields |= {"out": out} if "out" in names else {}
    fields |= {"bisect": True} if "bisect" in names else {}
    fields |= {"goal": "p99<=20ms"} if "goal" in names else {}
    return kind(**fields)


def filled(path: Path) -> None:
    """Make a file, or a folder with something in it."""
    if path.suffix in (".onnx", ".data", ".json", ".html"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    else:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "file").write_text("half")


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def failing(make, error=KeyboardInterrupt):
    """Return what makes files by a request's `makes`, and then fails."""

    def run(given) -> None:
        for path in given.makes:
            make(path)
        if error is not None:
            raise error

    return run


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (BadModel("no", fix="yes"), "out"),
        (KeyboardInterrupt(), "a/b/out"),
        (MemoryError(), "o.onnx"),
    ],
)
def test_what_a_verb_made_is_gone_when_it_fails(tmp_path, verb, error, name) -> None:
    request = asked(verb, tmp_path, tmp_path / name)
    assert request.makes
    with pytest.raises(type(error)):
        run_request(request, failing(filled, error))
    assert not everything(tmp_path)


@pytest.mark.parametrize("verb", WRITING)
def test_what_was_there_and_what_is_done_stays(tmp_path, verb) -> None:
    empty = asked(verb, tmp_path, tmp_path / "empty")
    empty.makes[0].mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_request(empty, failing(lambda path: filled(empty.makes[0] / f"in-{path.name}")))
    assert everything(tmp_path) == {empty.makes[0]}, "a folder that was empty is empty again"
    request = asked(verb, tmp_path, tmp_path / "out")
    run_request(request, failing(filled, None))
    assert all(path.exists() for path in request.makes)
    (tmp_path / "beside").write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_request(request, failing(lambda path: None))
    assert everything(tmp_path) == before


@pytest.mark.parametrize(("verb", "run"), [("optimize", "out"), ("demo", "out/run")])
def test_a_run_with_a_trial_stays(tmp_path, verb, run) -> None:
    request = asked(verb, tmp_path, tmp_path / "out")

    def search(given) -> None:
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "ledger.jsonl").write_text("{}\n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_request(request, search)
    assert (tmp_path / run / "ledger.jsonl").exists()


def test_a_run_that_another_search_is_at_work_in_stays(tmp_path) -> None:
    from ortune.search.experiment.ledger import lock_run

    request = asked("optimize", tmp_path, tmp_path / "out")
    with ExitStack() as other:

        def run(given) -> None:
            (tmp_path / "out").mkdir()
            other.enter_context(lock_run(tmp_path / "out"))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_request(request, run)
        assert (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", WRITING)
def test_on_the_command_line_too(tmp_path, monkeypatch, capsys, verb) -> None:
    monkeypatch.chdir(tmp_path)
    words = []
    name, *flags = verb.split()
    for param in VERBS[name].params:
        if isinstance(param, click.Argument) and (param.required or param.nargs == -1):
            words.append("none.onnx")
        elif param.name in ("out", "bisect") and isinstance(param, click.Option):
            words += [param.opts[0], *(["made"] if param.name == "out" else [])]
        elif getattr(param, "required", False):
            words += [param.opts[0], "x"]
    if verb == "demo":
        words += ["--model", "none"]
    code = main([name, *flags, *words])
    said = capsys.readouterr().err
    assert code == BAD, said
    assert "  fix: " in said
    assert not everything(tmp_path)


@pytest.mark.parametrize("verb", REQUESTS)
def test_every_verb_that_starts_a_worker_takes_a_memory_limit(verb) -> None:
    options = {param.opts[0] for param in VERBS[verb.split()[0]].params}
    works = verb not in WITHOUT_WORKERS
    assert issubclass(REQUESTS[verb], WorkerRequest) == works
    assert "--memory-limit" in options or not works


@pytest.mark.parametrize("verb", sorted(set(REQUESTS) - WITHOUT_WORKERS))
def test_the_limit_holds_while_a_verb_runs(tmp_path, verb) -> None:
    from ortune.core.hardware import memory

    request = replace(asked(verb, tmp_path, tmp_path / "out"), memory_limit="3G")
    assert run_request(request, lambda given: memory.count_allowed_bytes()) == 3 * 2**30
    assert memory.read_limit() is None
    assert codec.encode(request.memory_limit) == 3 * 2**30


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), BrokenPipeError(32, "Broken pipe"), OSError(28, "disk full")]
)
def test_what_is_made_stays_from_when_it_is_told(tmp_path, verb, error) -> None:
    request = asked(verb, tmp_path, tmp_path / "a" / "out")

    def show() -> None:
        raise error

    def run(given) -> None:
        failing(filled, None)(given)
        print_result({}, show)

    with click.Context(root) as context, pytest.raises(type(error)):
        context.meta[JSON] = None
        run_request(request, run)
    assert all(path.exists() for path in request.makes)
