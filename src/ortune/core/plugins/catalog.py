"""Find plugins by listing folders. Nothing is imported until it is asked for by name."""

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import TypeVar

from ortune.core.errors import UnknownPlugin, find_nearest, suggest_names
from ortune.core.plugins import sources, user_file
from ortune.core.plugins.plugin import Plugin, digest

P = TypeVar("P", bound=Plugin)

BASES = {
    "transforms": "ortune.core.step:Transform",
    "quantizers": "ortune.core.step:Quantizer",
    "observers": "ortune.core.observer:Observer",
    "augmentations": "ortune.core.augmentation:Augmentation",
    "backends": "ortune.core.backend:Backend",
    "metrics": "ortune.core.metric:Metric",
    "workloads": "ortune.core.workload:Workload",
    "sections": "ortune.core.section:Section",
    "samples": "ortune.core.sample:Sample",
    "targets": "ortune.bundle.target:Target",
}
"""Plugin folder -> the class its entries derive from."""

_PLACES = {
    "augmentations": "data.augmentations",
    "observers": "quantizers.observers",
    "samples": "data.zoo",
    "sections": "reporting.sections",
    "workloads": "measurement.workloads",
}
"""Plugin folder -> where ortune's own stands, if not under its name at the top."""


_CALLED: Mapping[str, Mapping[str, str]] = {
    "backends": {
        "cpu": "onnxruntime ort onnx cpuexecutionprovider default mlas",
        "cuda": "gpu nvidia cudaexecutionprovider",
        "tensorrt": "trt tensorrtexecutionprovider",
        "openvino": "ov intel openvinoexecutionprovider",
        "directml": "dml dmlexecutionprovider",
        "torch": "pytorch",
    },
    "metrics": {
        "top1": "accuracy acc top-1 acc1",
        "map": "mean-average-precision coco",
        "cosine": "cos similarity",
        "snr": "psnr sqnr",
        "max-error": "mae linf maxabs atol",
    },
    "targets": {"triton": "tritonserver", "openvino": "ov ir", "huggingface": "hf hub optimum"},
}
"""Plugin folder -> name -> what others call it."""
_STEPS = ("transforms", "quantizers")


@cache
def list_plugin_packages() -> tuple[str, ...]:
    """Return the packages that carry plugin folders: ortune and the installed third parties.

    For that every installed distribution is opened.
    """
    from importlib.metadata import entry_points

    return ("ortune", *sorted(point.value for point in entry_points(group="ortune.plugins")))


def list_plugins(base: type[P]) -> list[str]:
    """Return every entry of a folder, without importing one of them."""
    return sorted(map_modules(base.folder))


def load_plugin(base: type[P], name: str) -> type[P]:
    """Import one entry, or run the user's file that the name says, and return the class.

    Raises:
        UnknownPlugin: No file of that name, or the file does not define exactly one class.
    """
    if user_file.names_file(name):
        if base.folder not in _STEPS:  # workers would get a stand-in, and run no file for it
            raise UnknownPlugin(
                f"no {base.__name__.lower()} is read from a file such as '{name}', only steps are",
                fix="put it into a package with an entry point in the group ortune.plugins",
            )
        return user_file.load_user_class(base, name)
    path = _find_entry(base.folder, name)
    if path is None:
        entries = map_modules(base.folder)
        usual = {k: v for v, words in _CALLED.get(base.folder, {}).items() for k in words.split()}
        near = next(iter(find_nearest(name, [*entries, *usual])), name)
        raise UnknownPlugin(
            f"no {base.__name__.lower()} '{name}'",
            fix=suggest_names(usual.get(near, name), sorted(entries)),
        )
    module = importlib.import_module(path)
    classes = [
        item
        for item in vars(module).values()
        if inspect.isclass(item)
        and issubclass(item, base)
        and item.__module__ == module.__name__
        and not inspect.isabstract(item)
    ]
    if len(classes) != 1:
        raise UnknownPlugin(
            f"{module.__name__} defines {len(classes)} {base.__name__} classes",
            fix="keep exactly one public class in the file",
        )
    return classes[0]


def find_plugin_class(path: str, field_names: Iterable[str] = ()) -> type[Plugin]:
    """Return the class behind a stored path such as ``quantizers/int8-static``.

    Files of the user's are not run, and a step of another version may be gone: a stand-in with
    these fields answers for what is in them.
    """
    folder, _, name = path.partition("/")
    base = base_of(folder)
    gone = user_file.names_file(name) or (folder in _STEPS and not _find_entry(folder, name))
    return user_file.stand_in(base, name, field_names) if gone else load_plugin(base, name)


def base_of(folder: str) -> type[Plugin]:
    """Return the class that entries of a folder derive from."""
    if folder not in BASES:
        raise UnknownPlugin(f"no folder '{folder}'", fix=f"use one of: {', '.join(sorted(BASES))}")
    module, _, attribute = BASES[folder].partition(":")
    base: type[Plugin] = getattr(importlib.import_module(module), attribute)
    return base


def source_digest(plugin: Plugin) -> str:
    """Digest the code of a plugin and of those in its fields: results of other code are stale.

    That is all they import from their own distribution and from ortune; of a plugin in a file of
    the user's, that file.
    """
    digests = [code_digest(type(plugin))]
    for field in fields(plugin):
        value = getattr(plugin, field.name)
        items = value if isinstance(value, tuple) else (value,)
        digests += [source_digest(item) for item in items if isinstance(item, Plugin)]
    return digests[0] if len(digests) == 1 else digest(digests)


@cache
def code_digest(cls: type[Plugin]) -> str:
    """Digest the code of one class; what its fields hold is left out."""
    if cls.origin:
        return user_file.read_file_digest(cls)
    return sources.digest_module(cls.__module__, _find_modules)


def _find_modules(plugin: str) -> list[str]:
    return [
        path for folder in BASES for name, path in map_modules(folder).items() if name == plugin
    ]


@cache
def map_modules(folder: str) -> dict[str, str]:
    """Return name -> module of every entry of a folder of ortune's and of third parties'.

    An entry is a module without an underscore in front; none is imported. Of two of one name
    ortune's counts.
    """
    entries: dict[str, str] = {}
    for root in list_plugin_packages():
        for name, path in _map_package(root, folder).items():
            entries.setdefault(name, path)
    return entries


def _find_entry(folder: str, name: str) -> str | None:
    """Return the module of an entry; third parties are looked for where ortune has none."""
    return _map_own(folder).get(name) or map_modules(folder).get(name)


@cache
def _map_own(folder: str) -> dict[str, str]:
    return _map_package("ortune", folder)


def _map_package(root: str, folder: str) -> dict[str, str]:
    place = _PLACES.get(folder, folder) if root == "ortune" else folder
    try:
        spec = importlib.util.find_spec(f"{root}.{place}")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.submodule_search_locations is None:
        return {}
    return {
        info.name.replace("_", "-"): f"{spec.name}.{info.name}"
        for info in pkgutil.iter_modules(spec.submodule_search_locations)
        if not (info.ispkg or info.name.startswith("_"))
    }
