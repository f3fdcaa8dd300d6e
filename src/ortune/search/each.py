"""The verb `optimize` for several models that have nothing to do with each other."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ortune.core import settings
from ortune.core.errors import BadSettings, OrtuneError, wrap_unexpected_errors
from ortune.core.event import Note
from ortune.core.fields import make_paths
from ortune.core.request import run_request
from ortune.core.study import Study
from ortune.core.wording import format_count, format_duration
from ortune.search.optimize import run_once
from ortune.search.request import Optimize

_OF_A_MODEL = ("data", "labels", "calibration")
"""Fields in which ``{model}`` stands for a model's name."""


@dataclass(frozen=True)
class ModelSearch:
    """What came of one model.

    Attributes:
        name: Tells the models of a list apart; also its run's folder.
        study: None where there was no search.
        problem: Why there was none; empty before its turn.
    """

    name: str
    model: Path
    root: Path
    study: Study | None = None
    problem: str = ""
    fix: str = ""


def run(request: Optimize) -> Iterator[ModelSearch]:
    """Search for each model by itself, one after the other, and yield what came of each.

    A finished search of the same settings stays as it is. After an interruption the models that
    are left are yielded without a study.

    Raises:
        BadSettings: The request is about one model, or several that run together.
    """
    if request.evaluate or request.ranges_from is not None:
        option = "--evaluate" if request.evaluate else "--ranges-from"
        raise BadSettings(
            f"{option} fits a single model, and several are searched one by one",
            fix="leave it out, or run one command per model",
        )
    models = name_apart(make_paths(request.model))
    time = format_duration(request.time)
    request.sink(Note(f"{format_count(len(models), 'model')}, {time} each (--time)"))
    interrupted = False
    for place, (name, path) in enumerate(models.items(), 1):
        item = ModelSearch(name, path, Path(request.out) / name)
        if not interrupted:
            request.sink(Note(f"model {place} of {len(models)}: {name}"))
            item = _search(item, request)
            interrupted = item.study.finished == "interrupted" if item.study else not item.problem
        yield item


def _search(item: ModelSearch, request: Optimize) -> ModelSearch:
    sources: dict[str, Any] = {
        field: value.replace("{model}", item.name)
        for field in _OF_A_MODEL
        if isinstance(value := getattr(request, field), str)
    }
    command = shlex.join(["ortune", "optimize", str(item.root / settings.REPEAT)])
    single = replace(request, model=[item.model], out=item.root, command=command, **sources)
    try:
        with wrap_unexpected_errors([item.model]):
            return replace(item, study=run_request(single, run_once))
    except OrtuneError as error:
        return replace(item, problem=error.what, fix=error.fix)
    except OSError as error:
        return replace(item, problem=str(error), fix="check the path, then run it again")
    except KeyboardInterrupt:
        return item


def name_apart(paths: Sequence[Path]) -> dict[str, Path]:
    """Name files by their stems; where two are the same, by as many folders as tell all apart.

    Raises:
        BadSettings: Two have the same path but for the ending.
    """
    parts = [path.absolute().with_suffix("").parts[1:] for path in paths]
    for length in range(1, 1 + max(map(len, parts))):
        names = ["-".join(of_path[-length:]) for of_path in parts]
        if len(set(names)) == len(paths):
            return dict(zip(names, paths, strict=True))
    twice = next(name for name in names if names.count(name) > 1)
    raise BadSettings(f"two models are called {twice}", fix="rename one of them, or give it once")
