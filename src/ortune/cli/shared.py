"""Options and output that several verbs share."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.fields import Ranges, Shapes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ortune.core.backend import Backend

F = TypeVar("F", bound=Callable[..., Any])
Option: TypeAlias = Callable[[F], F]

STDOUT = "-"
_GIVEN = "ortune.given"
FILE = click.Path(path_type=Path)


class Verb(click.Command):
    """A command whose ``--json`` takes a file only if the next word ends in ``.json``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Bind the optional value of ``--json`` before click can take a model for it."""
        remember(ctx, args)
        words: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                words += [word, *rest]
                break
            if word == "--json":
                word = f"--json={rest.pop(0) if rest and rest[0].endswith('.json') else STDOUT}"
            words.append(word)
        return super().parse_args(ctx, words)


class Finite(click.FloatRange):
    """A number within limits; NaN and infinity are none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it, or complain as click does."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number.", param, ctx)
        return found


def verb(cls: type[Verb]) -> Callable[[Callable[..., int]], click.Command]:
    """Make a command of a function; its docstring is the help and ends with an example."""

    def made(function: Callable[..., int]) -> click.Command:
        for option in (_json, _verbose):
            function = option(function)
        return click.command(cls=cls)(function)

    return made


def _place(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Refuse a file that cannot be written before the work begins, not after it."""
    if given not in (None, STDOUT):
        free(Path(given or ""), force=True)
    return given


_json = click.option(
    "--json",
    "json_to",
    metavar="[FILE.json]",
    callback=_place,
    help="Print one JSON object and nothing else, or write it to FILE.json.",
)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Say more on stderr.")

model = click.argument("model", type=FILE)
models = click.argument("models", type=FILE, nargs=-1, required=True)
data = click.option(
    "--data",
    metavar="SOURCE",
    help="Samples: a folder of .npz, .npy per input or images, a .jsonl file, or module:function.",
)
labels = click.option(
    "--labels", metavar="FILE", help="Labels in the samples' order (.npy or .csv)."
)
calibration = click.option(
    "--calibration", metavar="SOURCE", help="Samples to calibrate with, apart from --data."
)
ranges_from = click.option(
    "--ranges-from",
    type=FILE,
    metavar="FILE",
    help="Ranges from `ortune calibrate -o`, or a TensorRT calibration cache.",
)
augment = click.option(
    "--augment",
    metavar="SPECS",
    help='Altered copies to calibrate on too, such as "noise(db=30),flip,scale"; never scored.',
)
evaluate = click.option(
    "--evaluate",
    metavar="MODULE:FN",
    help="Score with fn(run), which calls run(**inputs) and returns per-sample records.",
)
budget = click.option(
    "--budget",
    metavar="BUDGET",
    help='The worst score allowed, such as "top1>=base-0.01" or "cosine>=0.999".',
)
shapes = click.option(
    "--shape",
    "shapes",
    metavar="INPUT:DIMS",
    multiple=True,
    help="Shape of a made-up input, such as x:1x3x320x320.",
)
ranges = click.option(
    "--range",
    "ranges",
    metavar="INPUT:LO..HI",
    multiple=True,
    help="Values of a made-up input, such as ids:0..30521.",
)
batch = click.option(
    "--batch",
    type=click.IntRange(min=0),
    default=0,
    help="Samples stacked into one run; 0 takes them as they come.",
)


def _libraries(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    """Make paths absolute and load the libraries once, in a process of its own."""
    if not given:
        return ()
    from ortune.backends.cpu import Cpu
    from ortune.core.plugins.user_function import is_path
    from ortune.measurement.capabilities import capabilities

    found = tuple(str(Path(text).absolute()) if is_path(text) else text for text in given)
    capabilities(Cpu(custom_ops=found))
    return found


custom_ops = click.option(
    "--custom-ops",
    metavar="LIB",
    multiple=True,
    callback=_libraries,
    help="Custom operators: a shared library, or a Python module that gives one. It is run.",
)
force = click.option("--force", is_flag=True, help="Overwrite an existing output.")
quiet = click.option("--quiet", is_flag=True, help="Plain lines instead of the live display.")


def remember(ctx: click.Context, args: Sequence[str]) -> None:
    """Keep the words as they were given, for `repeat`; the first call counts."""
    ctx.meta.setdefault(_GIVEN, list(args))


def repeat() -> str:
    """Return the command line that repeats the present one."""
    ctx = click.get_current_context()
    return shlex.join(["ortune", ctx.info_name or "", *ctx.meta.get(_GIVEN, [])])


def on(default: str) -> Callable[[F], F]:
    """Return the ``--on`` option with a verb's own default."""
    return click.option(
        "--on",
        metavar="BACKENDS",
        default=default,
        show_default=True,
        help='Where to run: backends by comma, such as "cpu(threads=2),openvino".',
    )


def equipped(on: str, custom_ops: Sequence[str]) -> str:
    """Return ``--on`` with the libraries of ``--custom-ops`` given to every backend.

    ``auto`` becomes those backends that run here and take libraries.

    Raises:
        BadSettings: One that is named takes none.
    """
    from ortune.core.backend import Backend
    from ortune.core.plugins import catalog
    from ortune.core.plugins.spelling import parse_list, with_field
    from ortune.measurement.capabilities import capabilities

    if not custom_ops:
        return on
    if on.strip() == "auto":
        kinds = [catalog.load(Backend, name) for name in catalog.names(Backend)]
        fit = [kind for kind in kinds if kind.automatic and _takes_custom_ops(kind)]
        on = ",".join(kind.name() for kind in fit if capabilities(kind()).missing is None)
    for backend, _ in parse_list(Backend, on):
        if not _takes_custom_ops(type(backend)):
            raise BadSettings(
                f"--custom-ops: backend '{backend.name()}' takes no custom operators; they are "
                "onnxruntime's",
                fix="use --on cpu",
            )
    return with_field(on, "custom_ops", tuple(custom_ops))


def _takes_custom_ops(kind: type[Backend]) -> bool:
    return any(field.name == "custom_ops" for field in dataclasses.fields(kind))


def output(what: str, *, required: bool = False) -> Callable[[F], F]:
    """Return the ``-o`` option."""
    return click.option("-o", "--out", type=FILE, metavar="PATH", required=required, help=what)


def version() -> str:
    """Return the installed version."""
    from ortune.core.version import __version__

    return __version__


def answer(json_to: str | None, result: Mapping[str, object], show: Callable[[], None]) -> None:
    """Give the result by `show`, as one JSON object, or both when that goes to a file."""
    if json_to is None:
        show()
        return
    text = json.dumps(plain({"ortune": version(), **result}), indent=2, allow_nan=False)
    if json_to == STDOUT:
        click.echo(text)
        return
    Path(json_to).write_text(text + "\n", encoding="utf-8")
    show()


def plain(value: object) -> Any:
    """Turn core values, arrays' numbers and NaN into what JSON has; NaN and infinity are null."""
    from ortune.core.plugins import codec

    value = codec.encode(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        return plain(value) if isinstance(value, list) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str) -> None:
    """Write a line of the answer to stdout."""
    click.echo(text)


def remark(text: str) -> None:
    """Write a line about the work to stderr."""
    click.echo(text, err=True)


def console() -> Console:
    """Return a console on stdout; wide where no terminal sets a width, so that nothing is cut."""
    from rich.console import Console

    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else 160,
        soft_wrap=False,
        highlight=False,
    )


