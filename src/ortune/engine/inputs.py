"""What a caller gives: the check before the runtime sees it, and pictures as tensors."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess, wording
from ortune.core.errors import BadData, BadModel, OrtuneError, with_article
from ortune.core.facts import TensorSpec
from ortune.core.plugins import stored
from ortune.core.preprocess import Preprocess
from ortune.data import images
from ortune.engine import archive
from ortune.engine.manifest import PREPROCESS, Manifest, Signature


@dataclass(frozen=True, slots=True)
class Wanted:
    """One input as the check needs it.

    Attributes:
        dtype: None takes any: text, sequences, and types that NumPy has no name for.
        rank: None takes any.
        fixed: Axis and size of every dimension that is not dynamic.
    """

    spec: TensorSpec
    dtype: np.dtype[Any] | None
    rank: int | None
    fixed: tuple[tuple[int, int], ...]

    def takes(self, value: Any) -> bool:
        """Whether a value has the dtype, rank and fixed dimensions of the input."""
        if self.dtype is None:
            return True
        if not isinstance(value, np.ndarray):
            return False
        if value.dtype is not self.dtype and value.dtype != self.dtype:  # `is` is a tenth of `!=`
            return False
        shape = value.shape
        if self.rank is not None and len(shape) != self.rank:
            return False
        for axis, size in self.fixed:  # noqa: SIM110 (a generator costs as much as all the rest)
            if shape[axis] != size:
                return False
        return True


def wanted(inputs: Sequence[TensorSpec]) -> dict[str, Wanted]:
    """Prepare the check of a model's inputs."""
    return {spec.name: _wanted(spec) for spec in inputs}


def check(given: Mapping[str, Any], inputs: Mapping[str, Wanted], model: str) -> None:
    """Refuse what the runtime would refuse, in words a person can use. Costs under 2 us.

    Raises:
        BadData: A name is unknown or missing; a dtype, rank or fixed dimension is wrong.
    """
    if given.keys() != inputs.keys():
        _names(given, inputs, model)
    for name, value in given.items():
        if not inputs[name].takes(value):
            expected = inputs[name]
            got = (
                f"{value.dtype}{list(value.shape)}"
                if isinstance(value, np.ndarray)
                else with_article(type(value).__name__)
            )
            spec = expected.spec
            raise BadData(
                f"input '{name}': Got {got}, expected {spec.dtype}{_dims(spec)}",
                fix=_fix(value, expected),
            )


def _names(given: Mapping[str, Any], inputs: Mapping[str, Wanted], model: str) -> NoReturn:
    unknown = sorted(given.keys() - inputs.keys())
    missing = sorted(inputs.keys() - given.keys())
    parts = [f"no input '{name}'" for name in unknown[:3]]
    parts += [f"input '{name}' is missing" for name in missing[:3]]
    raise BadData(
        f"{model}: {', '.join(parts)}. Got: {', '.join(given) or 'none'}; "
        f"expected: {', '.join(inputs) or 'none'}",
        fix="name the arrays like the inputs; engine(**{'odd.name': array}) takes any name",
    )


def _fix(value: Any, expected: Wanted) -> str:
    if not isinstance(value, np.ndarray):
        return f"give numpy.asarray(value, dtype='{expected.spec.dtype}')"
    if value.dtype != expected.dtype:
        return f"convert it with .astype('{expected.spec.dtype}')"
    if value.ndim != expected.rank:
        rank = wording.count(expected.rank or 0, "dimension")
        return f"give {rank}; a batch of one is array[None]"
    return "give the dimensions that are numbers exactly; names and ? are free"


def _dims(spec: TensorSpec) -> str:
    if spec.shape is None:
        return ""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"


def _wanted(spec: TensorSpec) -> Wanted:
    if spec.shape is None:
        return Wanted(spec, _dtype(spec.dtype), None, ())
    fixed = tuple((axis, dim) for axis, dim in enumerate(spec.shape) if isinstance(dim, int))
    return Wanted(spec, _dtype(spec.dtype), len(spec.shape), fixed)


def _dtype(name: str) -> np.dtype[Any] | None:
    try:
        found = np.dtype(name) if name else None
    except TypeError:
        return None
    return None if found is None or found.kind in "OUST" else found


