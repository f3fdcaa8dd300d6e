"""Apply ortune's clean recipe to one file: ``python run_ortune.py ortune MODEL OUT``.

Every step is checked for structure, names and types and rolled back where it fails, as a recipe's
steps are; outputs are compared by the benchmark, for all tools alike.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from ortune import __version__
from ortune.backends.cpu import Cpu
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.model.io.check import check, signature
from ortune.recipe.space import clean


def main() -> None:
    _, source, out = sys.argv[1:]
    start = time.perf_counter()
    model = file.load(source)
    before = signature(model)
    failed = []
    for step in clean(facts(model), Cpu()).steps:
        backup = model.clone()
        try:
            if step.apply(model):
                check(model, before, step.name())
        except Exception as error:
            model = backup
            failed.append(f"{step.name()}: {error}"[:200])
    file.save(model, Path(out))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = {"version": __version__, "seconds": seconds, "peak_rss": peak}
    print(json.dumps(told | {"note": "; ".join(failed)}))


if __name__ == "__main__":
    main()
