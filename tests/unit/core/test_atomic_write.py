"""A file or folder appears whole or not at all, and a failure leaves nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ortune.core.atomic_write import (
    append_line,
    clean_up_on_failure,
    cut_torn,
    hold_lock,
    open_draft,
    open_output_draft,
    read_whole_lines,
    remove_path,
    write_text,
)
from ortune.core.errors import OrtuneError
from ortune.core.outputs import check_output_file


def test_a_failing_block_leaves_what_was_there_and_no_folders(tmp_path: Path) -> None:
    kept = write_text(tmp_path / "kept", "old")
    for path in (kept, tmp_path / "new" / "deep" / "file"):
        with pytest.raises(ZeroDivisionError), open_draft(path) as draft:
            draft.write_text("half")
            raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "old"


def test_folders_are_replaced_as_a_whole(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with open_draft(tmp_path / "out") as draft:
            draft.mkdir()
            (draft / name).write_text(name)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "two"]
    remove_path(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_errors_of_the_system_name_the_file_and_those_of_the_block_pass(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OrtuneError, match=r"cannot write '.*new': .*\n  fix: free some space"):
        write_text(tmp_path / "file" / "new", "")
    with pytest.raises(FileNotFoundError), open_draft(tmp_path / "out"):
        (tmp_path / "missing").read_text()


def test_a_named_file_is_replaced_only_when_that_is_allowed(tmp_path: Path) -> None:
    path = write_text(tmp_path / "report.md", "old")
    for options, said in (
        ({}, "exists"),
        ({"force": True, "sources": [path]}, "never overwritten"),
    ):
        with pytest.raises(OrtuneError, match=said), open_output_draft(path, **options):
            pass
    with open_output_draft(path, force=True) as draft:
        draft.write_text("new")
    assert path.read_text() == "new"


def test_a_link_stays_and_a_pipe_is_written_into(tmp_path: Path) -> None:
    target = write_text(tmp_path / "target", "old")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "said")
        assert os.read(reader, 100) == b"said"
    finally:
        os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed, in order."""
    found: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.replace

    def synced(fd: int) -> None:
        found.append(("sync", Path(f"/proc/self/fd/{fd}").readlink().name))
        sync(fd)

    def renamed(old: Any, new: Any, **how: Any) -> None:
        found.append(("rename", Path(new).name))
        rename(old, new, **how)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return found


linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files")


@linux
def test_bytes_are_on_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    write_text(tmp_path / "file", "text")
    draft = f".file.{os.getpid()}.part"
    assert calls == [("sync", draft), ("rename", "file"), ("sync", tmp_path.name)]