def show(*items: RenderableType) -> None:
    """Print rich renderables to stdout."""
    out = console()
    for item in items:
        out.print(item)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; columns whose name ends in ``>`` are set to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        right = name.endswith(">")
        made.add_column(name.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    show(made)


def size(count: float) -> str:
    """Write a number of bytes with a unit of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def amount(count: float) -> str:
    """Write a count with a prefix: 1.23 M."""
    for prefix in ("", " k", " M", " G", " T"):
        if abs(count) < 1000 or prefix == " T":
            return f"{count:g}" if prefix == "" else f"{count:.2f}{prefix}"
        count /= 1000
    raise AssertionError


def free(path: Path, force: bool, *sources: Path) -> Path:
    """Return `path` if it may be written.

    Raises:
        OrtuneError: It exists and `force` is off, is one of the sources, or has no folder.
    """
    for source in sources:
        if path.exists() and source.exists() and path.samefile(source):
            raise OrtuneError(
                f"{path} is the source itself", fix="give another name for the output"
            )
    if path.is_dir():
        raise OrtuneError(f"{path} is a folder", fix="give the name of a file")
    if path.exists() and not force:
        raise OrtuneError(f"{path} exists", fix="give another name, or --force to overwrite it")
    if not path.absolute().parent.is_dir():
        raise OrtuneError(
            f"no folder {path.absolute().parent}", fix="make it first, or write elsewhere"
        )
    return path


def seconds(text: str) -> float:
    """Read a duration such as ``90``, ``60s``, ``3m`` or ``1h30m``.

    Raises:
        OrtuneError: It is not one, or not positive.
    """
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    hours, minutes, rest = (float(x or 0) for x in found.groups()) if found else (0.0, 0.0, 0.0)
    total = hours * 3600 + minutes * 60 + rest
    if total <= 0:
        raise OrtuneError(f"cannot read the duration '{text}'", fix="write 60s, 3m or 1h30m")
    return total


def bytes_of(text: str) -> int:
    """Read a size such as ``500M`` or ``4G``; units of 1024.

    Raises:
        OrtuneError: It is not one.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise OrtuneError(f"cannot read the size '{text}'", fix="write 500M or 4G")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))


def shape_map(texts: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Read ``--shape`` values."""
    return Shapes().read(texts)


def range_map(texts: Sequence[str]) -> Mapping[str, tuple[float, float]]:
    """Read ``--range`` values."""
    return Ranges().read(texts)
