"""A click command out of a request class."""

import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ortune.cli.terminal.output import DISPLAY, JSON, STDOUT, write_remark
from ortune.cli.terminal.panels import write_panels
from ortune.core import settings
from ortune.core.atomic_write import remove_path
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Event, Note, Sink
from ortune.core.fields import Libraries
from ortune.core.outputs import check_output_file
from ortune.core.request import (
    Request,
    RequestField,
    WorkerRequest,
    list_request_fields,
    map_former_names,
    read_help,
    run_request,
)

_ALONE = "ortune's wheel by `pip install --no-deps`, with numpy and onnxruntime, opens bundles"
_AFRESH = "leave it out: searches no longer use records of earlier runs"
RETIRED: Mapping[str, str] = {
    "buckets": "write `ortune optimize MODEL --data SOURCE --buckets`, with the options as before",
    "env": "write `ortune doctor env`, with the words as before",
    "timeline": "write `ortune cost MODEL --timeline`, with the options as before",
    "verify-signature": "write `ortune recheck BUNDLE --require-signature KEY --signature-only`",
    "pack --reader": _ALONE,
    "reader": _ALONE,
    "bench --processes": "load test servers: ortune loadtest MODEL --processes N",
    "cost --measure": "price a file of: ortune loadtest MODEL --processes N --json FILE.json",
    "optimize --warm-start": _AFRESH,
    "optimize --no-warm-start": _AFRESH,
    "optimize --policy": "leave it out: every search is adaptive",
    "pack --with": "write `ortune pack RUN -o OUT --plan winner,KEY`",
    "bench --wide": "write -v",
    "inspect --nodes": "write --list nodes",
    "inspect --regions": "write --list regions",
    "inspect --tensors": "write --list tensors",
    "bench --memory-by-node": "see `peak_rss` of bench, and `ortune profile` for single nodes",
}
"""Old word -> what to do instead, as the text behind ``fix:``.

A word is a verb, such as ``timeline``, or an option with its verb, such as ``optimize --policy``;
a settings file's key is looked up as the option. Take a row out a release after it came.
"""


def refuse_retired(verb: str, option: str = "") -> None:
    """Raise OrtuneError for a verb, or an option of one, that an earlier release had."""
    word = f"{verb} {option}".strip()
    if word in RETIRED:
        raise OrtuneError(f"`{word}` was removed", fix=RETIRED[word])


R = TypeVar("R", bound=Request)
F = TypeVar("F", bound=Request)
T = TypeVar("T")

_ARGUMENTS = "ortune.given"
_VERBOSE = "ortune.verbose"
_RENAMED = "ortune.renamed"
_OF_ONE_CALL = {"more", "json_to"}
"""Parameters of every verb that are no settings."""
_BAD = 2
"""Exit code of what failed: `cli.main.BAD`, whose module imports this."""
_OF_EVERY_FORM = {*_OF_ONE_CALL, "quiet"}
"""Parameters that say how the work is shown, whatever it is."""


def make_command(
    kind: type[R], forms: Mapping[str, type[F]] | None = None
) -> Callable[[Callable[[R | F], int | None]], click.Command]:
    """Make a command of a function that takes a request; it may return an exit code.

    The request's notes go to stderr unless the function replaces the sink. `forms`: flag -> the
    request that the function gets with it, in place of `kind`. Options of one are refused with
    another, and the command's arguments are those of all.
    """
    other_forms: Mapping[str, type[F]] = forms or {}

    def decorate(function: Callable[[R | F], int | None]) -> click.Command:
        def callback(more: bool, json_to: str | None, **values: Any) -> int | None:
            from ortune.cli.terminal import progress

            meta = click.get_current_context().meta
            meta[JSON], meta[_VERBOSE] = json_to, more
            quiet = bool(
                values.get("quiet") or values.get("verbose")
            )  # the runtime logs there too
            with progress.show_progress(quiet=quiet, verbose=more) as shown:
                meta[DISPLAY] = shown
                request = read_request(kind, other_forms, values, shown.show_event)
                with _limit_memory(request):
                    code = run_request(request, function)
                for text in meta.get(_RENAMED, ()):  # an error is two lines
                    write_remark(text)
                return code

        module = function.__module__
        return Verb(
            name=module.rpartition(".")[2].replace("_", "-"),
            callback=callback,
            params=[
                click.Option(
                    ["-v", "--verbose", "more"], is_flag=True, help="Log more to stderr."
                ),
                click.Option(
                    ["--json", "json_to"],
                    metavar="[FILE.json]",
                    callback=_check_writable,
                    help="Print one JSON object and nothing else, or write it to FILE.json.",
                ),
                *_make_parameters(kind, other_forms),
            ],
            request=kind,
            forms=other_forms,
            help=_join_help(kind, other_forms),
            short_help=(sys.modules[module].__doc__ or "").partition("\n")[0].rstrip("."),
        )

    return decorate