@dataclass(frozen=True)
class PictureInput:
    """The input of a model that takes pictures.

    Attributes:
        settings: How a picture becomes its tensor.
        taken: What the input takes as it is.
    """

    settings: Preprocess
    taken: Wanted

    @property
    def keys(self) -> Mapping[str, Any]:
        """The settings as keys of ``preprocess.toml``, those left out there too."""
        given = {name: getattr(self.settings, name) for name in stored.settable(Preprocess)}
        return {name: value for name, value in given.items() if value is not None}

    def tensors(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inputs with the tensor in the place of a picture, or of a list of pictures.

        What the model takes as it is stays, and what is no picture too: the check of the inputs
        says what is wrong with it.

        Raises:
            BadData: A picture cannot be read, or pictures of one batch differ in size.
        """
        name = self.taken.spec.name
        value = inputs.get(name)
        if value is None or self.taken.takes(value):
            return inputs
        listed = isinstance(value, (list, tuple))
        found = list(value) if listed else [value]
        if not found or not all(map(images.is_picture, found)):
            return inputs
        return {**inputs, name: self._batch(found)}

    def _batch(self, pictures: list[Any]) -> NDArray[Any]:
        spec = self.taken.spec
        made = [images.tensor(one, self.settings, spec) for one in pictures]
        if len(made) == 1:
            return made[0]
        if self.taken.rank == len(made[0].shape) == 3 or len({one.shape for one in made}) > 1:
            shapes = ", ".join(str(list(one.shape)) for one in made[:3])
            raise BadData(
                f"input '{spec.name}': Got pictures of shapes {shapes}, expected one shape, or "
                "one picture where there is no batch",
                fix="give them one by one",
            )
        return np.concatenate(made)


def attach_pictures(
    calls: Mapping[str, Any], name: str, file: zipfile.ZipFile, manifest: Manifest
) -> None:
    """Let the models of a bundle take pictures, as it says; nothing where it does not say.

    Args:
        calls: Model name -> what is called; its `pictures` are set.
        name: Of the bundle, for errors.

    Raises:
        BadModel: The settings were changed, or are none that a bundle may hold.
    """
    if PREPROCESS not in manifest.members:
        return
    archive.take(file, manifest, PREPROCESS, None)
    found = read_pictures(file.read(PREPROCESS), f"{name}: '{PREPROCESS}'", manifest.signatures)
    for model, one in found.items():
        calls[model].pictures = one


def read_pictures(
    content: bytes, where: str, signatures: Mapping[str, Signature]
) -> dict[str, PictureInput]:
    """Return model name -> its input that takes pictures.

    Keys outside of tables are for every model that they fit; where there are tables, each has the
    name of a model.

    Args:
        content: Of ``preprocess.toml``.
        where: It is, for errors.
        signatures: Model name -> what it takes.

    Raises:
        BadModel: It is no TOML, or its settings are out of bounds or fit no model.
    """
    try:
        given = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{where} cannot be read: {error}", fix="pack the run again") from None
    tables = {name: value for name, value in given.items() if isinstance(value, dict)}
    if strange := sorted(tables.keys() - signatures.keys()):
        raise BadModel(
            f"{where} has a table '{strange[0]}', which is no model of the bundle",
            fix=f"name one of: {', '.join(signatures)}",
        )
    found = {}
    for name, signature in signatures.items():
        own = tables.get(name) if tables else given
        if own is not None and (tables or len(signatures) == 1 or _fits(own, signature)):
            found[name] = _input(own, where, signature)
    if not found:
        raise BadModel(
            f"{where} fits no model of the bundle", fix="name its input, or give a table a model"
        )
    return found


def _fits(given: Mapping[str, Any], signature: Signature) -> bool:
    names = [spec.name for spec in signature.inputs]
    return given["input"] in names if "input" in given else len(names) == 1


def _input(given: Mapping[str, Any], where: str, signature: Signature) -> PictureInput:
    """Return the input by settings that keep to the table."""
    try:
        stored.demand_fields(given, Preprocess, where)
        settings, spec = images.settings_for(given, signature.inputs, lambda _: None, where)
        for name in ("mean", "std"):
            preprocess.per_channel(settings, name)
    except OrtuneError as error:
        raise BadModel(error.what, fix=error.fix) from None
    return PictureInput(settings, wanted([spec])[spec.name])
