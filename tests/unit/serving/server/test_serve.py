"""The verb and the process: what is missing, what cannot go together, freed memory."""

import importlib.util
from pathlib import Path

import pytest

import ortune as ot
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.hardware.cpus import divide_cpus
from ortune.serving.server import serve
from ortune.serving.server.settings import Serve, parse_request, spell_request


@pytest.mark.parametrize(("missing", "package"), serve.NEEDED.items())
def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, package: str
) -> None:
    real = importlib.util.find_spec

    def absent(name: str) -> object:
        if name == missing and "." in name:
            raise ModuleNotFoundError(name)
        return None if name == missing else real(name)

    monkeypatch.setattr(serve, "find_spec", absent)
    with pytest.raises(OrtuneError, match=package) as caught:
        ot.serve("toy.onnx")
    assert caught.value.fix == f"pip install {package}"
    assert len(str(caught.value).splitlines()) == 2


def test_what_cannot_go_together(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="--explicit with --processes"):
        serve.carry_out(serve.Serve("toy.onnx", explicit=True, processes=2), None)
    with pytest.raises(BadSettings, match="there is no file"):
        ot.serve(tmp_path / "none.onnx", http_port=0, grpc_port=0)


def test_a_request_survives_the_way_to_a_process() -> None:
    asked = Serve(
        ["a.onnx", "net=b.ortune"],
        on="cpu(threads=1)",
        preferred="4,8",
        max_body="1M",
        timeout="250s",
        token_file=Path("tokens"),
        custom_ops=["lib.so"],
    )
    found = parse_request(spell_request(asked))
    assert found.names == asked.names == ("a.onnx", "net=b.ortune")
    assert (found.preferred, found.max_body, found.timeout) == ((4, 8), 1 << 20, 250)
    assert str(found.token_file) == "tokens" and found.custom_ops == asked.custom_ops
    assert spell_request(found) == spell_request(asked)


@pytest.mark.parametrize(
    ("given", "held"),
    [(0, 0), ("0", 0), (1, 1), ("1", 1), (" 2@gpu0, 1@gpu ", "2@gpu0,1@gpu0"), (None, 0)],
)
def test_instances_are_a_number_or_groups_by_device(given: object, held: object) -> None:
    asked = Serve("a.onnx", instances=given)  # type: ignore[arg-type]
    assert asked.instances == held
    assert parse_request(spell_request(asked)).instances == held
    with pytest.raises(BadSettings, match=r"instances: .* cannot be read"):
        Serve("a.onnx", instances="two")


@pytest.mark.parametrize("models", ["a.onnx", Path("a.onnx"), ["a.onnx"], ("a.onnx",)])
def test_one_model_or_several(models: object) -> None:
    assert Serve(models).names == ("a.onnx",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {"http_port": 65536},
        {"grpc_port": -2},
        {"processes": 0},
        {"processes": 10_000},
        {"max_queue": -1},
        {"timeout": "0s"},
        {"max_body": 0},
    ],
)
def test_numbers_have_bounds(given: dict[str, object]) -> None:
    with pytest.raises(BadSettings):
        Serve("a.onnx", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cpus", "processes", "wanted"),
    [((0, 1), 2, [(0,), (1,)]), ((0, 1, 2, 5, 7), 2, [(0, 1), (2, 5, 7)]), ((), 2, [(), ()])],
)
def test_processes_share_no_cpu(
    cpus: tuple[int, ...], processes: int, wanted: list[tuple[int, ...]]
) -> None:
    assert [tuple(one) for one in divide_cpus(cpus, processes)] == wanted
