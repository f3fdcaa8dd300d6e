"""What a bundle may set, and code that it brings or names, which runs by consent alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ortune.bundle.engine.manifest import Manifest, PackedPlan
from ortune.core import regular_file, wording
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError, UnknownPlugin, summarize_error
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.plugins.user_function import is_factory

T = TypeVar("T")
_LIBRARIES = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How shared libraries of Linux, Windows and macOS begin."""


def require_consent(name: str, manifest: Manifest, allowed: bool) -> None:
    """Raise BadSettings, naming it, for a bundle's code that the caller did not allow."""
    named = list_operator_libraries(manifest.custom_ops)
    if not named or allowed:
        return
    descriptions = [
        f"{text.rpartition('/')[2]} (sha256 {manifest.members[text].sha256[:16]})"
        if text in manifest.members
        else f"the Python module {text}"
        for text in named
    ]
    raise BadSettings(
        f"{name} runs code of its own, custom operators: {', '.join(descriptions)}",
        fix="if you trust where it comes from: load(path, custom_ops=True), or "
        "--allow-custom-ops on the command line",
    )


def list_operator_libraries(named: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries of custom operators among the code that is named."""
    return tuple(text for text in named if not is_factory(text))


def list_factories(named: Sequence[str]) -> tuple[str, ...]:
    """Return the functions, ``pkg.module:factory``, that make a plan's model in Python."""
    return tuple(text for text in named if is_factory(text))


def place_libraries(
    backend: Backend, plan: PackedPlan, manifest: Manifest, folder: Path
) -> Backend:
    """Return settings with the unpacked libraries; BadModel where they name unlisted code."""
    require_listed(backend, plan.custom_ops)
    if not backend.custom_ops:
        return backend
    return replace(backend, custom_ops=locate_libraries(backend.custom_ops, manifest, folder))  # type: ignore[call-arg]


def require_listed(backend: Backend, libraries: Sequence[str]) -> None:
    """Raise BadModel for settings that name other code than what a bundle lists for them."""
    fields: Mapping[str, Any] = {name: getattr(backend, name) for name in backend.reads}
    named = (
        (name, text)
        for name, value in fields.items()
        for text in ([value] if isinstance(value, str) else value)
    )
    # A library is for custom operators alone, whatever else a backend would load of that name.
    strange = sorted(
        text
        for name, text in named
        if text and (text not in libraries or is_factory(text) == (name == "custom_ops"))
    )
    if strange:
        raise BadModel(
            f"its settings name '{strange[0]}', which its manifest does not", fix=stored.DISTRUST
        )


def is_code(path: Path) -> bool:
    """Say whether a file is what a bundle may carry as a library: a shared library, or Python."""
    with regular_file.open_regular(path, BadModel) as file:
        return path.suffix == ".py" or file.read(4).startswith(_LIBRARIES)


def locate_libraries(named: tuple[str, ...], manifest: Manifest, folder: Path) -> tuple[str, ...]:
    """Return where the bundle's libraries were unpacked; installed modules keep their names."""
    return tuple(
        str(folder / text) if text in manifest.members else text
        for text in list_operator_libraries(named)
    )


def require_backend_settings(data: object, member: str) -> None:
    """Raise BadModel for stored settings that are no backend, or set what no file may."""
    kind = data.get("is", "") if isinstance(data, dict) else ""
    if not str(kind).startswith("backends/"):
        problem = (
            f"{member} holds '{kind}' where a backend belongs" if kind else f"{member} holds none"
        )
        raise BadModel(problem, fix=stored.DISTRUST)
    _require_safe_data(data, member)


def _require_safe_data(data: object, member: str) -> None:
    try:
        stored.demand_safe_data(data, member)
    except BadSettings as error:
        raise BadModel(error.what, fix=error.fix) from None


def decode_member(kind: type[T], content: bytes, where: str) -> T:
    """Build what a member says, none of it more than a file from elsewhere may set.

    Raises BadModel: it is no JSON, or does not say that; UnknownPlugin: its plugin is not
    installed.
    """
    try:
        data = stored.parse_json(content)
    except ValueError as error:
        raise BadModel(f"{where} cannot be read: {error}", fix="pack the run again") from error
    (require_backend_settings if kind is Backend else _require_safe_data)(data, where)
    try:
        return codec.decode(kind, data)
    except UnknownPlugin:
        raise
    except OrtuneError as error:
        raise BadModel(f"{where} cannot be used: {error.what}", fix=error.fix) from None


def load_backend(folder: Path, manifest: Manifest, plan: PackedPlan) -> tuple[Backend | None, str]:
    """Return a plan's backend, or None and what keeps it from running.

    Raises BadModel: its settings are none that a bundle may make, or name code that its manifest
    does not.
    """
    try:
        data = stored.parse_json((folder / plan.settings).read_bytes())
    except ValueError as error:
        return None, reason_of(error)
    require_backend_settings(data, plan.settings)
    try:
        backend = codec.decode(Backend, data)
    except OrtuneError as error:
        return None, reason_of(error)
    backend = place_libraries(backend, plan, manifest, folder)
    try:
        missing = backend.missing()
    except OrtuneError as error:
        return None, reason_of(error)
    return (None, f"fix: {missing}") if missing else (backend, "")


def fit_threads(backend: Backend) -> tuple[Backend, str]:
    """Return the settings with no more threads than there are CPUs, and what to say of it."""
    cpus = effective_cpus()
    fit, most = stored.limit_threads(backend, cpus)
    if not most:
        return fit, ""
    return fit, (
        f"asks for {wording.format_count(most, 'thread')}, and "
        f"{wording.format_count(cpus, 'CPU')} "
        f"can be used here: it runs with {cpus}"
    )


def reason_of(error: Exception) -> str:
    """Say in a clause why settings or a session are not to be had."""
    if isinstance(error, OrtuneError):
        return f"{error.what}; fix: {error.fix}"
    return f"{type(error).__name__}: {summarize_error(error)}"
