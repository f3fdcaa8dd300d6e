"""Read what a person spells: a step of either kind, a workload with its batch."""

from dataclasses import replace

from ortune.core.errors import BadSettings, UnknownPlugin, find_nearest
from ortune.core.plugins import catalog, user_file
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Step, Transform
from ortune.core.workload import Workload

_EXAMPLES = "use a transform such as simplify, or a quantizer such as int8-static"
_LISTED = "docs/rewriting.md and docs/quantizing.md list all"


def read_step(text: str) -> Step:
    """Read a transform or a quantizer; a transform may be the user's own, ``FILE.py:NAME``.

    Raises:
        UnknownPlugin: There is neither of that name.
        BadSettings: A field is wrong, or the user's file does not run.
    """
    name = text.partition("(")[0].strip()
    transforms, quantizers = catalog.list_plugins(Transform), catalog.list_plugins(Quantizer)
    if name in transforms or user_file.names_file(name):
        return parse_plugin(Transform, text)
    if name in quantizers:
        return parse_plugin(Quantizer, text)
    near = find_nearest(name, [*transforms, *quantizers])
    fix = f"write {' or '.join(near)}; {_LISTED}" if near else f"{_EXAMPLES}; {_LISTED}"
    raise UnknownPlugin(f"no step '{name}'", fix=fix)


def read_workload(text: str | Workload, batch: int = 0) -> Workload:
    """Read ``--workload`` and put ``--batch`` into it.

    Raises:
        BadSettings: It cannot run here, or says another batch itself.
    """
    workload = text if isinstance(text, Workload) else parse_plugin(Workload, text)
    if reason := workload.missing():
        raise BadSettings(f"workload '{workload.name()}' cannot run here", fix=reason)
    if batch and workload.batch not in (0, batch):
        raise BadSettings(
            f"--batch {batch} contradicts --workload '{workload}'",
            fix="give the batch in one of the two",
        )
    return replace(workload, batch=batch) if batch else workload
