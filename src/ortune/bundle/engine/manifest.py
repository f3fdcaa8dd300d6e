"""The table of contents of a bundle: what is in it and the digest of every member."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ortune.core import wording
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec, stored
from ortune.core.plugins.user_function import is_factory, is_path

FORMAT = 2
"""Raised when an older reader could misread a bundle. One of format 1 has a single plan."""

MANIFEST = "manifest.json"
SETTINGS = "settings.json"
RECIPE = "recipe.json"
EVIDENCE = "evidence.json"
SBOM = "sbom.cdx.json"
"""The parts of the bundle and who made them, as CycloneDX 1.6."""
HUB = "hub"
"""Folder of what lay beside the model in a hub's folder: tokenizer and settings; optional."""
PREPROCESS = "preprocess.toml"
"""How a picture becomes the model's input; optional, as are the next two."""
COMPILED = "compiled.json"
SERVING = "serving.json"
"""How an engine shares CPUs among sessions, and runs among requests."""
READER = "reader.py"
"""A program that bundles of earlier releases may bring; nothing runs it."""
LIBRARIES = "custom_ops"
"""Folder of the libraries of custom operators."""
PLANS = "plans"
"""Folder of what belongs to the second plan and those behind it."""
MOST_PLANS = 16
_FLAT = ("plan", "backend", "models", "golden", "arithmetic")
"""Fields of a plan that stood in the manifest itself while it had one."""
LICENCE = re.compile(r"[A-Za-z0-9.+:() -]{0,200}")
_KEY = re.compile(r"[0-9a-z]{0,64}")


def name_plan_member(place: int, member: str) -> str:
    """Name a member that each plan has for itself; those of the first lie where one plan's do."""
    return f"{PLANS}/{place}/{member}" if place else member


@dataclass(frozen=True)
class Member:
    """One file of the zip: hex digest of its content, and bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Signature:
    """What a caller gives and gets."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"


@dataclass(frozen=True)
class Golden:
    """Stream members: samples, and what the packed plan answered to them."""

    inputs: str
    outputs: str


@dataclass(frozen=True)
class Arithmetic:
    """What of a plan depends on the CPU's instruction set."""

    integers: int = 0  # layers that multiply 8-bit integers; 0 in bundles that do not record it
    risky: int = 0  # of these, layers whose sums can saturate on x86 without VNNI
    halves: tuple[str, ...] = ()  # 16-bit formats that the plan computes in: float16, bfloat16
    # Instruction sets of the machine that the answers were verified on, in Linux' spelling.
    instructions: tuple[str, ...] = ()
    system: str = ""


@dataclass(frozen=True)
class PackedPlan:
    """One plan of a bundle: what it runs with, and what says so."""

    key: str  # the trial's, by which the evidence names it; empty in bundles of format 1
    plan: str
    backend: str
    models: Mapping[str, str]  # model name -> member of the tuned model
    settings: str
    recipe: str
    # Model name -> its golden samples: inputs of all plans, answers of its own.
    golden: Mapping[str, Golden]
    # Latency over the original's with the ends of its interval; None where none was confirmed.
    ratio: tuple[float, float, float] | None = None
    arithmetic: Arithmetic = Arithmetic()  # what of it depends on the instruction set
    custom_ops: tuple[str, ...] = ()  # those of the bundle's libraries that its settings name


