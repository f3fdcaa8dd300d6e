"""Every setting of a plan is set in every language, or the program says why it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.backends.cpu import Cpu
from ortune.deployment.languages import programs
from ortune.deployment.languages.language import (
    CPP,
    CSHARP,
    JAVA,
    JAVASCRIPT,
    LANGUAGES,
    PYTHON,
    WEB,
    Language,
    lines,
)
from ortune.deployment.languages.settings import DISABLE, settings

RICH = Cpu(
    threads=3,
    level="extended",
    disable=("BiasGeluFusion", "MatMulScaleFusion"),
    spin=False,
    parallel=True,
    inter_threads=2,
    arena_growth="as-requested",
    memory_pattern=False,
    prepack=False,
    affinity="2;3",
    config=("session.force_spinning_stop=1",),
)
SAID = {
    "Python": ("threads = 3", "threads = 2", "ORT_PARALLEL", "ORT_ENABLE_EXTENDED", "= False"),
    "C++": ("options, 3", "options, 2", "kParallel", "kEnableExtended", "disable_memory_pattern"),
    "C#": ("Threads = 3", "Threads = 2", "ORT_PARALLEL", "ORT_ENABLE_EXTENDED", "= false"),
    "Java": ("Threads(3)", "Threads(2)", "PARALLEL", "EXTENDED_OPT", "Optimization(false)"),
    "JavaScript": ("Threads = 3", "Threads = 2", "'parallel'", "'extended'", "= false"),
}


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda one: one.name)
def test_every_setting_is_there(language: Language) -> None:
    text = lines(language, settings(RICH))
    for said in SAID[language.name]:
        assert said in text
    for key, value in settings(RICH).entries.items():
        assert f'"{key}"' in text and f'"{value}"' in text
    assert '"BiasGeluFusion;MatMulScaleFusion"' in text and DISABLE in text


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda one: one.name)
def test_what_a_language_cannot_is_said(language: Language) -> None:
    text = lines(language, settings(RICH))
    can = language in (PYTHON, CPP, CSHARP)
    assert ("use_env_allocators" in text) == can
    assert ("Not set: the plan's arena" in text) == (not can)
    assert "arena grows" not in lines(language, settings(Cpu()))


def test_a_browser_binds_no_threads() -> None:
    text = lines(WEB, settings(RICH))
    assert 'Not set: "session.intra_op_thread_affinities"' in text
    assert "crossOriginIsolated ? 3 : 1" in text


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda one: one.name)
def test_all_cpus_are_those_at_hand(language: Language) -> None:
    assert language.cpus in lines(language, settings(Cpu()))


@pytest.mark.parametrize("language", [CPP, CSHARP, JAVA, JAVASCRIPT], ids=lambda one: one.name)
def test_text_from_a_bundle_stays_text(language: Language) -> None:
    hostile = Cpu(config=('session.x="); System.exit(1); //\n{0}$settings',))
    text = lines(language, settings(hostile))
    assert r"\"); System.exit(1); //\n{0}$settings" in text


def test_programs_are_whole(tmp_path: Path) -> None:
    programs.write(tmp_path, LANGUAGES, settings(RICH))
    for language in LANGUAGES:
        text = (tmp_path / language.file).read_text(encoding="utf-8")
        assert "$" not in text and '"2;3"' in text
    compile((tmp_path / PYTHON.file).read_text(encoding="utf-8"), "run.py", "exec")
    assert "create_session" in (tmp_path / "cpp" / "ort_api.h").read_text(encoding="utf-8")
