"""Which output of a model is the state that an input takes at the next step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.data import checks

_TOKEN = re.compile(r"[A-Za-z]+|\d+|[^A-Za-z\d]+")
_AFTER = {
    "present": ("past", "past_key_values"),
    "out": ("in", "input", ""),
    "output": ("input", "in", ""),
    "new": ("old", "prev", ""),
    "next": ("prev", "previous", ""),
    "updated": ("",),
    "final": ("initial", "init", ""),
    "n": ("0", ""),
}
"""Word in an output's name -> words in its place, or none, in the input's."""
_CACHE = re.compile(r"past|cache|kv", re.IGNORECASE)
_SHOWN = 12


@dataclass(frozen=True)
class StatePair:
    """A state: the output of a step that is an input of the next."""

    output: str
    input: str

    def __str__(self) -> str:
        return f"{self.output}:{self.input}"

    @property
    def grows(self) -> bool:
        """Whether its name says that it gets longer with every step, from nothing."""
        return bool(_CACHE.search(self.input))


def find_state_pairs(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[StatePair, ...]:
    """Pair outputs with inputs of one type and shape by the common conventions of their names.

    ``present.0.key`` -> ``past_key_values.0.key``, ``stateN`` -> ``state``, ``hn`` -> ``h0``,
    ``h_out`` -> ``h_in`` and the like. In the order of the inputs.

    Raises:
        BadData: There is none.
    """
    specs, outputs_by_input = checks.specs_by_name(inputs), dict[str, str]()
    for output in outputs:
        for name in _list_input_names(output.name):
            if (
                name in specs
                and name not in outputs_by_input
                and not _has_mismatch(output, specs[name])
            ):
                outputs_by_input[name] = output.name
                break
    if not outputs_by_input:
        raise BadData(
            "no output is named like the state of an input: Got outputs "
            f"{_format_names(outputs)}; "
            f"inputs {_format_names(inputs)}",
            fix="name the states: --state OUT:IN; a model without state needs no --sequence",
        )
    return tuple(
        StatePair(outputs_by_input[spec.name], spec.name)
        for spec in inputs
        if spec.name in outputs_by_input
    )


def match_states(inputs: Tensors, outputs: Tensors) -> tuple[StatePair, ...]:
    """Pair what one run took and gave, as `find_state_pairs` does; perhaps none."""
    sides = [
        [TensorSpec(name, str(a.dtype), (None,) * a.ndim) for name, a in side.items()]
        for side in (inputs, outputs)
    ]
    try:
        return find_state_pairs(*sides)
    except BadData:
        return ()


def parse_state_pairs(
    texts: Sequence[str], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[StatePair, ...]:
    """Read pairs such as ``h_out:h`` or ``present.*:past.*``; a star stands for the same twice.

    Raises:
        BadData: A name is unknown, type or shape differ, or a tensor is in two pairs.
    """
    pairs: list[StatePair] = []
    for text in texts:
        for pair in _parse_pair(text, inputs, outputs):
            output_spec = checks.specs_by_name(outputs)[pair.output]
            input_spec = checks.specs_by_name(inputs)[pair.input]
            if _has_mismatch(output_spec, input_spec):
                raise BadData(
                    f"state '{pair}': the output is {output_spec.dtype} "
                    f"{checks.format_shape(output_spec.shape)}, "
                    f"the input {input_spec.dtype} {checks.format_shape(input_spec.shape)}",
                    fix="pair an output with the input of its type and shape",
                )
            if pair not in pairs:
                pairs.append(pair)
    for kind, names in (
        ("output", [pair.output for pair in pairs]),
        ("input", [pair.input for pair in pairs]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadData(f"{kind} '{twice}' is in two states", fix="give one --state for it")
    return tuple(pairs)


def _list_input_names(name: str) -> Iterator[str]:
    """Yield what an input may be called that takes this output at the next step."""
    tokens = _TOKEN.findall(name)
    for at, token in enumerate(tokens):
        before, after = tokens[:at], tokens[at + 1 :]
        if not any(part.isalpha() for part in before + after) and token != "present":
            continue  # output_1 is no state of input_1
        for word in _AFTER.get(token.lower(), ()):
            yield "".join(before) + _match_case(word, token) + "".join(after)
            if not word:
                yield "".join(before[:-1] + after)
                yield "".join(before + after[1:])
    for ends in (("Out", "In"), ("N", ""), ("N", "0"), ("n", "0"), ("n", "")):
        if name.endswith(ends[0]) and len(name) > len(ends[0]):
            yield name.removesuffix(ends[0]) + ends[1]


def _match_case(word: str, like: str) -> str:
    if like.isupper() and len(like) > 1:
        return word.upper()
    return word.capitalize() if like[0].isupper() else word


def _parse_pair(
    text: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Iterator[StatePair]:
    ins, outs = [spec.name for spec in inputs], [spec.name for spec in outputs]
    splits = [(text[:at], text[at + 1 :]) for at, sign in enumerate(text) if sign == ":"]
    if not splits or not all(any(part) for part in zip(*splits, strict=True)):
        raise BadData(f"cannot read state '{text[:80]}'", fix="write --state OUTPUT:INPUT")
    if "*" in text:
        pairs = [pair for out, to in splits for pair in _expand_star(out, to, ins, outs)]
        if not pairs:
            raise BadData(
                f"state '{text[:80]}' fits no output and input: Got outputs "
                f"{_format_names(outputs)}; "
                f"inputs {_format_names(inputs)}",
                fix="a * stands for the same part of both names",
            )
        yield from pairs
        return
    out, to = next(
        (pair for pair in splits if pair[0] in outs and pair[1] in ins),
        next((pair for pair in splits if pair[0] in outs or pair[1] in ins), splits[0]),
    )
    for kind, name, specs in (("output", out, outputs), ("input", to, inputs)):
        if name not in [spec.name for spec in specs]:
            raise BadData(
                f"state '{text[:80]}': the model has no {kind} '{name[:60]}'",
                fix=f"its {kind}s are: {_format_names(specs)}",
            )
    yield StatePair(out, to)


def _expand_star(
    out: str, to: str, ins: Sequence[str], outs: Sequence[str]
) -> Iterator[StatePair]:
    if out.count("*") != 1 or to.count("*") != 1:
        return
    form = re.compile(re.escape(out).replace(r"\*", "(.*)"))
    for name in outs:
        match = form.fullmatch(name)
        if match and (target := to.replace("*", match[1])) in ins:
            yield StatePair(name, target)


def _has_mismatch(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether type, rank or a fixed dimension differ; what is not known fits."""
    if first.dtype and second.dtype and first.dtype != second.dtype:
        return True
    if first.shape is None or second.shape is None:
        return False
    if len(first.shape) != len(second.shape):
        return True
    both = zip(first.shape, second.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in both)


def _format_names(specs: Sequence[TensorSpec]) -> str:
    names = [spec.name for spec in specs]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
