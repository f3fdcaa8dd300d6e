"""Verdicts on hand-made ceilings: each limit is found where it must be, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortune.analysis.profiling.roofline import (
    BOUNDS,
    compute_roofs,
    find_arithmetic,
    sum_time_by_bound,
    verdicts,
)
from ortune.core.profile import Ceilings, Kernel, Profile
from ortune.core.session import Operand

MB = 2**20
CEILINGS = Ceilings(
    {"float32": 100e9, "int8": 400e9},
    20e9,
    250.0,
    2,
    read_bandwidth=40e9,
    cache_bandwidth=100e9,
    cache_bytes=32 * MB,
)


def tensor(*shape: int, dtype: str = "float32", constant: bool = False) -> Operand:
    count = 1
    for side in shape:
        count *= side
    each = {"float32": 4, "int64": 8, "float16": 2, "int32": 4}.get(dtype, 1)
    return Operand(dtype, shape, count * each, constant)


def kernel(
    op: str = "MatMul",
    inputs: tuple[Operand, ...] = (),
    outputs: tuple[Operand, ...] = (),
    *,
    flops: int | None = None,
    ns: float = 1e6,
    kind: str = "compute",
    calls: int = 1,
) -> Kernel:
    return Kernel(op, op, "", "cpu", (op,), kind, "", ns, calls, flops, inputs, outputs)


def profile(*kernels: Kernel, ceilings: Ceilings | None = CEILINGS) -> Profile:
    total = sum(one.time_ns for one in kernels)
    return Profile("m.onnx", "cpu", kernels, 10, total, total, ceilings=ceilings)


SIDE = 1024
PRODUCT = kernel(
    "MatMul",
    (tensor(SIDE, SIDE), tensor(SIDE, SIDE, constant=True)),
    (tensor(SIDE, SIDE),),
    flops=2 * SIDE**3,
    ns=43e6,
)
HUGE = 64 * MB // 4
COPY = kernel("Add", (tensor(HUGE),), (tensor(HUGE),), flops=HUGE, ns=10e6)
SMALL = kernel("Relu", (tensor(SIDE, SIDE),), (tensor(SIDE, SIDE),), flops=SIDE**2, ns=1e5)
SCALAR = kernel("Add", (tensor(), tensor()), (tensor(),), flops=1, ns=500)


@pytest.mark.parametrize(
    ("given", "bound", "ideal_ns"),
    [
        (PRODUCT, "compute", 2 * SIDE**3 / 100),
        (COPY, "bandwidth", 128 * MB / 20),
        (SMALL, "cache", 8 * MB / 100),
        (SCALAR, "overhead", 250),
    ],
)
def test_what_binds_a_kernel(given: Kernel, bound: str, ideal_ns: float) -> None:
    (found,) = verdicts(profile(given))
    assert found.bound == bound
    assert found.ideal_ns == pytest.approx(ideal_ns)
    assert found.share == pytest.approx(ideal_ns / given.time_ns)
    assert found.gain_ns == pytest.approx(given.time_ns - ideal_ns)
    assert bound in str(found)


def test_constants_that_do_not_all_fit_the_cache_come_from_memory_in_every_run() -> None:
    """One row by a matrix reads each weight once: the runtime can only wait for memory."""
    row = kernel(
        inputs=(tensor(1, SIDE), tensor(SIDE, SIDE, constant=True)),
        outputs=(tensor(1, SIDE),),
        flops=2 * SIDE**2,
    )
    assert verdicts(profile(row))[0].bound == "cache"
    many = verdicts(profile(*[row] * 9))
    assert {one.bound for one in many} == {"bandwidth"}
    assert many[0].ideal_ns == pytest.approx(4 * MB / 40)


def test_a_loop_finds_its_constants_in_the_cache_after_the_first_call() -> None:
    row = kernel(
        inputs=(tensor(1, SIDE), tensor(SIDE, SIDE, constant=True)),
        outputs=(tensor(1, SIDE),),
        calls=10,
    )
    found = compute_roofs(row, CEILINGS, cold=True)
    assert found.bandwidth == pytest.approx(4 * MB / 40)
    assert found.cache == pytest.approx((9 * 4 * MB + 10 * 8 * SIDE) / 100)
    assert found.overhead == 2500


@pytest.mark.parametrize("kind", ["cast", "copy", "reorder", "transpose", "quantize", "shape"])
def test_all_of_a_removable_kernels_time_may_be_gained(kind: str) -> None:
    (found,) = verdicts(profile(replace(SMALL, kind=kind)))
    assert found.removable and found.gain_ns == SMALL.time_ns
    assert "removing this gains at most 0.1 ms" in str(found)


def test_a_kernel_above_its_roof_has_nothing_to_gain() -> None:
    (found,) = verdicts(profile(replace(COPY, time_ns=1e6)))
    assert (found.share, found.gain_ns) == (1.0, 0.0)


def test_without_tensors_nothing_is_claimed_and_without_ceilings_nothing_said() -> None:
    (found,) = verdicts(profile(kernel("Softmax")))
    assert (found.bound, found.gain_ns) == ("unknown", 0.0)
    assert found.ideal_ns == found.kernel.time_ns, "no roof, no room below it"
    assert verdicts(profile(SMALL, ceilings=None)) == ()


def test_an_embedding_reads_the_rows_it_returns_not_the_table() -> None:
    table = tensor(30_000, 384, constant=True)
    rows = kernel("Gather", (table, tensor(8, dtype="int64")), (tensor(8, 384),))
    assert verdicts(profile(rows))[0].roofs.bandwidth == 0
    assert verdicts(profile(rows))[0].bound == "overhead"


def test_a_view_moves_nothing() -> None:
    (found,) = verdicts(profile(kernel("Reshape", (tensor(HUGE),), (tensor(HUGE),), kind="shape")))
    assert found.bound == "overhead" and found.flops_per_byte is None


@pytest.mark.parametrize(
    ("op", "dtype", "wanted"),
    [
        ("MatMul", "float32", "float32"),
        ("MatMul", "bfloat16", "bfloat16"),
        ("Conv", "uint8", "int8"),
        ("QLinearConv", "uint8", "int8"),
        ("MatMulIntegerToFloat", "uint8", "int8"),
        ("DynamicQuantizeMatMul", "float32", "int8"),
        ("MatMulNBits", "float32", "int8"),
    ],
)
def test_the_arithmetic_of_a_kernel(op: str, dtype: str, wanted: str) -> None:
    assert find_arithmetic(kernel(op, (tensor(4, 4, dtype=dtype), tensor(4)))) == wanted


def test_times_by_bound_sum_to_all_kernels() -> None:
    found = sum_time_by_bound(verdicts(profile(PRODUCT, COPY, SMALL, SCALAR, kernel("Softmax"))))
    assert tuple(found) == BOUNDS
    assert list(found.values()) == [43e6, 10e6, 1e5, 500, 1e6]


def test_numbers_of_the_plot() -> None:
    (found,) = verdicts(profile(PRODUCT))
    assert found.flops_per_byte == pytest.approx(2 * SIDE**3 / (12 * MB))
    assert found.flops_per_second == pytest.approx(2 * SIDE**3 / 43e-3)