@dataclass(frozen=True)
class Manifest:
    """Everything needed to open a bundle; model names are keys throughout."""

    format: int
    ortune: str
    # The packed plans, the one to run first; a bundle of format 1 has one.
    plans: tuple[PackedPlan, ...]
    fallback: Mapping[str, str]  # model name -> member of the plain original
    signatures: Mapping[str, Signature]
    versions: Mapping[str, str]  # distribution -> version that the evidence was taken with
    machine: Mapping[str, str]
    members: Mapping[str, Member]  # every other member of the zip
    workload: str = "latency"  # what the plans were chosen for, as spelled
    # Libraries of operators: members of the zip, or Python modules by name. Code, which is loaded
    # only when the caller allows it.
    custom_ops: tuple[str, ...] = ()
    licence: str = ""  # of the models, as an SPDX expression; empty where nobody said
    # Where the bundle comes from: digests of original and data, the commit of ortune, and which
    # member says what was measured.
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> str:
        """The first plan, as a person reads it."""
        return self.plans[0].plan

    @property
    def backend(self) -> str:
        """The spelling of the first plan's backend."""
        return self.plans[0].backend

    def write_json(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(codec.encode(self), indent=1).encode()


def read_manifest(content: bytes, bundle: str) -> Manifest:
    """Read a manifest and check that its parts agree.

    Raises BadModel: it is not one, is of a newer format, or names a member that it does not list.
    """
    try:
        raw = stored.parse_json(content)
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
        stored.demand_safe_data(raw, "it")
        manifest = codec.decode(Manifest, _as_plans(raw) if number == 1 else raw)
    except OrtuneError as error:
        raise BadModel(
            f"{bundle}: its manifest is wrong: {error.what}", fix="pack the run again"
        ) from error
    # Refuse a manifest whose parts do not agree.
    if not 0 < len(manifest.plans) <= MOST_PLANS:
        problem = f"{bundle} has {wording.format_count(len(manifest.plans), 'plan')}"
        raise BadModel(f"{problem}; a bundle has 1 to {MOST_PLANS}", fix=stored.DISTRUST)
    for member in _list_models(manifest):
        if not member.endswith(".onnx"):
            raise BadModel(f"{bundle}: '{member}' is no ONNX model", fix=stored.DISTRUST)
    for member in _list_needed(manifest):
        if member not in manifest.members:
            raise BadModel(
                f"{bundle}: its manifest has no digest of '{member}'", fix="pack the run again"
            )
    for text in manifest.custom_ops:
        is_library = text in manifest.members and text.startswith(f"{LIBRARIES}/")
        is_module = re.fullmatch(r"[A-Za-z_][\w.-]*", text) and not is_path(text)
        if not (is_library or is_factory(text) or is_module):
            raise BadModel(
                f"{bundle}: '{text}' is neither a library in it nor the name of a Python module",
                fix=stored.DISTRUST,
            )
    if why := next(_list_contradictions(manifest), ""):
        raise BadModel(f"{bundle}: its manifest {why}", fix="pack the run again")
    return manifest


def _as_plans(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest of format 1 in the form of today: its flat fields are its one plan's."""
    flat = {name: raw[name] for name in _FLAT if name in raw}
    plan = {"key": "", "settings": SETTINGS, "recipe": RECIPE} | flat
    plan["custom_ops"] = raw.get("custom_ops", [])
    return {name: value for name, value in raw.items() if name not in _FLAT} | {"plans": [plan]}


def _list_models(manifest: Manifest) -> Iterator[str]:
    for plan in manifest.plans:
        yield from plan.models.values()
    yield from manifest.fallback.values()


def _list_needed(manifest: Manifest) -> Iterator[str]:
    """Yield every member that the manifest needs."""
    yield EVIDENCE
    yield from _list_models(manifest)
    for place, plan in enumerate(manifest.plans):
        yield name_plan_member(place, SETTINGS)
        yield name_plan_member(place, RECIPE)
        for golden in plan.golden.values():
            yield from (golden.inputs, golden.outputs)
    yield from (text for text in manifest.custom_ops if "/" in text)


def _list_contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield how the parts of a manifest contradict each other."""
    keys = set(manifest.fallback)
    for place, plan in enumerate(manifest.plans):
        alike = keys == set(plan.models) == set(manifest.signatures)
        if not keys or not alike or not keys.issuperset(plan.golden):
            yield "names different models in different places"
        if (plan.settings, plan.recipe) != (
            name_plan_member(place, SETTINGS),
            name_plan_member(place, RECIPE),
        ):
            yield f"has settings or recipe of plan {place + 1} in an unexpected file"
        if not set(plan.custom_ops) <= set(manifest.custom_ops):
            yield f"lists no library that plan {place + 1} names"
        if plan.ratio is not None and not _is_interval(*plan.ratio):
            yield f"has an invalid interval for the ratio of plan {place + 1}"
        if not _KEY.fullmatch(plan.key):
            yield f"has an invalid key for plan {place + 1}"
    if not LICENCE.fullmatch(manifest.licence):
        yield "has an invalid licence"


def _is_interval(value: float, low: float, high: float) -> bool:
    return 0 <= low <= value <= high < math.inf
