"""State dicts: read without running what a pickle asks for, found where they are nested."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.core.errors import BadModel, BadSettings, gist
from ortune.core.plugins import user_function
from ortune.core.wording import count

_SHOWN = 4
"""Keys that an error names."""


def read(path: Path, key: str = "", prefix: str = "", *, unsafe: bool = False) -> dict[str, Any]:
    """Return the tensors of a checkpoint by name.

    Args:
        path: A .safetensors file, or what torch.save wrote.
        key: Where the state dict is inside, such as ``ema.model``; without it, the checkpoint
            itself, or the only mapping of tensors in it.
        prefix: Taken from the front of every name.
        unsafe: Unpickle whatever the file asks for: it runs code.

    Raises:
        BadModel: It cannot be read, or holds more than tensors and `unsafe` is off.
        BadSettings: There is no such key or prefix, or there are several state dicts.
    """
    found = _nested(path, _content(path, unsafe), key)
    state = {str(name): value for name, value in found.items() if _is_tensor(value)}
    if not prefix:
        return state
    stripped = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    if not stripped:
        raise BadSettings(
            f"no name in {path} begins with '{prefix}'", fix=f"its names are: {_some(state)}"
        )
    return stripped


def fill(module: Any, path: Path, state: Mapping[str, Any]) -> None:
    """Put a state dict into a module.

    Raises:
        BadModel: Names or shapes are not the module's.
    """
    wanted = set(module.state_dict())
    missing, more = sorted(wanted - set(state)), sorted(set(state) - wanted)
    if missing or more:
        parts = [f"{count(len(missing), 'name')} missing ({_some(missing)})"] * bool(missing)
        parts += [f"{count(len(more), 'name')} too many ({_some(more)})"] * bool(more)
        raise BadModel(
            f"{path} does not fill the module: {', '.join(parts)}", fix=_fix(wanted, state)
        )
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise BadModel(
            f"{path} does not fill the module: {gist(user_function.reason(error))}",
            fix="give the state dict of this very module",
        ) from error


def _fix(wanted: set[str], state: Mapping[str, Any]) -> str:
    """Say which prefix to strip, where that makes the names the module's."""
    first = next(iter(sorted(wanted)), "")
    for name in state:
        prefix = name.removesuffix(first)
        if first and prefix != name and {one.removeprefix(prefix) for one in state} >= wanted:
            return f"--strip-prefix {prefix}"
    return "give the state dict of this very module, --state-dict-key or --strip-prefix"


def _content(path: Path, unsafe: bool) -> Any:
    import torch

    if not path.is_file():
        raise BadModel(f"no file {path}", fix="check the path of the weights")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(os.fspath(path))
        return torch.load(path, map_location="cpu", weights_only=not unsafe)
    except pickle.UnpicklingError as error:
        if unsafe or "weights_only" not in str(error).lower():
            raise _unread(path, error) from error
        raise BadModel(
            f"{path} holds more than tensors, and reading that would run code of the file",
            fix="save the module's state_dict() alone, or give --unsafe-pickle if you trust it",
        ) from error
    except Exception as error:
        raise _unread(path, error) from error


def _unread(path: Path, error: Exception) -> BadModel:
    reason = gist(user_function.reason(error))
    return BadModel(f"{path} is no checkpoint: {reason}", fix="give what torch.save wrote")


def _nested(path: Path, found: Any, key: str) -> Mapping[str, Any]:
    """Return the state dict that a checkpoint holds."""
    for part in filter(None, key.split(".")):
        inner = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
        if inner is None:
            raise BadSettings(f"{path} has no '{key}'", fix=f"use one of {_keys(found)}")
        found = inner
    if hasattr(found, "state_dict"):  # a whole module, which only an unsafe pickle brings
        found = found.state_dict()
    if _is_state(found) or found == {}:  # of a module without weights
        return dict(found)
    inside = {name: value for name, value in _items(found) if _is_state(value)}
    if len(inside) == 1:
        return dict(next(iter(inside.values())))
    if inside:
        raise BadSettings(
            f"{path} holds several state dicts",
            fix=f"give --state-dict-key, one of {', '.join(inside)}",
        )
    raise BadModel(
        f"{path} holds no state dict", fix=f"give --state-dict-key; it has {_keys(found)}"
    )


def _is_state(value: Any) -> bool:
    """Whether a mapping has tensors and no mapping of them: counts may lie between."""
    held = [one for _, one in _items(value)]
    return any(map(_is_tensor, held)) and not any(isinstance(one, Mapping) for one in held)


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(str(k), v) for k, v in value.items()] if isinstance(value, Mapping) else []


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _keys(found: Any) -> str:
    return _some([name for name, _ in _items(found)]) or type(found).__name__


def _some(names: Any) -> str:
    known = list(names)
    more = ["..."] * (len(known) > _SHOWN)
    return ", ".join([*known[:_SHOWN], *more])
