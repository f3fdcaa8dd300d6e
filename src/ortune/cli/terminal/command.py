"""A click command out of a request class."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ortune.cli.terminal.output import DISPLAY, JSON, STDOUT
from ortune.core import settings
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.fields import Libraries
from ortune.core.outputs import free
from ortune.core.request import Request, RequestField, carried_out, parameters, text

_ALONE = "`pip install --no-deps ortune` beside numpy and onnxruntime opens bundles: ortune.load"
RETIRED: Mapping[str, str] = {
    "pack --reader": _ALONE,
    "reader": _ALONE,
    "bench --processes": "load test servers: ortune loadtest MODEL --processes N",
    "cost --measure": "price a file of: ortune loadtest MODEL --processes N --json FILE.json",
    "cost --memory-limit": "leave it out: cost starts no worker any more",
    "bench --memory-by-node": "see `peak_rss` of bench, and `ortune profile` for single nodes",
}
"""Old word -> what to do instead, as the text behind ``fix:``.

A word is a verb, such as ``timeline``, or an option with its verb, such as ``optimize --policy``;
a settings file's key is looked up as the option. Take a row out a release after it came.
"""


def refuse_retired(verb: str, option: str = "") -> None:
    """Refuse a verb, or an option of one, that an earlier release had.

    Raises:
        OrtuneError: An earlier release had it.
    """
    word = f"{verb} {option}".strip()
    if word in RETIRED:
        raise OrtuneError(f"`{word}` is no more", fix=RETIRED[word])


R = TypeVar("R", bound=Request)

_GIVEN = "ortune.given"
_VERBOSE = "ortune.verbose"
_OF_ONE_CALL = {"more", "json_to"}
"""Parameters of every verb that are no settings."""


def verb(kind: type[R]) -> Callable[[Callable[[R], int | None]], click.Command]:
    """Make a command of a function that takes a request; it may return an exit code.

    The request's notes go to stderr unless the function replaces the sink.
    """

    def made(function: Callable[[R], int | None]) -> click.Command:
        def callback(more: bool, json_to: str | None, **given: Any) -> int | None:
            from ortune.cli.terminal import progress

            meta = click.get_current_context().meta
            meta[JSON], meta[_VERBOSE] = json_to, more
            quiet = bool(given.get("quiet") or given.get("verbose"))  # the runtime logs there too
            with progress.display(quiet=quiet, verbose=more) as shown:
                meta[DISPLAY] = shown
                return carried_out(kind(**given, sink=shown.take), function)

        body, example = text(kind)
        lines = "\n".join(f"  {line}" for line in example.splitlines())
        return Verb(
            name=function.__module__.rpartition(".")[2].replace("_", "-"),
            callback=callback,
            params=[
                *_always(),
                *(_parameter(one) for one in parameters(kind) if not one.option.python),
            ],
            request=kind,
            help=f"{body}\n\n\b\nExample:\n{lines}",
        )

    return made


class Verb(click.Command):
    """A command that takes a settings file in place of its arguments, and ``--json``.

    ``--json`` takes a file only if the next word ends in ``.json``.

    Attributes:
        request: What the verb is asked.
    """

    def __init__(self, *, request: type[Request], **known: Any) -> None:
        super().__init__(**known)
        self.request = request

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a settings file, and bind the optional value of ``--json``."""
        ctx.meta.setdefault(_GIVEN, list(args))
        if args and args[0].endswith(".toml"):
            args = self._from_file(ctx, Path(args[0]), args[1:])
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
        try:
            return super().parse_args(ctx, words)
        except click.NoSuchOption as error:
            refuse_retired(ctx.info_name or "", error.option_name)
            raise

    def _from_file(self, ctx: click.Context, path: Path, args: list[str]) -> list[str]:
        """Put a settings file behind `args`; its keys are fields, or options without dashes."""
        kept = [(one.name, one) for one in self.params if one.name not in _OF_ONE_CALL]
        keys = {word.strip("-").replace("-", "_"): k for k, one in kept for word in one.opts}
        formerly: Mapping[str, str] = getattr(self.request, "formerly", {})
        given = settings.read(path, dict(kept), {**keys, **formerly}, self._refuse_key)
        for key, value in given.items():
            given[key] = _typed(path, key, value, dict(kept)[key])
        held = [given.pop(k, ()) for k, one in kept if isinstance(one, click.Argument)]
        ctx.default_map = given
        return [*args, *(word for one in held for word in _words(one))]

    def _refuse_key(self, key: str) -> None:
        refuse_retired(self.name or "", f"--{key.replace('_', '-')}")


