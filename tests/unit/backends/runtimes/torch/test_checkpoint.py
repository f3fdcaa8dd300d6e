"""Checkpoints: nested or flat, prefixes, and pickles that ask for more than tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ortune.backends.runtimes.torch import module
from ortune.core.errors import BadModel, BadSettings

torch = pytest.importorskip("torch")


class Harmful:
    """Runs code when it is unpickled, as any object of a pickle may."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("ran.txt", "w"))


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.fixture
def state() -> dict[str, Any]:
    return {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}


@pytest.mark.parametrize("nest", ["", "state_dict", "model"])
def test_a_state_dict_is_found_flat_and_nested(
    tmp_path: Path, state: dict[str, Any], nest: str
) -> None:
    content = {nest: state, "epoch": 3} if nest else state
    assert module.read_checkpoint(saved(tmp_path / "w.pt", content)).keys() == state.keys()


def test_a_key_leads_into_nested_dictionaries(tmp_path: Path, state: dict[str, Any]) -> None:
    path = saved(tmp_path / "w.pt", {"ema": {"model": state}, "raw": {"x": torch.ones(1)}})
    assert module.read_checkpoint(path, "ema.model").keys() == state.keys()
    assert module.read_checkpoint(path, "raw").keys() == {"x"}
    with pytest.raises(BadSettings, match=r"no 'ema.gone'"):
        module.read_checkpoint(path, "ema.gone")


def test_several_state_dicts_are_named(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(BadSettings) as error:
        module.read_checkpoint(saved(tmp_path / "w.pt", {"student": state, "teacher": state}))
    assert "student, teacher" in error.value.fix


def test_a_prefix_is_stripped_on_request_and_where_all_names_have_it(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    found = {f"module.{name}": value for name, value in state.items()}
    path = saved(tmp_path / "w.pt", found)
    assert module.read_checkpoint(path, prefix="module.").keys() == state.keys()
    filled = torch.nn.Linear(3, 2)
    module.fill_module(filled, path, module.read_checkpoint(path))
    assert torch.equal(filled.weight, state["weight"])
    found["other"] = torch.zeros(1)
    with pytest.raises(BadModel, match="too many"):
        module.fill_module(filled, path, found)
    with pytest.raises(BadSettings, match="begins with 'net"):
        module.read_checkpoint(path, prefix="net.")


def test_a_pickle_runs_nothing_without_the_flag(
    tmp_path: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "w.pt", {"state_dict": state, "extra": Harmful()})
    with pytest.raises(BadModel) as error:
        module.read_checkpoint(path)
    assert "--unsafe-pickle" in error.value.fix
    assert not Path("ran.txt").exists()
    assert module.read_checkpoint(path, unsafe=True).keys() == state.keys()
    assert Path("ran.txt").exists()


def test_a_pickled_module_gives_its_state(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pt", torch.nn.Linear(3, 2))
    with pytest.raises(BadModel, match="more than tensors"):
        module.read_checkpoint(path)
    assert module.read_checkpoint(path, unsafe=True).keys() == {"weight", "bias"}


@pytest.mark.parametrize("content", [{"epoch": 3}, [1, 2]])
def test_what_holds_no_tensors_is_said(tmp_path: Path, content: Any) -> None:
    with pytest.raises(BadModel, match="no state dict"):
        module.read_checkpoint(saved(tmp_path / "w.pt", content))


def test_shapes_of_another_module_are_said(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(BadModel, match="size mismatch"):
        module.fill_module(torch.nn.Linear(4, 2), tmp_path / "w.pt", state)


def test_a_module_without_weights_has_an_empty_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.pt", torch.nn.ReLU().state_dict())
    assert module.read_checkpoint(path) == {}


def test_safetensors_are_read(tmp_path: Path, state: dict[str, Any]) -> None:
    pytest.importorskip("safetensors.torch").save_file(state, tmp_path / "w.safetensors")
    assert module.read_checkpoint(tmp_path / "w.safetensors").keys() == state.keys()


def test_no_file_and_a_broken_one_are_two_lines(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no file"):
        module.read_checkpoint(tmp_path / "gone.pt")
    (tmp_path / "w.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(BadModel):
        module.read_checkpoint(tmp_path / "w.pt")
