"""Short labels of plans for people: only what differs from the baseline, no code."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from ortune.core.backend import Backend
from ortune.core.step import AS_IS
from ortune.core.trial import Plan

ORIGINAL = "original"
UNCHANGED = "original model"
_JOIN = " \N{MIDDLE DOT} "
_RECIPES = {AS_IS.name: UNCHANGED, "clean": "optimized graph"}
_SAME_RULES = {("cpu", "reference"), ("cpu", "simulated")}
"""Runtimes whose rules go without saying on a backend of another name."""
_STEP = re.compile(r"[\w.:/-]+(\(.*\))?", re.DOTALL)
_LONGEST = 24
"""Letters of a setting's value that a label holds; of a longer list it says how many there are."""


def label_plan(plan: Plan, baseline: Plan) -> str:
    """Write a plan by what differs from the baseline: ``int8 static · OpenVINO bf16``.

    The full spelling, which can be copied, is ``str(plan)``.
    """
    if plan.recipe.name == baseline.recipe.name and plan.spelling == baseline.spelling:
        return ORIGINAL
    backend = label_backend(plan.backend, baseline.backend)
    return _JOIN.join(filter(None, (label_recipe(plan), backend)))


def label_changes(plan: Plan, before: Plan) -> tuple[str, ...]:
    """Return what differs between two plans: the model, the backend, or both."""
    recipe = label_recipe(plan) if plan.recipe.steps != before.recipe.steps else ""
    return tuple(filter(None, (recipe, label_backend(plan.backend, before.backend))))


def label_recipe(plan: Plan) -> str:
    """Write a plan's recipe as words: ``int8 static, 3 of 12 regions in float``."""
    # What goes back to float is written behind the name of what it was taken from.
    name, _, back = plan.recipe.name.rpartition(", ")
    if not (name and back.endswith(" in float")):
        name, back = plan.recipe.name, ""
    label = _RECIPES.get(name) or " + ".join(
        _RECIPES.get(part) or _label_step(part, plan) for part in _split_text(name, " + ")
    )
    return f"{label}, {back.removesuffix(' in float')} regions in float" if back else label


def label_backend(backend: Backend, base: Backend) -> str:
    """Write a backend by what differs from another; empty where nothing does.

    Of another kind of backend it is the title and what is not at its default, but threads that
    are the same.
    """
    inner = next((value for value in vars(backend).values() if isinstance(value, Backend)), None)
    if inner is not None:
        inner = replace(inner, threads=backend.threads)
        innermost = getattr(base, "inner", base)
        return ", ".join(filter(None, (backend.title, label_backend(inner, innermost))))
    same = type(backend) is type(base)
    plain = base if same else type(backend)()
    words = []
    for name in (field.name for field in fields(backend) if field.name not in backend.reads):
        value = getattr(backend, name)
        if value != getattr(base if name == "threads" else plain, name):
            words.append(_label_setting(name, value))
    precision = getattr(backend, "precision", None)
    if precision in words:  # it stands beside the title
        words.remove(precision)
        words.insert(0, precision)
    listed = ", ".join(words)
    return listed if same else f"{backend.title or backend.name()} {listed}".strip()


def _label_setting(name: str, value: Any) -> str:
    if name == "precision":
        return str(value)
    if name == "threads":
        return "all CPUs" if value == 0 else f"{value} thread{'' if value == 1 else 's'}"
    if name == "hint":
        return f"{value} hint"
    if isinstance(value, bool):
        value = "on" if value else "off"
    elif isinstance(value, tuple):
        listed = ", ".join(map(str, value))
        value = listed if len(listed) <= _LONGEST else f"({len(value)})"
    return f"{name.replace('_', ' ')} {value}"


def _label_step(text: str, plan: Plan) -> str:
    """Write one step as words; the runtime whose rules it keeps goes without saying.

    A recipe's name that is no step's spelling stays as it is.
    """
    if not _STEP.fullmatch(text):
        return text
    name, _, inside = text.partition("(")
    settings = dict(_read_settings(inside.removesuffix(")")))
    settings.pop("before", None)  # the step that weights are prepared for follows by itself
    # The runtime that the step is written for; empty for one that is for all.
    step = next((step for step in plan.recipe.steps if step.name() == name), None)
    target = settings.pop("target", "") or str(getattr(step, "target", ""))
    place = getattr(plan.backend, "inner", plan.backend).name()
    words = [_label_setting(key, value) for key, value in settings.items()]
    if not place.startswith(target) and (target, place) not in _SAME_RULES:
        words.append(f"for {target}")
    label = name.replace("-", " ")
    return f"{label} ({', '.join(words)})" if words else label


def _read_settings(text: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values of ``field=value, other=[1, 2]``; long lists by their length."""
    for part in filter(None, _split_text(text, ", ")):
        name, _, value = part.partition("=")
        if len(value) > _LONGEST and value.startswith("["):
            value = f"({len(list(_split_text(value[1:-1], ', ')))})"
        yield name, {"true": "on", "false": "off"}.get(value, value.replace('"', ""))


def _split_text(text: str, sign: str) -> Iterator[str]:
    """Yield the parts of a text between signs that stand in no bracket and no string."""
    depth, quoted, start, at = 0, False, 0, 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quoted:
            at += 1
        elif letter == '"':
            quoted = not quoted
        elif not quoted and letter in "([{":
            depth += 1
        elif not quoted and letter in ")]}":
            depth -= 1
        elif not quoted and not depth and text.startswith(sign, at):
            yield text[start:at]
            start = at = at + len(sign)
            continue
        at += 1
    yield text[start:]
