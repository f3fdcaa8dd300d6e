"""A settings file may come from elsewhere: its backends compute, and no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies

from ortune.cli.main import main
from ortune.core import settings
from ortune.core.errors import BadSettings, OrtuneError

KEYS = ("model", "on", "baseline", "out")
WRITES = 'cpu(config=["session.collect_node_memory_stats_to_file=written"])'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["on", "baseline"])
@pytest.mark.parametrize(
    "spelled",
    [
        WRITES,
        f"cpu(threads=1),{WRITES}",
        f"bucketed(inner={WRITES})",
        "simulated(report=x.json)",
        'openvino(config=["CACHE_DIR=x"])',
    ],
)
def test_a_file_sets_nothing_that_reaches_out(tmp_path: Path, key: str, spelled: str) -> None:
    for value in (f"'''{spelled}'''", f"['''{spelled}''']"):
        with pytest.raises(BadSettings, match=rf"s\.toml: {key}: ") as caught:
            settings.read_settings(written(tmp_path, f"{key} = {value}"), KEYS)
        assert "type the setting on the command line" in caught.value.fix
        assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "text",
    [
        "on = 'auto'",
        "on = 'cpu(threads=2),openvino'",
        "on = 3",
        "on = 'cpu('",
        "baseline = ['cpu']",
    ],
)
def test_all_else_is_the_option_s_to_say(tmp_path: Path, text: str) -> None:
    assert settings.read_settings(written(tmp_path, text), KEYS)


def test_nesting_without_end(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match=r"nested too deeply|is not TOML"):
        settings.read_settings(written(tmp_path, f"on = {'[' * 20_000}"), KEYS)


def test_a_person_who_types_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is refused; the same words on the command line write what they say."""
    monkeypatch.chdir(tmp_path)
    model = studies.write_model(tmp_path / "m.onnx", studies.MODEL)
    path = written(tmp_path, f"models = ['{model}']\non = '''{WRITES}'''\n")
    assert main(["bench", str(path), "--time", "0.1"]) == 2
    assert "is a setting that a file" in capsys.readouterr().err
    assert not list(tmp_path.glob("written*"))
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4), np.float32))
    assert main(["run", str(model), "in.npz", "--on", WRITES]) == 0
    assert list(tmp_path.glob("written*"))
