"""How far the machine could be trusted while it measured, and what to change.

A record is the difference of two snapshots; a judgement is a pure function over it. Causes
(load, throttling, steal, clocks) become advice; only what shows in the numbers themselves, or
what takes the CPU away behind the scheduler's back, makes a machine too noisy for a verdict.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ortune.core.hardware.cpus import EMULATED
from ortune.core.trial import Interval
from ortune.core.wording import format_count
from ortune.measurement.machine.counters import (
    LIVE,
    Roots,
    Snapshot,
    Throttle,
    read_machine_settings,
)
from ortune.measurement.machine.counters import (
    take_snapshot as take_snapshot,
)

OTHERS = 0.1  # share of the CPUs that others may use before it is worth a word
THROTTLED = (0.01, 0.1)  # share of throttled periods: worth a word, too many
STOLEN = (0.01, 0.05)  # share of CPU time that the hypervisor took: worth a word, too much
DISTURBED = (0.1, 0.5)
"""Share of runs whose threads waited for a CPU: above the second, fewer are used than dropped."""
WORTH = 0.1
"""A gain worth having: where the interval of a claim would hide it, the machine is too noisy."""
CLOCKS = 0.1  # how far the clock may wander between two snapshots
HOT = 90.0
_HIDDEN = "not visible"

RULE = (
    "too noisy: no difference is claimed, and an interval from all pairs of the run is wider than "
    "10 % on either side, the original differs from itself, over half of the runs waited for a "
    "CPU and not only for each other, over half of the pairs behind claims have no interval for "
    "it, over 10 % of the CPU quota's periods were throttled, or "
    "over 5 % of the CPU time was stolen; always where the CPU is emulated"
)


@dataclass(frozen=True)
class Record:
    """What happened on the machine during a run. Shares are of 1; None is "not visible".

    Attributes:
        ortune_cpus: CPUs that this process and its workers used, on average.
        other_cpus: CPUs that other processes used.
        stolen: Share of CPU time that the hypervisor gave to others.
        throttled: Share of the quota's periods in which the cgroup ran out of it.
        periods: Periods behind it; 0 without a quota.
        stopped_s: CPU seconds held back by the quota.
        waits: Share of the run in which some task of the machine waited for a CPU.
        switches: Context switches of the machine a second.
        mhz: Lowest and highest clock seen at both ends; empty if hidden.
        celsius: Hottest sensor at the end.
    """

    formerly: ClassVar[Mapping[str, str]] = {"own": "ortune_cpus", "others": "other_cpus"}

    seconds: float
    cpus: int
    ortune_cpus: float
    other_cpus: float | None
    stolen: float | None
    throttled: float | None
    periods: int
    stopped_s: float
    waits: float | None
    switches: float | None
    mhz: tuple[float, ...]
    celsius: float | None
    load: tuple[float, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    def format_readings(self) -> dict[str, str]:
        """Return it as a person reads it: name -> value with its unit."""
        throttled = "no quota" if self.throttled is not None else _HIDDEN
        if self.throttled is not None and self.periods:
            throttled = f"in {_format_percent(self.throttled)} of {self.periods} periods"
        return {
            "measured for": f"{self.seconds:.0f} s on {format_count(self.cpus, 'CPU')}",
            "CPUs used by ortune": f"{self.ortune_cpus:.2f}",
            "CPUs used by others": _format_or_hidden(self.other_cpus, "{:.2f}".format),
            "CPU quota exhausted": throttled,
            "stolen CPU time": _format_or_hidden(self.stolen, _format_percent),
            "time in which some process waited for a CPU": _format_or_hidden(
                self.waits, _format_percent
            ),
            "context switches per second": _format_or_hidden(self.switches, _whole),
            "clock, MHz": " to ".join(map(_whole, self.mhz)) or _HIDDEN,
            "temperature, C": _format_or_hidden(self.celsius, _whole),
            "load average": " ".join(map("{:.2f}".format, self.load)) or _HIDDEN,
            **self.settings,
        }


@dataclass(frozen=True)
class Advice:
    """One thing that is wrong with the machine.

    Attributes:
        severe: It alone may have hidden a gain: without a claim there is no verdict.
    """

    what: str
    change: str
    severe: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.change}"


@dataclass(frozen=True)
class Judgement:
    """Whether a verdict can be given here, and what to change.

    Attributes:
        too_noisy: By `RULE`; never beside a claim, whose interval holds the noise.
    """

    too_noisy: bool
    advice: tuple[Advice, ...]


def compare_snapshots(before: Snapshot, after: Snapshot, roots: Roots = LIVE) -> Record:
    """Return what happened between two snapshots."""
    seconds = max(after.wall_s - before.wall_s, 1e-9)
    busy = _difference(after.busy_s, before.busy_s)
    process_s = max(0.0, after.own_s - before.own_s)
    total = _difference(after.total_s, before.total_s)
    stolen = _difference(after.stolen_s, before.stolen_s)
    waits = _difference(after.waits_s, before.waits_s)
    switches = _difference(after.switches, before.switches)
    if after.throttles is None:
        throttled, periods, stopped = None, 0, 0.0
    else:
        old = {throttle.group: throttle for throttle in before.throttles or ()}
        worst = (0.0, 0, 0.0)
        for throttle in after.throttles:
            first = old.get(throttle.group, Throttle(throttle.group, 0, 0, 0.0))
            if (periods := throttle.periods - first.periods) > 0:
                share = (throttle.throttled - first.throttled) / periods
                worst = max(worst, (share, periods, throttle.stopped_s - first.stopped_s))
        throttled, periods, stopped = worst
    clocks = before.mhz + after.mhz
    return Record(
        seconds,
        after.cpus,
        process_s / seconds,
        None if busy is None else max(0.0, busy - process_s) / seconds,
        None if stolen is None or not total else stolen / total,
        throttled,
        periods,
        stopped,
        None if waits is None else min(1.0, waits / seconds),
        None if switches is None else switches / seconds,
        (min(clocks), max(clocks)) if clocks else (),
        after.celsius,
        after.load,
        read_machine_settings(roots.sys),
    )


def read_current_state() -> dict[str, str]:
    """Return what can be read at this moment, without a run to compare with."""
    seen = take_snapshot()
    return {
        "load average": " ".join(map("{:.2f}".format, seen.load)) or _HIDDEN,
        "clock, MHz": " ".join(map(_whole, seen.mhz)) or _HIDDEN,
        "temperature, C": _format_or_hidden(seen.celsius, _whole),
        **read_machine_settings(),
    }


def judge_noise(
    record: Record,
    disturbed: float = math.nan,
    equal: Interval | None = None,
    *,
    unusable: tuple[int, int] = (0, 0),
    reach: float = math.nan,
    claimed: bool = False,
) -> Judgement:
    """Say whether a verdict can be given, and what to change.

    Args:
        disturbed: Share of timed runs whose threads waited for a CPU; NaN when unknown.
        equal: A/A ratio of the original to itself, with its 99 % interval by all that the run
            learnt.
        unusable: Pairs of processes that a claim would rest on and that have too few runs which
            did not wait for a CPU, and how many pairs there are.
        reach: Half-width, in the log-ratio, of a claim's interval by all pairs of the run.
        claimed: An interval by all that the run learnt excludes 1.
    """
    advice: list[Advice] = []
    if reach > WORTH:
        problem = f"differences below {_format_percent(reach)} cannot be told from noise here"
        advice.append(Advice(problem, _AGAIN, severe=True))
    if equal is not None and equal.clear:
        problem = f"the original timed against itself should give 1 and gave {equal}"
        advice.append(Advice(problem, _AGAIN, severe=True))
    advice += [
        *_advise_on_waits(disturbed, record, unusable),
        *_advise_on_taken_time(record),
        *_advise_on_surroundings(record),
    ]
    if claimed:
        advice = [replace(item, severe=False) for item in advice]
    if (emulator := record.settings.get(EMULATED)) is not None:
        problem = f"the CPU is emulated by {emulator}, whose times say nothing of a real one"
        advice.append(Advice(problem, "measure on the machine itself", severe=True))
    advice.sort(key=lambda item: not item.severe)
    return Judgement(any(item.severe for item in advice), tuple(advice))


_AGAIN = "repeat on a quieter machine, or with more --time"


def _advise_on_waits(disturbed: float, record: Record, unusable: tuple[int, int]) -> list[Advice]:
    useless = 2 * unusable[0] > unusable[1]
    if not (disturbed > DISTURBED[0] or useless):
        return []
    problem = f"CPU was busy: {_format_percent(disturbed)} of timed runs had to wait"
    if useless:
        problem += f", and {unusable[0]} of {unusable[1]} process pairs have no interval for it"
    elif record.other_cpus is not None and record.other_cpus <= OTHERS * record.cpus:
        # More threads than CPUs, and threads that wake often, wait on a calm machine too.
        problem += (
            f", though other processes used only {record.other_cpus:.2f} of {record.cpus} CPUs"
        )
        change = "use no more sessions times threads than there are CPUs"
        return [Advice(problem, change)]
    # A pinned single thread needs one free CPU, whatever runs on the others.
    change = "close other programs and repeat"
    if record.cpus > 1:
        change += ", or use one thread, if it is not one: --on 'cpu(threads=1)' suffers least"
    return [Advice(problem, change, useless or disturbed > DISTURBED[1])]


def _advise_on_taken_time(record: Record) -> list[Advice]:
    """Say what a quota or a hypervisor took."""
    advice = []
    if record.throttled is not None and record.throttled > THROTTLED[0]:
        problem = (
            f"the CPU quota ran out in {_format_percent(record.throttled)} of its periods "
            f"({record.stopped_s:.1f} CPU seconds held back)"
        )
        change = (
            "raise the CPU limit of the container, or use fewer threads: --on 'cpu(threads=1)'"
        )
        advice.append(Advice(problem, change, record.throttled > THROTTLED[1]))
    if record.stolen is not None and record.stolen > STOLEN[0]:
        share = _format_percent(record.stolen)
        problem = f"the hypervisor gave {share} of the CPU time to other machines"
        change = "use a machine with dedicated CPUs"
        advice.append(Advice(problem, change, record.stolen > STOLEN[1]))
    return advice


def _advise_on_surroundings(record: Record) -> list[Advice]:
    """Say what neighbours and clocks do."""
    advice = []
    if record.other_cpus is not None and record.other_cpus > OTHERS * record.cpus:
        cpus = format_count(record.cpus, "CPU")
        problem = f"other processes used {record.other_cpus:.1f} of {cpus} during the run"
        change = "close them"
        if record.cpus > 1 and record.other_cpus < record.cpus - 0.5:
            change += ", or use one thread: --on 'cpu(threads=1)'"
        advice.append(Advice(problem, change))
    governor = record.settings.get("frequency governor", "")
    if governor in ("powersave", "conservative", "ondemand"):
        change = "set it to performance (cpupower frequency-set -g performance)"
        advice.append(Advice(f"the frequency governor is {governor}", change))
    if record.mhz and record.mhz[1] > record.mhz[0] * (1 + CLOCKS):
        low, high = record.mhz
        problem = f"the CPU's clock moved between {low:.0f} and {high:.0f} MHz"
        advice.append(Advice(problem, "switch turbo off, or set the governor to performance"))
    if record.celsius is not None and record.celsius >= HOT:
        problem = f"the hottest sensor shows {record.celsius:.0f} C"
        advice.append(Advice(problem, "let it cool down: hot CPUs lower their clocks"))
    return advice


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _format_or_hidden(value: float | None, write: Callable[[float], str]) -> str:
    return _HIDDEN if value is None else write(value)


_whole = "{:.0f}".format


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"
