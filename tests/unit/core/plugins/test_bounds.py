import dataclasses
import json
import math

import pytest

from ortune.core.errors import BadSettings
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import bounds, catalog, codec, spelling
from ortune.core.plugins.bounds import Bounds
from ortune.core.plugins.plugin import Plugin
from ortune.core.preprocess import Preprocess

_COUNTS_OF_WORK = ("threads", "streams", "sessions", "instances", "processes")


def _counts_work(field: str) -> bool:
    return any(word in field for word in _COUNTS_OF_WORK)


def _fields():
    """Return every plugin's fields that hold numbers: a new one is tested without being named."""
    bases = [catalog.base_of(folder) for folder in sorted(catalog.BASES)]
    kinds = [
        (base, catalog.load_plugin(base, name))
        for base in bases
        for name in catalog.list_plugins(base)
    ]
    return [
        (base, cls, field)
        for base, cls in kinds
        for field in bounds.read_field_bounds(cls, Bounds())
        if field in {one.name for one in dataclasses.fields(cls)}
    ]


_EVERY = _fields()
_NAMES = [f"{cls.name()}-{field}" for _, cls, field in _EVERY]


def _listed(cls: type[Plugin], field: str, value: object) -> object:
    default = cls.__dataclass_fields__[field].default
    return [value] if isinstance(default, tuple) else value


def test_that_the_plugins_are_found():
    assert len(_EVERY) > 60
    assert "cpu-threads" in _NAMES


@pytest.mark.parametrize(("base", "cls", "field"), _EVERY, ids=_NAMES)
def test_no_field_takes_what_is_no_sensible_number(base, cls, field):
    spelled = json.dumps(_listed(cls, field, "#"))
    declared = bounds.read_field_bounds(cls, Bounds())[field]
    for text in ("1e999", "-1e999", "nan", "inf", "1e300", "-1e300"):
        if text.endswith("1e300") and math.inf in (declared.high, -declared.low):
            continue
        given = spelled.replace('"#"', text)
        with pytest.raises(BadSettings) as refused:
            spelling.parse_plugin(base, f"{cls.name()}({field}={given})")
        assert field in refused.value.what or cls.name() in refused.value.what
        assert refused.value.fix
    with pytest.raises(BadSettings, match=field):
        codec.build_dataclass(cls, {field: _listed(cls, field, math.nan)})


@pytest.mark.parametrize(
    ("base", "cls", "field"),
    [one for one in _EVERY if one[0].folder != "targets" and _counts_work(one[2])],
    ids=str,
)
def test_what_counts_threads_is_bound_by_the_cpus(base, cls, field):
    """But for packages, which other machines run."""
    most = 2 * effective_cpus()
    assert spelling.parse_plugin(base, f"{cls.name()}({field}={most})")
    with pytest.raises(BadSettings, match="is too large: this process may use") as refused:
        spelling.parse_plugin(base, f"{cls.name()}({field}={most + 1})")
    assert refused.value.fix == f"give {most} or less"


def test_threads_of_another_machine_are_read():
    cpu = catalog.load_plugin(catalog.base_of("backends"), "cpu")
    assert codec.build_dataclass(cpu, {"threads": 5000}).threads == 5000


@pytest.mark.parametrize("field", ["scale", "mean", "std", "resize", "crop"])
def test_numbers_of_preprocessing(field):
    with pytest.raises(BadSettings, match=field):
        codec.build_dataclass(
            Preprocess, {field: math.nan if field in ("scale", "mean", "std") else 10**9}
        )


def test_messages():
    with pytest.raises(BadSettings, match="nan is not a finite number"):
        Bounds().check([1, (2, math.nan)])
    with pytest.raises(BadSettings, match="-1 is too small"):
        Bounds().check({"a": -1})
    with pytest.raises(BadSettings, match="not a finite number"):
        Bounds().check(10**1000)
    Bounds().check([True, "nan", None])