@linux
def test_every_file_of_a_folder_is_on_disk_first(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    with open_draft(tmp_path / "out") as draft:
        (draft / "deep").mkdir(parents=True)
        (draft / "deep" / "a").write_text("a")
        (draft / "b").write_text("b")
        name = draft.name
    at = calls.index(("rename", "out"))
    assert {("sync", one) for one in ("a", "b", "deep", name)} == set(calls[:at])
    assert calls[at + 1 :] == [("sync", tmp_path.name)]


@linux
def test_what_is_made_again_is_not_waited_for(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    write_text(tmp_path / "file", "text", durable=False)
    assert calls == [("rename", "file")]


@linux
def test_a_full_disk_is_told_when_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    write_text(tmp_path / "file", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OrtuneError, match="No space left"):
        write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@linux
def test_a_line_is_on_disk_when_it_is_added_and_a_new_files_name_too(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")
    assert calls == [("sync", "lines"), ("sync", tmp_path.name)]
    append_line(path, "zwölf")
    assert calls[2:] == [("sync", "lines")]
    assert path.read_bytes() == "one\nzwölf\n".encode()


def test_a_line_that_cannot_be_added_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match=r"cannot write .*lines: .*\n  fix: free space"):
        append_line(tmp_path / "missing" / "lines", "one")


@pytest.mark.parametrize(
    ("data", "whole"), [(b"", b""), (b"a", b""), (b"a\n", b"a\n"), (b"a\nb\n{", b"a\nb\n")]
)
def test_a_line_that_is_not_ended_is_neither_read_nor_kept(
    tmp_path: Path, data: bytes, whole: bytes
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(data)
    assert read_whole_lines(path) == whole.splitlines()
    assert path.read_bytes() == data
    cut_torn(path)
    assert path.read_bytes() == whole


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    cut_torn(tmp_path / "lines")
    assert read_whole_lines(tmp_path / "lines") == []
    assert not list(tmp_path.iterdir())


def interrupted(made: list[Path], result: Path | None = None) -> None:
    """Make a file in each of these folders, or the file itself, and be interrupted."""
    with pytest.raises(KeyboardInterrupt), clean_up_on_failure(made, lambda path: path == result):
        for path in made:
            if path.suffix:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("half")
            else:
                (path / "deep").mkdir(parents=True)
                (path / "deep" / "file").write_text("half")
        raise KeyboardInterrupt


def test_an_interrupted_block_takes_its_files_and_the_folders_above_with_it(
    tmp_path: Path,
) -> None:
    interrupted([tmp_path / "new" / "run", tmp_path / "one" / "two" / "model.onnx"])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_empty_is_emptied_and_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    interrupted([tmp_path / "run"])
    assert list(tmp_path.rglob("*")) == [tmp_path / "run"]


def test_an_empty_folder_that_the_block_removed_stays_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (
        pytest.raises(KeyboardInterrupt),
        clean_up_on_failure([tmp_path / "run"], lambda path: False),
    ):
        (tmp_path / "run").rmdir()
        raise KeyboardInterrupt


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    full, file = tmp_path / "run", tmp_path / "model.onnx"
    write_text(full / "kept", "old")
    write_text(file, "old")
    interrupted([full, file])
    assert (full / "kept").read_text() == "old" and file.is_file()


def test_what_holds_a_result_stays(tmp_path: Path) -> None:
    run, other = tmp_path / "new" / "run", tmp_path / "new" / "other"
    interrupted([run, other], result=run)
    assert (run / "deep" / "file").is_file() and not other.exists()


def test_a_block_that_ends_keeps_what_it_made_and_one_that_made_nothing_is_no_error(
    tmp_path: Path,
) -> None:
    with clean_up_on_failure([tmp_path / "run"], lambda path: False):
        (tmp_path / "run").mkdir()
    assert (tmp_path / "run").is_dir()
    with (
        pytest.raises(ZeroDivisionError),
        clean_up_on_failure([tmp_path / "new"], lambda path: False),
    ):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


TAKEN = OrtuneError("taken", fix="wait")


def test_a_lock_is_held_by_one_at_a_time_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "lock"
    with hold_lock(path, TAKEN):
        began = time.monotonic()
        with pytest.raises(OrtuneError, match="taken"), hold_lock(path, TAKEN):
            pass
        assert time.monotonic() - began < 0.5, "it does not wait unless it is told to"
        began = time.monotonic()
        with pytest.raises(OrtuneError, match="taken"), hold_lock(path, TAKEN, wait_s=0.3):
            pass
        assert time.monotonic() - began >= 0.3
    with hold_lock(path, TAKEN):
        pass


def test_what_cannot_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_path(tmp_path / "missing")

    def refused(*_args: Any, **_how: Any) -> None:
        raise PermissionError

    write_text(tmp_path / "run" / "file", "")
    monkeypatch.setattr(os, "unlink", refused)
    remove_path(tmp_path / "run")
    assert (tmp_path / "run" / "file").is_file()


def test_a_free_output_is_returned(tmp_path: Path) -> None:
    assert check_output_file(tmp_path / "new.onnx", False) == tmp_path / "new.onnx"


def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(b"")
    with pytest.raises(OrtuneError, match="exists"):
        check_output_file(path, False)
    assert check_output_file(path, True) == path


def test_the_source_is_never_the_output_even_with_force(tmp_path: Path) -> None:
    source, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    source.write_bytes(b"model")
    link.symlink_to(source)
    with pytest.raises(OrtuneError, match="source"):
        check_output_file(link, True, source)


def test_an_output_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match="no folder"):
        check_output_file(tmp_path / "none" / "m.onnx", False)
    with pytest.raises(OrtuneError, match="is a folder"):
        check_output_file(tmp_path, True)