@contextmanager
def _limit_memory(request: Request) -> Iterator[None]:
    """Hold this process to the memory limit together with the workers that it starts."""
    if not isinstance(request, WorkerRequest):
        yield
        return
    from ortune.core.hardware import memory
    from ortune.measurement.allowance import limit_process

    fresh = [path for path in request.makes if not path.exists()]

    def give_up(why: str) -> None:
        for path in fresh:
            if not request.keeps(path):
                remove_path(path)
        write_remark(f"ortune: {why}\n  fix: give a higher --memory-limit")
        sys.stderr.flush()
        os._exit(_BAD)

    with limit_process(request.memory_limit or memory.count_allowed_bytes(), give_up):
        yield


def read_request(
    kind: type[R], forms: Mapping[str, type[F]], values: Mapping[str, Any], sink: Sink
) -> R | F:
    """Return the request of the flag that is given, or that of the command itself.

    Raises BadSettings: more arguments than it takes, or an option of another form;
    click.MissingParameter: what must be given is not.
    """
    ctx = click.get_current_context()
    flag = next((name for name in forms if values[name]), "")
    form = forms[flag] if flag else kind
    fields = {field.name: field for field in list_request_fields(form)}
    if flag:
        options = {
            item.name or "" for item in ctx.command.params if isinstance(item, click.Option)
        }
        foreign = options - {*fields, flag, *_OF_EVERY_FORM}
        refuse_options(
            foreign, f"cannot be combined with {_spell_flag(flag)}", "leave one of them out"
        )
    for word, other in forms.items() if not flag else ():
        foreign = {field.name for field in list_request_fields(other)} - fields.keys()
        fix = f"add {_spell_flag(word)}, or leave it out"
        refuse_options(foreign, f"needs {_spell_flag(word)}", fix)
    words = {name: value for name, value in values.items() if is_given(name)}
    if flag:
        for place, field in zip(_list_arguments(kind), _list_arguments(form), strict=False):
            value = words.pop(place.name, ())
            if isinstance(value, tuple) and len(value) > 1:
                raise BadSettings(
                    f"{_spell_flag(flag)} takes one {field.name}, and {len(value)} are given",
                    fix=f"leave out {', '.join(map(str, value[1:]))}",
                )
            words[field.name] = next(iter(value), None) if isinstance(value, tuple) else value
    for param in ctx.command.params:
        name = param.name or ""
        if name in fields and fields[name].is_required and words.get(name) in (None, ()):
            raise click.MissingParameter(ctx=ctx, param=param)
    return form(**{name: words[name] for name in fields if name in words}, sink=sink)


def _list_arguments(kind: type[Request]) -> list[RequestField]:
    """Return the fields that are arguments of the command."""
    return [
        field for field in list_request_fields(kind) if field.positional and not field.option.word
    ]


def _spell_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _join_help(kind: type[Request], forms: Mapping[str, type[Request]]) -> str:
    """Return the help of a command: its request's, then what each form adds, then examples."""
    body, example = read_help(kind)
    for flag, form in forms.items():
        text, further_example = read_help(form)
        if details := text.partition("\n\n")[2]:
            body += f"\n\nWith {_spell_flag(flag)}: {_lower_first(details)}"
        example += f"\n{further_example}"
    lines = "\n".join(f"  {line}" for line in example.splitlines())
    return f"{body}\n\n\b\nExample:\n{lines}"


def _make_parameters(
    kind: type[Request], forms: Mapping[str, type[Request]]
) -> Iterator[click.Parameter]:
    """Yield the parameters of a command, then each form's flag with what only that form takes."""
    fields = [field for field in list_request_fields(kind) if not field.option.python]
    names = {field.name for field in fields}
    for field in fields:
        param = _make_parameter(field)
        missing = [
            _spell_flag(flag)
            for flag, form in forms.items()
            if field.name not in {other.name for other in list_request_fields(form)}
        ]
        if missing and param.required and isinstance(param, click.Option):
            param.required = False  # `read_request` demands it, where the form needs it
            param.help = f"{param.help}  [required without {', '.join(missing)}]"
        yield param
    for flag, form in forms.items():
        summary = " ".join(read_help(form)[0].partition("\n\n")[0].split())
        text = f"Instead, {_lower_first(summary)}"
        yield click.Option([_spell_flag(flag), flag], is_flag=True, help=text)
        arguments = _list_arguments(form)
        for field in list_request_fields(form):
            if field.name in names or field in arguments or field.option.python:
                continue
            yield _make_parameter(field)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


