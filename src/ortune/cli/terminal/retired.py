"""Words of earlier releases: for one release each is answered with the way that replaces it."""

from __future__ import annotations

from collections.abc import Mapping

from ortune.core.errors import OrtuneError

_ALONE = "`pip install --no-deps ortune` beside numpy and onnxruntime opens bundles: ortune.load"
RETIRED: Mapping[str, str] = {
    "pack --reader": _ALONE,
    "reader": _ALONE,
    "bench --processes": "load test servers: ortune loadtest MODEL --processes N",
    "cost --measure": "price a file of: ortune loadtest MODEL --processes N --json FILE.json",
    "cost --memory-limit": "leave it out: cost starts no worker any more",
    "bench --memory-by-node": "see `peak_rss` of bench, and `ortune profile` for single nodes",
}
"""Old word -> what to do instead, as the text behind ``fix:``.

A word is a verb, such as ``timeline``, or an option with its verb, such as ``optimize --policy``;
a settings file's key is looked up as the option. Take a row out a release after it came.
"""


def refuse_retired(verb: str, option: str = "") -> None:
    """Refuse a verb, or an option of one, that an earlier release had.

    Raises:
        OrtuneError: An earlier release had it.
    """
    word = f"{verb} {option}".strip()
    if word in RETIRED:
        raise OrtuneError(f"`{word}` is no more", fix=RETIRED[word])
