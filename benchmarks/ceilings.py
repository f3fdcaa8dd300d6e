"""Compare the ceilings that ortune measures with a GEMM and copies that know nothing of it.

    python -m benchmarks.ceilings [--threads 1] [--rounds 5]

Independent: a float32 product by torch and by numpy's OpenBLAS in a process of their own, and
three loops in C with POSIX threads: `y = max(x, 0)`, which is the kernel's own traffic; `memcpy`,
which streams past the cache; a maximum, which only reads. Memory is as the runtime has it: what is
read in huge pages (numpy asks for them), what is written in ordinary ones; `huge-relu` has both in
huge pages, for what the ordinary ones cost. Both sides take turns, the best of each counts:
whatever else runs lowers both. Each ceiling is compared with the fastest of its independent
rivals; the others are kept in the result beside it. Writes results/ceilings.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.backends.cpu import Cpu
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.peaks import last_level_cache, measure

RESULT = Path(__file__).parent / "results" / "ceilings.json"
WITHIN = 0.15

C = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#define ROUNDS 100
static size_t count; static int threads; static const char *kind;
static float *x, *y; static double sums[64]; static pthread_barrier_t gate;
static double now(void) {
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec;
}
static void relu(const float *restrict a, float *restrict b, size_t n) {
  for (size_t i = 0; i < n; i++) b[i] = a[i] > 0.f ? a[i] : 0.f;
}
static float widest(const float *a, size_t n) {
  float m[64] = {0};
  for (size_t i = 0; i + 64 <= n; i += 64)
    for (int k = 0; k < 64; k++) m[k] = a[i + k] > m[k] ? a[i + k] : m[k];
  float top = 0; for (int k = 0; k < 64; k++) top = m[k] > top ? m[k] : top;
  return top;
}
static void *work(void *arg) {
  long id = (long)arg; size_t part = count / threads; float *a = x + id * part, *b = y + id * part;
  for (size_t i = 0; i < part; i++) { a[i] = (float)(i % 7) - 3.f; b[i] = 0.f; }
  for (int r = 0; r < ROUNDS; r++) {
    pthread_barrier_wait(&gate);
    if (kind[0] == 'r' || kind[0] == 'h') relu(a, b, part);
    else if (kind[0] == 'm') memcpy(b, a, part * sizeof *a);
    else sums[id] += widest(a, part);
    pthread_barrier_wait(&gate);
  }
  return NULL;
}
int main(int argc, char **argv) {
  kind = argv[1]; count = strtoull(argv[2], 0, 10) / sizeof(float); threads = atoi(argv[3]);
  x = aligned_alloc(1 << 21, count * sizeof *x); y = aligned_alloc(1 << 21, count * sizeof *y);
  madvise(x, count * sizeof *x, MADV_HUGEPAGE);
  if (kind[0] == 'h') madvise(y, count * sizeof *y, MADV_HUGEPAGE);
  pthread_t ids[64]; pthread_barrier_init(&gate, NULL, threads + 1);
  for (long i = 0; i < threads; i++) pthread_create(&ids[i], NULL, work, (void *)i);
  double best = 1e9;
  for (int r = 0; r < ROUNDS; r++) {
    double start = now(); pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate); double taken = now() - start;
    if (taken < best) best = taken;
  }
  for (int i = 0; i < threads; i++) { pthread_join(ids[i], NULL); best += 0 * sums[i]; }
  double moved = (kind[0] == 's' ? 1.0 : 2.0) * count * sizeof(float);
  printf("%.9g\n", moved / best);
  return 0;
}
"""
GEMM = """
import sys, time
side, threads, library = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if library == "torch":
    import torch
    torch.set_num_threads(threads)
    a, b = torch.randn(side, side), torch.randn(side, side)
    out = torch.empty(side, side)
    run = lambda: torch.mm(a, b, out=out)
else:
    import numpy as np
    a, b = (np.random.default_rng(k).standard_normal((side, side), np.float32) for k in (0, 1))
    out = np.empty((side, side), np.float32)
    run = lambda: np.matmul(a, b, out=out)
best, until = 1e9, time.perf_counter() + 0.5
while time.perf_counter() < until:
    start = time.perf_counter(); run(); best = min(best, time.perf_counter() - start)
print(2 * side ** 3 / best)
"""
SIDES = (512, 768)
COPIES = ("relu", "memcpy")
"""In the same kind of pages as the runtime's tensors."""


def compiled(folder: Path) -> Path | None:
    """Compile the copies; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, out = folder / "copies.c", folder / "copies"
    source.write_text(C)
    flags = ["-O3", "-march=native", "-pthread", "-o", str(out), str(source)]
    subprocess.run([compiler, *flags], check=True)
    return out


def gemm(library: str, threads: int) -> float:
    """Return operations a second of a library's best product."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    env = os.environ | dict.fromkeys(names, str(threads))
    found = []
    for side in SIDES:
        command = [sys.executable, "-c", GEMM, str(side), str(threads), library]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found.append(float(done.stdout) if done.returncode == 0 else 0.0)
    return max(found)


def copies(program: Path, kind: str, size: int, threads: int) -> float:
    """Return bytes a second of one of the loops in C."""
    command = [str(program), kind, str(size), str(threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(threads: int, rounds: int) -> dict[str, Any]:
    """Measure both sides in turns."""
    own: dict[str, list[float]] = defaultdict(list)
    other: dict[str, list[float]] = defaultdict(list)
    size = 4 * last_level_cache()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        for _ in range(rounds):
            found = measure(Cpu(threads=threads))
            own["float32"].append(found.flops["float32"])
            own["copy"].append(found.bandwidth)
            own["read"].append(found.read_bandwidth)
            own["int8"].append(found.flops["int8"])
            own["cache"].append(found.cache_bandwidth)
            own["overhead_ns"].append(found.overhead_ns)
            for library in ("torch", "numpy"):
                other[library].append(gemm(library, threads))
            if program is not None:
                for kind in (*COPIES, "huge-relu", "sum"):
                    other[kind].append(copies(program, kind, size, threads))
    return judged(threads, own, other)


def judged(
    threads: int, own: Mapping[str, list[float]], other: Mapping[str, list[float]]
) -> dict[str, Any]:
    """Take the best of each side and say how far they are apart."""
    ours = {k: min(v) if k.endswith("ns") else max(v) for k, v in own.items()}
    theirs = {k: max(v) for k, v in other.items()}
    rivals = {"float32": ("torch", "numpy"), "copy": COPIES, "read": ("sum",)}
    pairs = {k: max(v, key=lambda name: theirs.get(name, 0.0)) for k, v in rivals.items()}
    apart = {k: ours[k] / theirs[v] - 1 for k, v in pairs.items() if theirs.get(v)}
    return {
        "threads": threads,
        "ceilings": ours,
        "independent": theirs,
        "compared_with": pairs,
        "apart": apart,
        "agrees": {name: abs(value) <= WITHIN for name, value in apart.items()},
        "rounds": {"ceilings": own, "independent": other},
    }


def main() -> None:
    """Compare and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    runs = [compare(threads, given.rounds) for threads in given.threads]
    result = {"machine": machine(), "versions": versions(), "within": WITHIN, "runs": runs}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        for name, value in run["apart"].items():
            with_what = run["compared_with"][name]
            line = f"{run['threads']} thread(s), {name}: {run['ceilings'][name] / 1e9:.1f} G/s"
            line += f" against {run['independent'][with_what] / 1e9:.1f} ({with_what})"
            sys.stdout.write(f"{line}: {value:+.1%}\n")


if __name__ == "__main__":
    main()
