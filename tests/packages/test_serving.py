"""Ours beside the real Triton 2.51, request by request, and under Triton's own perf_analyzer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import perf_analyzer, tritons
from tests.packages.conformance import client_cases, grpc_cases, http_cases, models, wrong_http
from tests.packages.conformance.asking import Addresses
from tests.packages.conformance.differences import DIFFERENCES, Difference, error_of, said, unlike
from tests.serving import serving

Both = tuple[Addresses, Addresses]
CASES = http_cases.cases() | wrong_http.cases() | grpc_cases.cases() | client_cases.cases()


@pytest.fixture(scope="module")
def both(triton: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Ours and Triton with the same models."""
    assert triton.is_dir() and tritons.NUMPY_1.is_dir()
    folder = tmp_path_factory.mktemp("served")
    files = models.write(folder / "files")
    repository = models.repository(files, folder / "repository")
    with tritons.running(repository, folder, numpy_1=True) as theirs, serving(*files) as ours:
        yield Addresses(ours.http, ours.grpc), Addresses(theirs.http, theirs.grpc)


def test_answers_agree_but_for_the_list(both: Both) -> None:
    """One after the other in one test: what a request leaves behind shows in the next too."""
    used: Counter[Difference] = Counter()
    wrong = []
    for name, ask in CASES.items():
        ours, theirs = (ask(where) for where in both)
        if (error := error_of(ours)) is not None and not said(error):
            wrong.append(f"{name}: no clean error: {error!r}")
        for one in unlike(name, ours, theirs):
            if (entry := one.listed()) is None:
                wrong.append(f"{name}: {one.field}: ours {one.ours!r}, Triton's {one.theirs!r}")
            else:
                used[entry] += 1
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong)
    stale = [one for one in DIFFERENCES if not used[one]]
    assert not stale, f"nothing differs there any more: {stale}"


@pytest.mark.parametrize("name", wrong_http.fatal())
def test_what_triton_ends_at_is_refused(both: Both, name: str) -> None:
    found = wrong_http.fatal()[name](both[0])
    assert found["status"] == 400 and said(error_of(found))


@pytest.fixture(scope="module")
def analyzer() -> list[str]:
    """The command of the real perf_analyzer."""
    return perf_analyzer.command()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("concurrency", [1, 8, 32])
def test_perf_analyzer_ends_without_error(
    both: Both, analyzer: list[str], protocol: str, concurrency: int
) -> None:
    found = perf_analyzer.run(analyzer, protocol, getattr(both[0], protocol), "sum", concurrency)
    assert found.failed == 0 and found.per_second > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_sees_the_queue_and_the_computing(
    both: Both, analyzer: list[str], protocol: str
) -> None:
    found = perf_analyzer.run(analyzer, protocol, getattr(both[0], protocol), "sum", 4)
    assert "Inference count" in found.said and "queue" in found.said
