"""Bundles of several plans from a stranger: every part is checked, and none is held in memory."""

import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from tests.unit.bundle import several
from tests.unit.bundle.test_hostile import refused, settings
from tests.unit.packaged import forge, members_of, write_members

from ortune.backends.cpu import Cpu
from ortune.backends.plugin import PluginProvider
from ortune.backends.torch import Torch
from ortune.bundle.engine import consent
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import MANIFEST, RECIPE, SBOM, SETTINGS, name_plan_member
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.core.errors import BadModel, OrtuneError

SECOND = name_plan_member(1, SETTINGS)
_HELD = 64 << 20
pytestmark = pytest.mark.usefixtures("temporary")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return pack(several.study(tmp_path), tmp_path / "toy.ortune", with_="aa11,ff66")


def test_swapped_entries(bundle: Path) -> None:
    whole = members_of(bundle)
    assert {SBOM, SECOND, name_plan_member(2, RECIPE), "plans/2/models/toy.onnx"} < set(whole)
    pairs = [
        (one, two)
        for one, two in combinations(sorted(whole), 2)
        if MANIFEST not in (one, two) and whole[one] != whole[two]
    ]
    assert len(pairs) > 50
    for one, two in pairs:
        swapped = {**whole, one: whole[two], two: whole[one]}
        refused(write_members(bundle, swapped), "was changed|where bundles store it uncompressed")


def test_settings_of_a_later_plan_have_no_more_power(bundle: Path) -> None:
    """They are refused where they are read, and where they would run."""
    found = settings(config=["session.optimized_model_filepath=/tmp/x"])
    forge(bundle, {SECOND: found[SETTINGS]})
    with pytest.raises(BadModel, match=f"{SECOND}.*a setting that a file"):
        read_bundle(bundle)
    with pytest.raises(BadModel, match=f"{SECOND}.*a setting that a file"):
        load_engine(bundle, on="cpu")
    load_engine(bundle).close()


def test_a_library_that_is_listed_is_for_custom_operators_alone() -> None:
    """A caller who allows them allows no provider, and no weights, of the same name."""
    consent.require_listed(Cpu(custom_ops=("own_ops",)), ["own_ops"])
    consent.require_listed(Torch(source="own:factory"), ["own:factory"])
    for other in (
        PluginProvider(package="own_ops"),
        PluginProvider(library="own_ops"),
        Torch(weights="own_ops"),
        Cpu(custom_ops=("own:factory",)),
    ):
        with pytest.raises(BadModel, match="which its manifest does not"):
            consent.require_listed(other, ["own_ops", "own:factory"])


def test_a_later_plan_brings_no_code_that_the_manifest_does_not_list(bundle: Path) -> None:
    forge(bundle, {SECOND: settings(custom_ops=["os"])[SETTINGS]})
    with pytest.raises(BadModel, match="which its manifest does not"):
        load_engine(bundle, on="cpu")


class TestMemory:
    """Refused before more than 64 MB are held, whatever a file says of its size."""

    @pytest.fixture(autouse=True)
    def told(self, record_property: Callable[[str, object], None]) -> None:
        self.record = record_property

    def refused(self, path: Path) -> None:
        for opened in (load_engine, read_bundle):
            tracemalloc.start()
            try:
                with pytest.raises(OrtuneError) as caught:
                    opened(path)
                held = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert len(str(caught.value).splitlines()) == 2
            self.record("held", f"{held / 1e6:.1f} MB by {opened.__name__}")
            assert held < _HELD, f"{held >> 20} MB"

    def test_a_changed_byte_in_a_large_member(self, bundle: Path) -> None:
        forge(bundle, {"models/weights.bin": bytes(100 << 20)})
        with bundle.open("rb+") as file:
            file.seek(80 << 20)
            file.write(b"x")
        self.refused(bundle)

    @pytest.mark.parametrize("name", [MANIFEST, SBOM, SECOND, "models/toy.onnx", "reader.py"])
    def test_a_bomb(self, bundle: Path, name: str) -> None:
        whole = members_of(bundle)
        with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as file:
            for other, content in whole.items():
                if other != name:
                    file.writestr(other, content)
            with file.open(name, "w") as out:
                for _ in range(20):
                    out.write(bytes(8 << 20))
        assert bundle.stat().st_size < 1 << 20
        self.refused(bundle)

    def test_many_long_names(self, bundle: Path) -> None:
        whole = members_of(bundle)
        more = {f"{place:05}{'n' * 900}": b"" for place in range(20_000)}
        self.refused(write_members(bundle, {**whole, **more}))
