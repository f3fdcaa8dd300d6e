"""Target `bundle`: bundles and runs to what reads, unpacks, loads and reports them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from ortune.bundle.engine.load import load_engine
from ortune.bundle.read import read_bundle
from ortune.core.errors import OrtuneError
from tests.fuzz import archives, mutate, wire
from tests.fuzz.answers import answer
from tests.fuzz.models import FIXTURES
from tests.fuzz.target import Broken, Case, Target

_THREADS = 64
"""A bundle of small models may start some; it may not start what its settings say."""
_RUN_FILES = ("header.json", "ending.json", "ledger.jsonl")
Held = dict[str, bytes]


@cache
def seeds() -> tuple[tuple[tuple[str, bytes], ...], ...]:
    """Return the members of bundles that are whole: of one plan, and the same with two."""
    found = sorted((FIXTURES / "bundles").glob("*.ortune"))
    one = [dict(archives.members(path.read_bytes())) for path in found]
    return tuple(tuple(held.items()) for held in (*one, *map(_of_two_plans, one)))


def _of_two_plans(held: Held) -> Held:
    """Return a bundle of format 2 that has the plan of one of format 1 twice."""
    manifest = json.loads(held["manifest.json"])
    flat = ("plan", "backend", "models", "golden", "arithmetic")
    plan = {name: manifest.pop(name) for name in flat if name in manifest}
    texts = {"settings": "settings.json", "recipe": "recipe.json"}
    later = {field: f"plans/1/{name}" for field, name in texts.items()}
    manifest |= {"format": 2, "licence": "MIT", "provenance": {"data": "0"}}
    manifest["plans"] = [plan | {"key": ""} | names for names in (texts, later)]
    more = {later[field]: held[name] for field, name in texts.items()}
    manifest["members"] |= {name: {} for name in more}
    return signed({**held, **more, "manifest.json": json.dumps(manifest).encode()})


@cache
def runs() -> tuple[dict[str, bytes], ...]:
    """Return the files of runs that are whole, but for the models."""
    return tuple(
        {name: (run / name).read_bytes() for name in _RUN_FILES if (run / name).is_file()}
        for run in sorted((FIXTURES / "runs").iterdir())
    )


def signed(held: Held) -> Held:
    """Give the manifest the sizes and digests of the members, as a forger would."""
    try:
        manifest = json.loads(held["manifest.json"])
        for name, member in manifest["members"].items():
            if name in held:
                member["sha256"] = hashlib.sha256(held[name]).hexdigest()
                member["size"] = len(held[name])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return held
    return {**held, "manifest.json": json.dumps(manifest).encode()}


def draw(rng: Random) -> Case:
    """Change a bundle: its JSON, its models and streams, the zip; or a run's files."""
    return run(rng) if rng.randrange(12) < 3 else bundle(rng)


def bundle(rng: Random) -> Case:
    """Change a bundle."""
    kind = rng.randrange(3, 12)
    held = dict(rng.choice(seeds()))
    if kind < 7:
        name = rng.choice([one for one in held if one.endswith(".json")])
        held[name] = mutate.as_json(mutate.leaves(rng, json.loads(held[name])), rng)
        return _bundle(f"{name} changed", archives.zipped(list(_forged(rng, held).items())))
    if kind == 7:
        name = rng.choice([one for one in held if not one.endswith(".json")])
        change = wire.change if name.endswith(".onnx") else mutate.raw
        held[name] = change(rng, held[name])
        return _bundle(f"{name} changed", archives.zipped(list(_forged(rng, held).items())))
    if kind == 8:
        name = rng.choice(list(held))
        at = rng.randrange(len(held[name]))
        flipped = held[name][at] ^ (1 << rng.randrange(8))
        held[name] = held[name][:at] + bytes([flipped]) + held[name][at + 1 :]
        return _bundle(f"a bit of {name}", archives.zipped(list(held.items())))
    if kind == 9:
        return _bundle("members", archives.renamed(rng, list(held.items())))
    data = archives.zipped(list(held.items()), rng.choice((0, zipfile.ZIP_DEFLATED)))
    if kind == 10:
        return _bundle("headers of the zip", archives.headers(rng, data))
    return _bundle("bytes of the zip", mutate.raw(rng, data))


