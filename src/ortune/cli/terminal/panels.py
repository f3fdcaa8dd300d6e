"""The headings under which the help of verbs lists options: the words of all, in one place."""

import re
import textwrap
from collections.abc import Mapping

import click

COMMON: Mapping[str, str] = {
    "-v, --verbose": "Log more to stderr.",
    "--json [FILE.json]": "Print one JSON object and nothing else, or write it to FILE.json and "
    "print the tables too.",
    "--force": "Overwrite an existing output.",
    "--custom-ops LIB": "Library of custom operators, or a Python module that provides one. Its "
    "code is run.",
    "--memory-limit SIZE": "Most memory that all processes of ortune may use together, such as "
    "4G. Default: most of the free memory.",
    "--unpack-limit SIZE": "Most that .npz and .parquet files may decompress to, such as 8G. "
    "Default: 1 GiB, or 100 times their size if that is more.",
}
"""Options that many verbs take, as `ortune --help` explains them; a verb only names them."""
_WORDS = {
    "Data": "data labels calibration ranges-from augment shape range batch samples sequence state",
    "Accuracy": "budget evaluate ignore-output strict tolerance simulate bisect check slo"
    " threshold exclude-from",
    "Time and target": "time on baseline workload target-speedup processes environment runtime"
    " target threads sets runs timed beside-load self-check",
    "Load": "concurrency rate requests repeats warm-up goal clients client connections timeout",
    "Prices": "price load overhead gpus effort hours-per-day within",
    "Precision": "precision format per-channel reduce-range dynamic-conv opt-level step by"
    " observer compare",
    "Pictures in, labels out": "fold-preprocess picture-size fold-postprocess",
    "From PyTorch": "weights input dynamic state-dict-key unsafe-pickle exporter opset",
    "Server": "host http-port grpc-port http grpc protocol serve instances max-batch"
    " max-delay-us preferred max-queue drain watch explicit model",
    "Access": "token-file tls-cert tls-key ca max-body allow-custom-ops require-signature sign",
    "Result": "out prefer max-size max-memory portable batches max-latency devices fixed-shapes"
    " plan preprocess per-backend unconfirmed for original compiled licence plot markdown page"
    " list no-samples node tensorrt-cache tensorrt-version",
}
_PLACES = {
    f"--{word}": (panel, place)
    for place, (panel, word) in enumerate(
        (panel, word) for panel, words in _WORDS.items() for word in words.split()
    )
}
_LAST = len(_PLACES)
_FEW = 6
"""Options up to which a verb lists them under one heading."""
_LONG = 28
"""Characters of an option with its value, beyond which its text begins on the next line."""


def write_panels(
    ctx: click.Context, formatter: click.HelpFormatter, forms: Mapping[str, str]
) -> None:
    """Write a verb's options under headings; `forms` has the flag that one goes with alone."""
    options = list_own(ctx.command)
    records = {word: option.get_help_record(ctx) or ("", "") for word, option in options.items()}
    lengths = [len(name) for name, _ in records.values()]
    width = max((length for length in lengths if length <= _LONG), default=0)
    panels: dict[str, list[tuple[str, str]]] = {}
    for word in sorted(options, key=lambda word: _find_place(word, forms)[1]):
        listed = len(options) > _FEW or word in forms
        heading = _find_place(word, forms)[0] if listed else "Options"
        name, text = records[word]
        panels.setdefault(heading, []).append((name.ljust(width), text))
    for heading, rows in panels.items():
        with formatter.section(heading):
            formatter.write_dl(rows, col_max=width)
    words = {word for param in ctx.command.params for word in param.opts}
    names = [text for text in COMMON if _find_word(text) in words]
    with formatter.section("Common options, explained by `ortune --help`"):
        # An option and its value stay on one line.
        text = ", ".join(name.replace(" ", "\0") for name in [*names, "--help"])
        for line in textwrap.wrap(text, formatter.width - 4, break_on_hyphens=False):
            formatter.write(f"  {line}\n".replace("\0", " "))


def list_own(command: click.Command | None) -> dict[str, click.Option]:
    """Return the options that the help of a verb explains, by their long words."""
    common = {_find_word(text) for text in COMMON}
    shown = [p for p in command.params if isinstance(p, click.Option)] if command else []
    words = {max(option.opts, key=len): option for option in shown if not option.hidden}
    return {word: option for word, option in words.items() if word not in common}


def _find_word(text: str) -> str:
    return next(part for part in re.split("[ ,]+", text) if part.startswith("--"))


def _find_place(word: str, forms: Mapping[str, str]) -> tuple[str, int]:
    if flag := forms.get(word):
        return f"With {flag}", _LAST + 1
    return _PLACES.get(word, ("Advanced", _LAST))