def _typed(path: Path, key: str, value: Any, one: click.Parameter) -> Any:
    """Return what a settings file has for a parameter, as a list where that takes several.

    Click converts words; handed a number it may take it for the descriptor of an open file.

    Raises:
        OrtuneError: It is of a type that the parameter does not take.
    """
    several = one.nargs == -1 or one.multiple
    every = value if several and isinstance(value, list) else [value]
    for item in every:
        settings.demand_typed(path, key, item, _types(one))
    return every if several else value


def _types(one: click.Parameter) -> tuple[type, ...]:
    if isinstance(one, click.Option) and one.is_flag:
        return (bool,)
    if isinstance(one.type, (click.types.IntParamType, click.types.FloatParamType)):
        return (int,) if isinstance(one.type, click.types.IntParamType) else (int, float)
    return (str,) if isinstance(one.type, click.Path) else (str, int, float)


def verbose() -> bool:
    """Whether the present command was given ``-v``."""
    return bool(click.get_current_context().meta[_VERBOSE])


def given(field: str) -> bool:
    """Whether a field of the present command was given, or left at its default."""
    source = click.get_current_context().get_parameter_source(field)
    return source is not click.core.ParameterSource.DEFAULT


def repeat() -> str:
    """Return the command line that repeats the present one."""
    ctx = click.get_current_context()
    return shlex.join(["ortune", ctx.info_name or "", *ctx.meta.get(_GIVEN, [])])


def _words(value: Any) -> Iterable[str]:
    return map(str, value if isinstance(value, (list, tuple)) else [value])


def _always() -> list[click.Parameter]:
    return [
        click.Option(["-v", "--verbose", "more"], is_flag=True, help="Say more on stderr."),
        click.Option(
            ["--json", "json_to"],
            metavar="[FILE.json]",
            callback=_writable,
            help="Print one JSON object and nothing else, or write it to FILE.json.",
        ),
    ]


def _writable(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Refuse a file that cannot be written before the work begins, not after it."""
    if given not in (None, STDOUT):
        free(Path(given or ""), force=True)
    return given


def _parameter(one: RequestField) -> click.Parameter:
    option = one.option
    several = one.reader.several if one.reader else not one.kinds.isdisjoint((Sequence, tuple))
    if one.positional and not option.word:
        return click.Argument(
            [one.name],
            type=_type(one),
            required=one.required,
            nargs=-1 if several else 1,
            metavar=option.metavar or None,
            callback=_reading(one),
        )
    word = option.word or f"--{one.name.replace('_', '-')}"
    flag = bool in one.kinds
    if flag and one.default is not False and not option.word:
        word = f"{word}/--no-{word[2:]}"
    default = _default(one, several)
    held = {} if one.required else {"default": default}  # to click, None is a default too
    note = f"  [default: {option.shown}]" if option.shown else ""
    return click.Option(
        [*word.split(), one.name],
        type=None if flag else _type(one),
        is_flag=flag,
        **held,
        required=one.required,
        multiple=several,
        metavar=option.metavar or None,
        show_default=not note and default not in (None, False, 0, "", ()),
        help=one.help + note,
        callback=_reading(one),
    )


def _default(one: RequestField, several: bool) -> Any:
    if one.required:
        return None
    if one.reader is not None and not (several or isinstance(one.default, str | None)):
        return one.reader.spell(one.reader.read(one.default)) or None
    return (one.default,) if several and isinstance(one.default, str) else one.default


def _type(one: RequestField) -> click.ParamType[Any]:
    if one.reader is not None:
        return click.STRING
    if one.choices:
        return click.Choice([str(choice) for choice in one.choices])
    if float in one.kinds:
        return click.FLOAT
    if int in one.kinds:
        return click.INT
    if Path in one.kinds and Callable not in one.kinds:
        return click.Path(path_type=Path)
    return click.STRING


def _reading(one: RequestField) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback that checks and converts a value, so that errors name the option."""

    def read(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if one.reader is None:
            one.option.check(param.opts[0], value)
            return value
        try:
            found = one.reader.read(value)
        except BadSettings as error:
            raise BadSettings(f"{param.opts[0]}: {error.what}", fix=error.fix) from None
        one.option.check(param.opts[0], found)
        if found and isinstance(one.reader, Libraries):
            from ortune.backends.cpu import Cpu

            Cpu(custom_ops=found).missing()
        return found

    return read
