"""The table of contents of a bundle: what is in it and the digest of every member."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ortune.core.errors import BadModel, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec, stored
from ortune.core.plugins.user_function import is_path

FORMAT = 1
"""Raised when an older reader could misread a bundle."""

MANIFEST = "manifest.json"
SETTINGS = "settings.json"
RECIPE = "recipe.json"
EVIDENCE = "evidence.json"
LIBRARIES = "custom_ops"
"""Folder of the libraries of custom operators."""


@dataclass(frozen=True)
class Member:
    """One file of the zip.

    Attributes:
        sha256: Hex digest of its content.
        size: Bytes.
    """

    sha256: str
    size: int


@dataclass(frozen=True)
class Signature:
    """What a caller gives and gets."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Golden:
    """Stream members: samples, and what the packed plan answered to them."""

    inputs: str
    outputs: str


@dataclass(frozen=True)
class Arithmetic:
    """What of a plan depends on the CPU's instruction set.

    Attributes:
        integers: Layers that multiply 8-bit integers; 0 in bundles that do not record it.
        risky: Of these, layers whose sums can saturate on x86 without VNNI.
        halves: 16-bit formats that the plan computes in: float16, bfloat16.
        instructions: Instruction sets of the machine that the answers were verified on, in Linux'
            spelling.
        system: Its system and architecture.
    """

    integers: int = 0
    risky: int = 0
    halves: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    system: str = ""


@dataclass(frozen=True)
class PackedPlan:
    """One confirmed plan of a bundle: what it runs with, and what says so.

    Attributes:
        key: The trial's; empty in bundles that do not record it.
        plan: As a person reads it.
        backend: Its spelling.
        models: Model name -> member.
        settings: Member.
        recipe: Member.
        golden: Inputs are shared members, outputs its own.
        ratio: Of the original's time: value, low, high; None unconfirmed.
    """

    key: str
    plan: str
    backend: str
    models: Mapping[str, str]
    settings: str
    recipe: str
    golden: Mapping[str, Golden]
    ratio: tuple[float, float, float] | None
    arithmetic: Arithmetic = Arithmetic()
    custom_ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Everything needed to open a bundle; model names are keys throughout.

    Attributes:
        ortune: Version that wrote the bundle.
        plan: The packed plan, as a person reads it.
        backend: Its backend's spelling.
        models: Model name -> member of the tuned model.
        fallback: Model name -> member of the plain original.
        versions: Distribution -> version that the evidence was taken with.
        machine: The machine that the evidence was taken on.
        members: Every other member of the zip.
        workload: What the plan was chosen for, as spelled.
        arithmetic: What of it depends on the instruction set.
        custom_ops: Libraries of operators: members of the zip, or Python modules by name. Code,
            which is loaded only when the caller allows it.
    """

    format: int
    ortune: str
    plan: str
    backend: str
    models: Mapping[str, str]
    fallback: Mapping[str, str]
    signatures: Mapping[str, Signature]
    golden: Mapping[str, Golden]
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    members: Mapping[str, Member]
    workload: str = "latency"
    arithmetic: Arithmetic = Arithmetic()
    custom_ops: tuple[str, ...] = ()

    def packed(self) -> tuple[PackedPlan, ...]:
        """Return its plans, the fastest first."""
        plan = PackedPlan(
            "",
            self.plan,
            self.backend,
            self.models,
            SETTINGS,
            RECIPE,
            self.golden,
            None,
            self.arithmetic,
            self.custom_ops,
        )
        return (plan,)

    def write(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(codec.encode(self), indent=1).encode()


def read_manifest(content: bytes, bundle: str) -> Manifest:
    """Read a manifest and check that its parts agree.

    Raises:
        BadModel: It is not one, is of a newer format, or names a member that it does not list.
    """
    try:
        raw = stored.loads(content)
        number = int(raw["format"])
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise BadModel(
            f"{bundle}: its manifest cannot be read: {error}", fix="pack the run again"
        ) from error
    if number > FORMAT:
        raise BadModel(
            f"{bundle} has format {number}; this ortune reads up to {FORMAT}",
            fix=f"install ortune {raw.get('ortune', 'of a newer version')}",
        )
    try:
        stored.demand(raw, "it")
        manifest = codec.decode(Manifest, raw)
    except OrtuneError as error:
        raise BadModel(
            f"{bundle}: its manifest is wrong: {error.what}", fix="pack the run again"
        ) from error
    _check(manifest, bundle)
    return manifest


def _check(manifest: Manifest, bundle: str) -> None:
    for member in (*manifest.models.values(), *manifest.fallback.values()):
        if not member.endswith(".onnx"):
            raise BadModel(f"{bundle}: '{member}' is no ONNX model", fix=stored.DISTRUST)
    named = [SETTINGS, RECIPE, EVIDENCE, *manifest.models.values(), *manifest.fallback.values()]
    named += [name for pair in manifest.golden.values() for name in (pair.inputs, pair.outputs)]
    named += [text for text in manifest.custom_ops if "/" in text]
    for member in named:
        if member not in manifest.members:
            raise BadModel(
                f"{bundle}: its manifest has no digest of '{member}'", fix="pack the run again"
            )
    for text in manifest.custom_ops:
        held = text in manifest.members and text.startswith(f"{LIBRARIES}/")
        if not held and not _module(text):
            raise BadModel(
                f"{bundle}: '{text}' is neither a library in it nor the name of a Python module",
                fix=stored.DISTRUST,
            )
    keys = set(manifest.models)
    alike = keys == set(manifest.fallback) == set(manifest.signatures)
    if not keys or not alike or not keys.issuperset(manifest.golden):
        raise BadModel(
            f"{bundle}: its manifest names different models in different places",
            fix="pack the run again",
        )


def _module(text: str) -> bool:
    """Say whether a text names an installed module: neither a path nor the name of a file."""
    return re.fullmatch(r"[A-Za-z_][\w.-]*", text) is not None and not is_path(text)
