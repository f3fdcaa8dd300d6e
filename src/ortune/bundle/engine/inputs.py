"""What a caller gives: the check before the runtime sees it, and pictures as tensors."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine import archive
from ortune.bundle.engine.manifest import PREPROCESS, Manifest, Signature
from ortune.core import preprocess, wording
from ortune.core.errors import BadData, BadModel, OrtuneError, with_article
from ortune.core.facts import TensorSpec
from ortune.core.plugins import stored
from ortune.core.preprocess import Preprocess
from ortune.data import images


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
    prepared = {}
    for spec in inputs:
        dtype = None
        with suppress(TypeError):
            dtype = np.dtype(spec.dtype) if spec.dtype else None
        if dtype is not None and dtype.kind in "OUST":
            dtype = None
        shape = spec.shape
        fixed = ((axis, dim) for axis, dim in enumerate(shape or ()) if isinstance(dim, int))
        rank = None if shape is None else len(shape)
        prepared[spec.name] = Wanted(spec, dtype, rank, tuple(fixed))
    return prepared


def check(given: Mapping[str, Any], inputs: Mapping[str, Wanted], model: str) -> None:
    """Refuse what the runtime would refuse, in words a person can use. Costs under 2 us.

    Raises:
        BadData: A name is unknown or missing; a dtype, rank or fixed dimension is wrong.
    """
    if given.keys() != inputs.keys():
        unknown, missing = (
            sorted(given.keys() - inputs.keys()),
            sorted(inputs.keys() - given.keys()),
        )
        parts = [f"no input '{name}'" for name in unknown[:3]]
        parts += [f"input '{name}' is missing" for name in missing[:3]]
        raise BadData(
            f"{model}: {', '.join(parts)}. Got: {', '.join(given) or 'none'}; "
            f"expected: {', '.join(inputs) or 'none'}",
            fix="name the arrays like the inputs; engine(**{'odd.name': array}) takes any name",
        )
    for name, value in given.items():
        if not inputs[name].takes(value):
            raise _unfit(name, value, inputs[name])


def _unfit(name: str, value: Any, expected: Wanted) -> BadData:
    spec = expected.spec
    if not isinstance(value, np.ndarray):
        got = with_article(type(value).__name__)
        fix = f"give numpy.asarray(value, dtype='{spec.dtype}')"
    else:
        got = f"{value.dtype}{list(value.shape)}"
        fix = "give the dimensions that are numbers exactly; names and ? are free"
        if value.dtype != expected.dtype:
            fix = f"convert it with .astype('{spec.dtype}')"
        elif value.ndim != expected.rank:
            rank = wording.count(expected.rank or 0, "dimension")
            fix = f"give {rank}; a batch of one is array[None]"
    dims = ""
    if spec.shape is not None:
        dims = f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"
    return BadData(f"input '{name}': Got {got}, expected {spec.dtype}{dims}", fix=fix)


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
        own, names = tables.get(name) if tables else given, [one.name for one in signature.inputs]
        if own is None:
            continue
        fits = own["input"] in names if "input" in own else len(names) == 1
        if not (tables or len(signatures) == 1 or fits):
            continue
        try:
            stored.demand_fields(own, Preprocess, where)
            settings, spec = images.settings_for(own, signature.inputs, lambda _: None, where)
            for field in ("mean", "std"):
                preprocess.per_channel(settings, field)
        except OrtuneError as error:
            raise BadModel(error.what, fix=error.fix) from None
        found[name] = PictureInput(settings, wanted([spec])[spec.name])
    if not found:
        raise BadModel(
            f"{where} fits no model of the bundle", fix="name its input, or give a table a model"
        )
    return found
