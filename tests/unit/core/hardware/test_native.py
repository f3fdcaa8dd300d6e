"""Which narrow arithmetic is native, by the CPU's flags."""

from __future__ import annotations

import pytest

from ortune.core.hardware.native import native, native_types


@pytest.mark.parametrize(
    ("flags", "found", "types"),
    [
        ("", set(), set()),
        ("avx2 avx512f", set(), set()),
        ("avx2 avx_vnni", {"int8-vnni"}, {"int8"}),
        ("avx512_vnni avx512_bf16", {"int8-vnni", "bf16-avx512"}, {"int8", "bf16"}),
        ("amx_int8 amx_bf16 avx512_fp16", {"int8-amx", "bf16-amx", "f16-avx512"}, None),
        ("amx_fp16", {"f16-amx"}, {"f16"}),
        ("asimddp i8mm bf16 asimdhp", {"int8-arm", "bf16-arm", "f16-arm"}, None),
    ],
)
def test_flags_say_what_is_native(flags: str, found: set[str], types: set[str] | None) -> None:
    assert native(flags.split()) == found
    assert native_types(flags.split()) == ({"int8", "bf16", "f16"} if types is None else types)
