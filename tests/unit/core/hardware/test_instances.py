"""How a person spells instances of a model by device."""

from __future__ import annotations

import pytest

from ortune.core.errors import BadSettings
from ortune.core.hardware.instances import InstanceGroup, read_device, read_instances, total


def test_numbers_and_groups() -> None:
    assert read_instances(3) == read_instances(" 3 ") == (InstanceGroup(3),)
    groups = read_instances("2@gpu0, 2@gpu1,1@cpu")
    assert groups == (InstanceGroup(2, "gpu"), InstanceGroup(2, "gpu", 1), InstanceGroup(1, "cpu"))
    assert total(groups) == 5
    assert ",".join(map(str, groups)) == "2@gpu0,2@gpu1,1@cpu"
    assert read_instances("2,1@npu", "gpu7") == (InstanceGroup(2, "gpu", 7), read_device("npu0"))


@pytest.mark.parametrize(
    "given", [0, "0", "-1", "", "two", "1@", "1@GPU0", "2@gpu-0", "1@gpu1000"]
)
def test_what_cannot_be_read(given: int | str) -> None:
    with pytest.raises(BadSettings, match=r"instances=.* cannot be read") as no:
        read_instances(given)
    assert "2@gpu0,2@gpu1" in no.value.fix


@pytest.mark.parametrize("name", ["tpu", "cpu1", "cuda0"])
def test_a_device_of_no_known_kind(name: str) -> None:
    for read in (read_device, lambda text: read_instances(f"1@{text}")):
        with pytest.raises(BadSettings, match=f"no device is called '{name.rstrip('0')}"):
            read(name)