def _forged(rng: Random, held: Held) -> Held:
    return signed(held) if rng.random() < 0.9 else held


def _bundle(name: str, data: bytes) -> Case:
    return Case(name, {"x.ortune": data})


def run(rng: Random) -> Case:
    """Change a file of a run."""
    files = dict(rng.choice(runs()))
    name = rng.choice(list(files))
    if rng.random() < 0.15:
        files[name] = mutate.raw(rng, files[name])
    elif name.endswith(".jsonl"):
        lines = files[name].splitlines()[:-1]  # the last may be torn
        at = rng.randrange(len(lines))
        lines[at] = mutate.as_json(mutate.leaves(rng, json.loads(lines[at])), rng)
        files[name] = b"\n".join(lines) + b"\n"
    else:
        files[name] = mutate.as_json(mutate.leaves(rng, json.loads(files[name])), rng)
    return Case(f"{name} of a run", {f"run/{name}": content for name, content in files.items()})


def read(case: Case, folder: Path) -> None:
    """Open a bundle in every way there is, or report and explain a run."""
    if (folder / "run").is_dir():
        answer(["report", str(folder / "run"), "-o", str(folder / "report.html")])
        answer(["explain", str(folder / "run")])
        return
    path = folder / "x.ortune"
    before = set(folder.iterdir())
    with contextlib.suppress(OrtuneError):
        read_bundle(path)
    with load_engine(path) as engine:
        for name in engine.models:
            engine[name].placement()
        started = len(list(Path("/proc/self/task").iterdir()))
    if zlib.crc32(case.files["x.ortune"]) % 3 == 0:
        with contextlib.suppress(OrtuneError):
            load_engine(path, on="cpu").close()
    if started > _THREADS:
        raise Broken(f"threads are started as the bundle says: {started}")
    if more := set(folder.iterdir()) - before:
        raise Broken(f"files are written: {sorted(map(str, more))}")


def _changed(name: str, change: Callable[[Any], object], which: int = 0) -> Case:
    """Change one JSON member of a bundle and sign it."""
    held = dict(seeds()[which])
    document = json.loads(held[name])
    made = change(document)
    held[name] = json.dumps(document if made is None else made).encode()
    return _bundle(f"{name} changed", archives.zipped(list(signed(held).items())))


def _settings(**fields: Any) -> Callable[[], Case]:
    return partial(_changed, "settings.json", lambda found: found.update(fields))


def _text(name: str, content: bytes) -> Case:
    held = {**dict(seeds()[0]), name: content}
    return _bundle(f"{name}: {content[:20]!r}", archives.zipped(list(signed(held).items())))


def _twice(name: str) -> Case:
    held = list(seeds()[0])
    return _bundle(f"{name} twice", archives.zipped([*held, (name, dict(held)[name])]))


def _manifest(change: Callable[[Any], object]) -> Callable[[], Case]:
    return partial(_changed, "manifest.json", change)


