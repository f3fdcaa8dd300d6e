"""Find the verb and run it; what a person can act on is two lines and an exit code.

Exit codes: 0 done, 1 the honest answer is no, 2 bad input or a missing part, 3 interrupted with a
partial result.
"""

import errno
import importlib
import logging
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence

import click

from ortune.cli.terminal.command import refuse_retired
from ortune.cli.terminal.ending import handle_interruptions
from ortune.cli.terminal.output import (
    outlive_reader,
    print_text,
    write_error,
)
from ortune.cli.terminal.panels import COMMON
from ortune.core.errors import (
    NoPlanFits,
    OrtuneError,
    escape_control_chars,
    find_nearest,
    make_unexpected_error,
    shorten_text,
)
from ortune.core.plugins import catalog, sources
from ortune.core.termination import end_soon

DONE, NO, BAD, INTERRUPTED = 0, 1, 2, 3
GROUPS: Mapping[str, Sequence[str]] = {
    "Start": ("demo", "doctor"),
    "Optimize": ("optimize", "ui", "report", "explain", "pack"),
    "By hand": ("convert", "apply", "calibrate", "sensitivity", "tune", "export"),
    "Look": ("inspect", "diff", "profile", "verify", "extract"),
    "Measure": ("bench", "compare", "loadtest", "cost"),
    "Run": ("run", "serve", "recheck"),
}
"""Heading of the help -> its verbs; those of plugin packages follow under one of their own."""
_INT8 = "ortune convert MODEL OUT --precision int8 --data SOURCE"
_FP16 = "ortune convert MODEL OUT --precision fp16"
OFTEN_TRIED: Mapping[str, str] = {
    "ortune optimize MODEL --data SOURCE": "run-search search auto autotune accelerate speedup",
    f"{_INT8}`, or, to learn what pays, `ortune optimize MODEL --data SOURCE": "quantize quant"
    " quantise int8 ptq qdq",
    "ortune optimize MODEL --data SOURCE --prefer size": "compress shrink prune sparsify distill",
    f"{_FP16}": "fp16 float16 half cast",
    f"{_FP16.replace('16', '32')}": "fp32 float32 dequantize",
    f"{_FP16.replace('fp16', 'bf16')}": "bf16 bfloat16",
    f"{_INT8.replace('int8', 'int4')}": "int4",
    f"{_INT8.replace('int8', 'fp8')}": "fp8 float8",
    "ortune apply MODEL simplify -o OUT": "simplify sim onnxsim slim fold fuse clean",
    "ortune export FILE.py:NAME -o model.onnx": "export-onnx torch pytorch to-onnx onnx",
    "ortune bench MODEL --on cpu,openvino": "benchmark run-bench perf measure time latency speed",
    "ortune verify REFERENCE OTHER --data SOURCE": "evaluate eval test validate accuracy check"
    " score compare-models compare-outputs",
    "ortune pack RUN -o model.ortune`, then `ortune serve model.ortune": "deploy package bundle"
    " save",
    "ortune run BUNDLE INPUT": "predict infer inference exec",
    "ortune inspect MODEL": "info show view summary stats describe print lint list-ops",
    "ortune doctor": "version env-info backends providers devices list hardware setup install",
    "ortune sensitivity MODEL --data SOURCE": "mixed-precision layers ablate",
    "ortune loadtest BUNDLE": "stress load perf-analyzer",
    "ortune explain RUN": "why history status",
    "ortune extract MODEL --to TENSOR -o OUT": "cut split subgraph",
    "ortune VERB --help": "help man usage",
}
"""Command -> words that people try in its place: names of other tools' commands and of tasks."""
_NOT_VERBS = {"main"}
_LONGEST = 1500
"""Characters of a line of an error: what a file or a word puts into it may be of any length."""