class Verb(click.Command):
    """A command that takes a settings file in place of its arguments, and ``--json``.

    ``--json`` takes a file only if the next word ends in ``.json``. `forms` are flag -> what is
    asked with it.
    """

    def __init__(
        self, *, request: type[Request], forms: Mapping[str, type[Request]], **options: Any
    ) -> None:
        super().__init__(**options)
        self.request = request
        self.forms = forms
        kinds = (request, *forms.values())
        self._former = {k: v for kind in kinds for k, v in map_former_names(kind).items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a settings file, and bind the optional value of ``--json``."""
        ctx.meta.setdefault(_ARGUMENTS, list(args))
        if args and args[0].endswith(".toml"):
            args = self._apply_settings_file(ctx, Path(args[0]), args[1:])
        words: list[str] = []
        remaining = list(args)
        while remaining:
            word = remaining.pop(0)
            if word == "--":
                words += [word, *remaining]
                break
            word = self._replace_former(ctx, word)
            if word == "--json":
                names_file = bool(remaining) and remaining[0].endswith(".json")
                word = f"--json={remaining.pop(0) if names_file else STDOUT}"
            words.append(word)
        try:
            return super().parse_args(ctx, words)
        except click.NoSuchOption as error:
            refuse_retired(ctx.info_name or "", error.option_name)
            raise

    def _apply_settings_file(self, ctx: click.Context, path: Path, args: list[str]) -> list[str]:
        """Put a settings file behind `args`; its keys are fields, or options without dashes."""
        kept = [(item.name, item) for item in self.params if item.name not in _OF_ONE_CALL]
        keys = {word.strip("-").replace("-", "_"): k for k, item in kept for word in item.opts}
        former = map_former_names(self.request)
        values = settings.read_settings(path, dict(kept), {**keys, **former}, self._refuse_key)
        for key, value in values.items():
            values[key] = _check_type(path, key, value, dict(kept)[key])
        positional = [values.pop(k, ()) for k, item in kept if isinstance(item, click.Argument)]
        ctx.default_map = values
        return [*args, *(word for item in positional for word in _spell_words(item))]

    def _replace_former(self, ctx: click.Context, word: str) -> str:
        """Return an option as it is called now, and say so, where an earlier release had it."""
        old, sign, value = word.partition("=")
        options = {param.name: param for param in self.params if isinstance(param, click.Option)}
        if not old.startswith("--") or any(old in param.opts for param in options.values()):
            return word
        new = self._former.get(old[2:].replace("-", "_"))
        if new not in options:
            return word
        spelled = options[new].opts[-1]
        ctx.meta.setdefault(_RENAMED, []).append(f"{old} is called {spelled} now")
        return f"{spelled}{sign}{value}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options under headings."""
        of_form: dict[str, str] = {}
        shared = {field.name for field in list_request_fields(self.request)}
        for flag, form in self.forms.items():
            names = {flag, *(field.name for field in list_request_fields(form))} - shared
            words = [param.opts[-1] for param in self.params if param.name in names]
            of_form |= dict.fromkeys(words, _spell_flag(flag))
        write_panels(ctx, formatter, of_form)

    def _refuse_key(self, key: str) -> None:
        refuse_retired(self.name or "", f"--{key.replace('_', '-')}")


def _check_type(path: Path, key: str, value: Any, param: click.Parameter) -> Any:
    """Return a settings file's value for a parameter, as a list where that takes several.

    Click converts words; handed a number it may take it for the descriptor of an open file. Raises
    OrtuneError: it is of a type that the parameter does not take.
    """
    several = param.nargs == -1 or param.multiple
    items = value if several and isinstance(value, list) else [value]
    for item in items:
        settings.demand_typed(path, key, item, _list_accepted_types(param))
    return items if several else value


def _list_accepted_types(param: click.Parameter) -> tuple[type, ...]:
    if isinstance(param, click.Option) and param.is_flag:
        return (bool,)
    if isinstance(param.type, (click.types.IntParamType, click.types.FloatParamType)):
        return (int,) if isinstance(param.type, click.types.IntParamType) else (int, float)
    return (str,) if isinstance(param.type, click.Path) else (str, int, float)


def is_verbose() -> bool:
    """Whether the present command was given ``-v``."""
    return bool(click.get_current_context().meta[_VERBOSE])


def run_before_notes(run: Callable[[R], T], request: R) -> T:
    """Run the request of the present command, and send its notes when it is done.

    After an error none is sent, as an error is two lines. With ``-v`` each is sent at once.
    """
    notes: list[Event] = []

    def keep_note(event: Event) -> None:
        notes.append(event) if isinstance(event, Note) else request.sink(event)

    result = run(request if is_verbose() else replace(request, sink=keep_note))
    for note in notes:
        request.sink(note)
    return result


def refuse_options(names: Collection[str], problem: str, fix: str) -> None:
    """Raise BadSettings for a given option that does not go with what the command was asked."""
    for param in click.get_current_context().command.params:
        if param.name in names and is_given(param.name or ""):
            declined = click.get_current_context().params.get(param.name or "") is False
            word = next(iter(param.secondary_opts if declined else ()), param.opts[0])
            raise BadSettings(f"{word} {problem}", fix=fix)


def is_given(field: str) -> bool:
    """Whether a field of the present command was given, or left at its default."""
    source = click.get_current_context().get_parameter_source(field)
    return source is not click.core.ParameterSource.DEFAULT


def format_command_line() -> str:
    """Return the command line that repeats the present one."""
    ctx = click.get_current_context()
    return shlex.join(["ortune", ctx.info_name or "", *ctx.meta.get(_ARGUMENTS, [])])


def _spell_words(value: Any) -> Iterable[str]:
    return map(str, value if isinstance(value, (list, tuple)) else [value])


def _check_writable(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse a file that cannot be written before the work begins, not after it."""
    if path not in (None, STDOUT):
        check_output_file(Path(path or ""), force=True)
    return path


def _make_parameter(field: RequestField) -> click.Parameter:
    option = field.option
    several = (
        field.reader.several if field.reader else not field.kinds.isdisjoint((Sequence, tuple))
    )
    if field.positional and not option.word:
        return click.Argument(
            [field.name],
            type=_select_click_type(field),
            required=field.is_required,
            nargs=-1 if several else 1,
            metavar=option.metavar or None,
            callback=_make_converter(field),
        )
    word = option.word or f"--{field.name.replace('_', '-')}"
    flag = bool in field.kinds
    if flag and field.default is not False and not option.word:
        word = f"{word}/--no-{word[2:]}"
    default = _make_click_default(field, several)
    defaults = {} if field.is_required else {"default": default}  # to click, None is a default too
    note = f"  [default: {option.shown}]" if option.shown else ""
    return click.Option(
        [*word.split(), field.name],
        type=None if flag else _select_click_type(field),
        is_flag=flag,
        **defaults,
        required=field.is_required,
        hidden=option.hidden,
        multiple=several,
        metavar=option.metavar or None,
        show_default=not note and default not in (None, False, 0, "", ()),
        help=field.help + note,
        callback=_make_converter(field),
    )


def _make_click_default(field: RequestField, several: bool) -> Any:
    if field.is_required:
        return None
    if field.reader is not None and not (several or isinstance(field.default, str | None)):
        return field.reader.spell(field.reader.read(field.default)) or None
    return (field.default,) if several and isinstance(field.default, str) else field.default


def _select_click_type(field: RequestField) -> click.ParamType[Any]:
    if field.reader is not None:
        return click.STRING
    if field.choices:
        return click.Choice([str(choice) for choice in field.choices])
    if float in field.kinds:
        return click.FLOAT
    if int in field.kinds:
        return click.INT
    if Path in field.kinds and Callable not in field.kinds:
        return click.Path(path_type=Path)
    return click.STRING


def _make_converter(field: RequestField) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback that checks and converts a value, so that errors name the option."""

    def read(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if field.reader is None:
            field.option.check(param.opts[0], value)
            return value
        try:
            converted = field.reader.read(value)
        except BadSettings as error:
            raise BadSettings(f"{param.opts[0]}: {error.what}", fix=error.fix) from None
        field.option.check(param.opts[0], converted)
        if converted and isinstance(field.reader, Libraries):
            from ortune.backends.cpu import Cpu

            Cpu(custom_ops=converted).missing()
        return converted

    return read
