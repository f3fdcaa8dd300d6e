"""A search on scripted workers, with a policy that proposes what a test gives it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.unit.search.experiment.scripted import Script, scripted
from tests.unit.search.given import PLANS, Clock, Given, told

from ortune.core.study import Header, Study
from ortune.core.trial import Plan
from ortune.search.experiment.ledger import read_study, write_header
from ortune.search.loop import Aim, run_search
from ortune.search.recipe.space import Space


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    def run(
        script: Script,
        plans: Sequence[Plan] = PLANS,
        policy: type[Given] = Given,
        known: Mapping[str, Any] = MappingProxyType({}),
        **aim: Any,
    ) -> Study:
        context = replace(scripted(tmp_path, monkeypatch, script), finalists=3, **known)
        if goal := aim.pop("goal", None):
            context = replace(context, job=replace(context.job, wanted=goal))
        write_header(tmp_path, Header(context.job, context.facts))
        wanted = Aim(**{"seconds": 100.0, "began": 0.0, "clock": Clock(), **aim})
        space = Space(context.facts, (), context.job.workload, context.job.baseline)
        run_search(context, lambda note: space, policy(tuple(plans)), wanted, told.append)
        return read_study(tmp_path)

    told.clear()
    return run