class Verbs(click.Group):
    """The files of every ``cli`` folder, ours and those of installed plugin packages.

    A file is imported when its verb is used.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order of the help, without importing one."""
        return [verb for verbs in group_verbs().values() for verb in verbs]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs in groups, each by the first line of its file: none is imported."""
        modules = list_verb_modules()
        width = max(map(len, modules))
        for heading, verbs in group_verbs().items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(verb.ljust(width), _read_summary(modules[verb])) for verb in verbs]
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, then the program's options, then those that most verbs take."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)
        with formatter.section("Options of most verbs"):
            formatter.write_dl([*COMMON.items()])
        formatter.write("\nWhich command do I need, by task: docs/commands.md of the sources\n")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        module = list_verb_modules().get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or raise OrtuneError with those that come close."""
        verbs = self.list_commands(ctx)
        if args[0] not in verbs and not args[0].startswith("-") and not ctx.resilient_parsing:
            refuse_retired(args[0])
            raise OrtuneError(f"no verb '{args[0]}'", fix=_suggest_verb(args[0], verbs))
        return super().resolve_command(ctx, args)


def _suggest_verb(word: str, verbs: Sequence[str]) -> str:
    """Return the command that does what a word asks for, or the verbs that come close."""
    tried = {alias: command for command, words in OFTEN_TRIED.items() for alias in words.split()}
    near = find_nearest(word.lower().strip("-_").replace("_", "-"), [*tried, *verbs])
    if near and near[0] in tried:
        return f"write `{tried[near[0]]}`; `ortune --help` lists all verbs"
    near = [verb for verb in near if verb in verbs]
    question = f"did you mean {' or '.join(f'`ortune {verb}`' for verb in near)}? " if near else ""
    return f"{question}`ortune --help` lists all verbs"


def list_verb_modules() -> dict[str, str]:
    """Return verb -> module."""
    return {k: path for k, path in catalog.map_modules("cli").items() if k not in _NOT_VERBS}


def group_verbs() -> dict[str, list[str]]:
    """Return heading -> verbs; those that stand in no group are of installed plugin packages."""
    modules = list_verb_modules()
    groups = {heading: [*verbs] for heading, verbs in GROUPS.items()}
    further = sorted(modules.keys() - {verb for verbs in groups.values() for verb in verbs})
    return {**groups, **({"Of plugins": further} if further else {})}


def _read_summary(module: str) -> str:
    """Return the first line of a module's docstring, without its stop."""
    file = sources.find_module_file(module)
    match = re.match(r'"""(.+?)\.?(?:"""|\n)', file.read_text(encoding="utf-8")) if file else None
    return match[1] if match else ""