def _plans(change: Callable[[Any], object]) -> Callable[[], Case]:
    """Change the plans of a bundle that has two."""
    return partial(_changed, "manifest.json", lambda m: change(m["plans"]), len(seeds()) // 2)


def _bomb(name: str, size: int, told: int | None, listed: bool) -> Case:
    held = dict(seeds()[0])
    if listed:
        manifest = json.loads(held["manifest.json"])
        entry = {"sha256": archives.digest_of_zeros(size), "size": told or size}
        manifest["members"][name] = entry
        held["manifest.json"] = json.dumps(manifest).encode()
    return _bundle(
        f"{name} of {size >> 20} MB", archives.bomb(list(held.items()), name, size, told)
    )


def _overlapping(count: int) -> Case:
    """Return a zip whose entries all lie in the same bytes."""
    data = archives.bomb(list(seeds()[0]), "big", 16 << 20)
    end = data.rfind(b"PK\x05\x06")
    start = data.rfind(b"PK\x01\x02", 0, end)
    entry = data[start:end]
    tail = bytearray(data[end:])
    total = int.from_bytes(tail[10:12], "little") + count
    size = int.from_bytes(tail[12:16], "little") + count * len(entry)
    tail[8:12] = total.to_bytes(2, "little") * 2
    tail[12:16] = size.to_bytes(4, "little")
    names = (entry.replace(b"big", f"{at:03}".encode()) for at in range(count))
    return _bundle("overlapping entries", data[:end] + b"".join(names) + bytes(tail))


def _many(count: int) -> bytes:
    return archives.zipped([(str(at), b"") for at in range(count)])


def corpus() -> Sequence[Callable[[], Case]]:
    """Return what was seen, and its kin."""
    keys = [_settings(config=[[key, value]]) for key, value in mutate.CONFIG]
    kinds = [
        partial(_changed, "settings.json", lambda _, leaf=leaf: leaf)
        for leaf in mutate.JSON_LEAVES
        if not (isinstance(leaf, int) and abs(leaf) > 10**300)
    ]
    names = [name for name, _ in seeds()[0]]
    return [
        *keys,
        *kinds,
        *(partial(_twice, name) for name in names),
        *(partial(_text, name, b"") for name in names),
        *(partial(_text, "settings.json", text) for text in _TEXTS),
        *(partial(_text, "manifest.json", text) for text in _TEXTS),
        _settings(threads=5000),
        _settings(threads=-1),
        _settings(threads=10**30),
        _settings(environment="/bin/sh"),
        _settings(environment="../../x"),
        _settings(affinity="0-100000000"),
        _settings(custom_ops=["/lib/x86_64-linux-gnu/libm.so.6"]),
        _settings(custom_ops=["os"]),
        _settings(graph="nope"),
        _settings(nope=1),
        _manifest(lambda m: m.update(backend="\x1b[31m")),
        _manifest(lambda m: m.update(format=3, ortune="\x1b[31m")),
        _manifest(lambda m: m.update(format=1e400)),
        _plans(lambda plans: plans.clear()),
        _plans(lambda plans: plans.extend(plans * 20)),
        _plans(lambda plans: plans.reverse()),
        _plans(lambda plans: plans[1].update(settings="models/x.onnx")),
        _plans(lambda plans: plans[1].update(models={"": "../x.onnx"})),
        _plans(lambda plans: plans[1].update(ratio=[float("nan")] * 3)),
        _plans(lambda plans: plans[0].update(key="\x1b[31m")),
        _plans(lambda plans: plans[0].update(custom_ops=["os"])),
        _manifest(lambda m: m["models"].update({"../x": "models/x.onnx"})),
        _manifest(lambda m: m.update(models={})),
        _manifest(lambda m: m.update(golden={})),
        _manifest(lambda m: m.update(golden={"nope": next(iter(m["golden"].values()))})),
        _manifest(lambda m: m.update(signatures={name: {} for name in m["signatures"]})),
        _manifest(lambda m: m.update(machine={"cpu": 5})),
        _manifest(lambda m: m.update(arithmetic={"instructions": ["\x1b[31m"], "integers": -1})),
        partial(_bomb, "manifest.json", 400 << 20, None, False),
        partial(_bomb, "manifest.json", 60 << 20, None, False),
        partial(_bomb, "settings.json", 400 << 20, None, True),
        partial(_bomb, "evidence.json", 400 << 20, 100, True),
        partial(_bomb, "recipe.json", 1200 << 20, None, True),
        partial(_bomb, "big", 400 << 20, None, True),
        partial(_bomb, "models/big", 400 << 20, 0, True),
        partial(_overlapping, 40),
        lambda: _bundle("a zip of nothing", archives.zipped([])),
        lambda: _bundle("only its first bytes", b"PK\x03\x04"),
        lambda: _bundle("ten thousand members", _many(10_000)),
    ]


_TEXTS = (
    b"null",
    b"[]",
    b"5",
    b"NaN",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"{" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"9" * 10_000,
    b'{"format": ' + b"9" * 10_000 + b"}",
    b'"\\ud800"',
)

TARGET = Target("bundle", cache(corpus), draw, read)