def _print_version(ctx: click.Context, param: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        from ortune.core.version import __version__, read_commit

        built = read_commit()
        print_text(f"ortune {__version__}{f' (commit {built})' if built else ''}")
        ctx.exit()


@click.command(cls=Verbs, no_args_is_help=False, invoke_without_command=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the commit.",
)
@click.pass_context
def root(ctx: click.Context) -> None:
    """Find the fastest version of an ONNX model that keeps its answers, and prove it.

    \b
    Start with:
      ortune demo
      ortune optimize model.onnx --data samples/ --budget "top1>=base-0.01"
    """
    if ctx.invoked_subcommand is None:
        with outlive_reader(sys.stdout):
            click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Without words it is that of the program, which ends soon, whatever threads of it still do.
    """
    # What a shell closed (``>&-``) is opened on nothing: a file would take its number otherwise.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
    if argv is not None:
        return _run_command(list(argv))
    with handle_interruptions(INTERRUPTED):
        code = _run_command(sys.argv[1:])
    end_soon(code)
    return code


def _run_command(args: list[str]) -> int:
    # It warns of what our own check refuses: an error is two lines.
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    name, stdout = "ortune", sys.stdout
    try:
        verb = next((arg for arg in args if not arg.startswith("-")), "")
        name = f"ortune {verb}" if verb in list_verb_modules() else name
        code = root.main(args, prog_name="ortune", standalone_mode=False)
        with outlive_reader(sys.stdout):
            sys.stdout.flush()
        return int(code or DONE)
    except OrtuneError as error:
        code = _print_error(name, error.what, error.fix)
        return NO if isinstance(error, NoPlanFits) else code
    except click.UsageError as error:
        return _print_error(name, _describe_usage_error(error), _usage_fix(error, name))
    except click.ClickException as error:
        return _print_error(name, error.format_message(), f"see `{name} --help`")
    except (click.Abort, KeyboardInterrupt):
        write_error(f"{name}: interrupted")
        return INTERRUPTED
    except OSError as error:
        return _report_os_error(name, error)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return (
            DONE  # help that nobody reads: click puts a stream of its own there, and ends with 1
        )
    except MemoryError:
        return _print_error(
            name, "out of memory", "close other programs, or use smaller or fewer samples"
        )
    except Exception as error:
        # Tell of a bug in two lines; its traceback goes to a file, with ``-v`` to stderr first.
        if {"-v", "--verbose"} & set(args):
            write_error("".join(traceback.format_exception(error)))
        text = "".join((shlex.join(["ortune", *args]), "\n\n", *traceback.format_exception(error)))
        try:
            number, log = tempfile.mkstemp(prefix="ortune-traceback-", suffix=".txt")
            with os.fdopen(number, "wb") as file:
                file.write(text.encode(errors="backslashreplace"))
        except OSError:  # no room for it
            log = "what -v shows"
        fix = f"report it with {log}, which has the traceback, and with these files where you may"
        problem = make_unexpected_error(error, args, fix)
        return _print_error(name, problem.what, problem.fix)


def _print_error(name: str, problem: str, fix: str) -> int:
    text = (
        f"{name}: {_flatten_text(escape_control_chars(problem))}\n  fix: "
        f"{_flatten_text(escape_control_chars(fix))}"
    )
    write_error(text)
    return BAD


def _flatten_text(text: str) -> str:
    return shorten_text(" ".join(text.split()), _LONGEST)


def _describe_usage_error(error: click.UsageError) -> str:
    text = error.message or error.format_message()
    if isinstance(error, click.MissingParameter):
        hint = error.param.get_error_hint(error.ctx) if error.param and error.ctx else ""
        return f"{hint} is missing".strip().replace("'", "")
    if isinstance(error, click.NoSuchOption):
        return f"no option {error.option_name}"
    if isinstance(error, click.BadParameter):
        return error.format_message().rstrip(".").removeprefix("Invalid value for ")
    return text[:1].lower() + text[1:].rstrip(".")


def _usage_fix(error: click.UsageError, name: str) -> str:
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"did you mean {' or '.join(sorted(error.possibilities))}? see `{name} --help`"
    if isinstance(error, click.BadParameter) and isinstance(
        choice := getattr(error.param, "type", None), click.Choice
    ):
        words = ", ".join(map(str, choice.choices))
        return f"use {'one of ' if len(choice.choices) > 1 else ''}{words}"
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        metavar = error.param.metavar or error.param.type.name.upper()
        return f"give {error.param.opts[0]} {metavar}; `{name} --help` shows an example"
    if error.ctx is not None:
        usage = error.ctx.get_usage().removeprefix("Usage: ")
        return f"write `{_flatten_text(usage)}`; `{name} --help` shows an example"
    return f"see `{name} --help`"


def _report_os_error(name: str, error: OSError) -> int:
    if error.errno == errno.EPIPE:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    fixes = {
        errno.ENOSPC: "free some space, or write elsewhere with -o",
        errno.EACCES: "choose a place you may write to with -o, or change its permissions",
        errno.EROFS: "choose a place you may write to with -o",
        errno.ENOENT: "check the path",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }
    where = f"{error.filename}: " if error.filename else ""
    problem = error.strerror or str(error) or type(error).__name__
    fix = fixes.get(error.errno or 0, "check the path and try again")
    return _print_error(name, f"{where}{problem[:1].lower()}{problem[1:]}", fix)


if __name__ == "__main__":
    sys.exit(main())
