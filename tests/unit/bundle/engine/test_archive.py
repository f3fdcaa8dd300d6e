"""A bundle's zip is not believed: names, sizes and digests are checked before anything is used."""

import hashlib
import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ortune.bundle.engine import archive
from ortune.bundle.engine.manifest import (
    COMPILED,
    EVIDENCE,
    FORMAT,
    MANIFEST,
    PREPROCESS,
    READER,
    RECIPE,
    SBOM,
    SERVING,
    SETTINGS,
    Golden,
    Manifest,
    Member,
    PackedPlan,
    Signature,
    name_plan_member,
    read_manifest,
)
from ortune.core.errors import BadModel, OrtuneError

LARGE = bytes(range(256)) * 12_000
"""Three chunks of reading."""
CONTENTS = {
    SETTINGS: b"{}",
    RECIPE: b"{}",
    EVIDENCE: b"{}",
    "models/m/m.onnx": LARGE,
    "models/m/weights.bin": b"1234",
    "models/more/m.onnx": b"other",
    "fallback/m.onnx": b"plain",
    "golden/inputs": b"in",
    "golden/outputs": b"out",
    "custom_ops/ops.so": b"code",
}


def member(content: bytes) -> Member:
    return Member(hashlib.sha256(content).hexdigest(), len(content))


PLAN = PackedPlan(
    "aa11",
    "clean @ cpu",
    "cpu",
    {"": "models/m/m.onnx"},
    SETTINGS,
    RECIPE,
    {"": Golden("golden/inputs", "golden/outputs")},
    (0.5, 0.4, 0.6),
    custom_ops=("custom_ops/ops.so",),
)
MADE = Manifest(
    FORMAT,
    "1.0",
    (PLAN,),
    {"": "fallback/m.onnx"},
    {"": Signature((), ())},
    {},
    {},
    {name: member(content) for name, content in CONTENTS.items()},
    custom_ops=("custom_ops/ops.so", "package_of_ops"),
)


def bundle(path: Path, made: Manifest = MADE, contents: dict[str, bytes] = CONTENTS) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(MANIFEST, made.write_json())
        for name, content in contents.items():
            file.writestr(name, content)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return bundle(tmp_path / "a.ortune")


def test_a_zip_is_told_from_a_model_by_its_first_bytes(whole: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    assert archive.is_bundle(whole)
    for content in (b"", b"PK", b"PK\x05\x06", b"\x08\x08PK\x03\x04"):
        model.write_bytes(content)
        assert not archive.is_bundle(model)
    with pytest.raises(BadModel, match=r"cannot open '.*none': No such file"):
        archive.is_bundle(tmp_path / "none")


def test_the_manifest_comes_with_the_zip(whole: Path) -> None:
    with archive.open_bundle(whole) as (file, manifest):
        assert manifest == MADE
        assert file.read(SETTINGS) == b"{}"


def test_what_is_no_zip_at_all_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.ortune").write_bytes(b"PK\x03\x04 and nothing")
    with (
        pytest.raises(BadModel, match=r"a\.ortune is damaged"),
        archive.open_bundle(tmp_path / "a.ortune"),
    ):
        raise AssertionError("opened")


@pytest.mark.parametrize("name", [SETTINGS, "models/m/m.onnx"])
def test_a_member_is_written_below_its_folder_and_is_what_was_packed(
    whole: Path, tmp_path: Path, name: str
) -> None:
    with archive.open_bundle(whole) as (file, manifest):
        assert archive.extract_member(file, manifest, name, None) is None
        assert not (tmp_path / "out").exists()
        path = archive.extract_member(file, manifest, name, tmp_path / "out")
    assert path == tmp_path / "out" / name
    assert path.read_bytes() == CONTENTS[name]


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "change", [flipped, lambda c: c[:-1], lambda c: c + b"x", lambda c: c * 2, lambda c: b""]
)
@pytest.mark.parametrize("name", ["models/m/m.onnx", "models/m/weights.bin"])
def test_another_content_is_refused(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    path = bundle(tmp_path / "a", contents={**CONTENTS, name: change(CONTENTS[name])})
    said = f"a: '{name}' was changed after packing: its (sha256|size) is not the one"
    with pytest.raises(BadModel, match=said), archive.open_bundle(path) as (file, manifest):
        archive.extract_member(file, manifest, name, tmp_path / "out")


@pytest.mark.parametrize("told", [{"size": 5}, {"sha256": "0" * 64}])
def test_digest_and_size_must_both_agree(tmp_path: Path, told: dict[str, Any]) -> None:
    name = "models/m/weights.bin"
    members = {**MADE.members, name: replace(MADE.members[name], **told)}
    path = bundle(tmp_path / "a", replace(MADE, members=members))
    with (
        pytest.raises(BadModel, match="was changed"),
        archive.open_bundle(path) as (file, manifest),
    ):
        archive.extract_member(file, manifest, name, None)


def test_a_member_larger_than_it_says_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Whatever table is believed: bytes are counted while they come."""
    name = "models/m/weights.bin"
    members = {**MADE.members, name: replace(MADE.members[name], size=64 << 20)}
    contents = {**CONTENTS, name: bytes(64 << 20)}
    huge = bundle(tmp_path / "a", replace(MADE, members=members), contents)
    with archive.open_bundle(huge) as (file, _), pytest.raises(BadModel, match="was changed"):
        archive.extract_member(file, MADE, name, tmp_path / "out")
    assert (tmp_path / "out" / name).stat().st_size <= 2 << 20


def test_bytes_that_do_not_unpack_are_refused(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    at = content.rindex(b"1234")
    whole.write_bytes(content[:at] + b"4321" + content[at + 4 :])
    with (
        archive.open_bundle(whole) as (file, manifest),
        pytest.raises(BadModel, match=r"weights\.bin' was changed after packing: .*CRC"),
    ):
        archive.extract_member(file, manifest, "models/m/weights.bin", None)


def deflated(path: Path, how: int = zipfile.ZIP_DEFLATED, packed: str = RECIPE) -> Path:
    """A bundle of which one member is packed."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in ((MANIFEST, MADE.write_json()), *CONTENTS.items()):
            file.writestr(name, content, how if name == packed else zipfile.ZIP_STORED)
    return path


@pytest.mark.parametrize(("name", "said"), [(RECIPE, "was changed"), (MANIFEST, "is damaged")])
def test_a_packed_member_whose_bytes_make_no_sense_is_refused(
    tmp_path: Path, name: str, said: str
) -> None:
    path = deflated(tmp_path / "a", packed=name)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        at = file.getinfo(name).header_offset + 30 + len(name)
    content[at] |= 0b110  # a kind of block that there is not
    path.write_bytes(content)
    with pytest.raises(BadModel, match=said), archive.open_bundle(path) as (file, manifest):
        archive.extract_member(file, manifest, name, None)


@pytest.mark.parametrize(
    ("name", "said"),
    [(RECIPE, "was changed after packing: .*encrypted"), (MANIFEST, "is damaged")],
)
def test_an_encrypted_member_is_refused(tmp_path: Path, name: str, said: str) -> None:
    path = bundle(tmp_path / "a")
    content = bytearray(path.read_bytes())
    at = content.rindex(name.encode())  # the name in the table of contents
    content[at - 46 + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(BadModel, match=said), archive.open_bundle(path) as (file, manifest):
        archive.extract_member(file, manifest, name, None)


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_to_pack_that_unpack_without_bound_are_refused(tmp_path: Path, how: int) -> None:
    path = deflated(tmp_path / "a", how)
    with (
        pytest.raises(
            BadModel, match=f"a has '{RECIPE}' compressed by a method that bundles do not use"
        ),
        archive.open_bundle(path),
    ):
        raise AssertionError("opened")
    with archive.open_bundle(deflated(tmp_path / "b")) as (file, manifest):
        archive.extract_member(file, manifest, RECIPE, None)


def test_what_goes_wrong_with_an_open_bundle_is_not_called_its_damage(whole: Path) -> None:
    with pytest.raises(ValueError, match="mine"), archive.open_bundle(whole):
        raise ValueError("mine")


def test_a_disk_that_refuses_is_no_fault_of_the_bundle(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with archive.open_bundle(whole) as (file, manifest), pytest.raises(OrtuneError) as caught:
        archive.extract_member(file, manifest, "models/m/m.onnx", tmp_path / "out")
    assert not isinstance(caught.value, BadModel)
    assert "cannot unpack 'models/m/m.onnx' (3.1 MB)" in caught.value.what


def test_all_is_checked_and_what_is_wanted_is_written_with_its_folder(
    whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with archive.open_bundle(whole) as (file, manifest):
        archive.unpack_members(file, manifest, out, ["models/m/m.onnx", "fallback/m.onnx"])
    found = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert found == {"models/m/m.onnx", "models/m/weights.bin", "fallback/m.onnx"}
    with archive.open_bundle(whole) as (file, manifest):
        archive.unpack_members(
            file, manifest, tmp_path / "two", ["models/m/m.onnx", "models/more/m.onnx"]
        )
        archive.unpack_members(file, manifest, tmp_path / "one", ["golden/inputs"])
    assert len(list((tmp_path / "two").glob("models/*/*"))) == 3
    assert [p.name for p in (tmp_path / "one").glob("*/*")] == ["inputs"], "no folder of a model"
    wrong = bundle(tmp_path / "b", contents={**CONTENTS, "golden/inputs": b"no"})
    with (
        archive.open_bundle(wrong) as (file, manifest),
        pytest.raises(BadModel, match="golden/inputs"),
    ):
        archive.unpack_members(file, manifest, out, ["fallback/m.onnx"])


def test_a_digest_alone_is_not_enough_where_the_size_is_another(whole: Path) -> None:
    name = "models/m/weights.bin"
    more = replace(MADE, members={name: replace(MADE.members[name], size=5)})
    with archive.open_bundle(whole) as (file, _), pytest.raises(BadModel, match="was changed"):
        archive.extract_member(file, more, name, None)


def test_a_folder_is_written_as_a_whole_only_where_a_model_has_it_for_itself(
    tmp_path: Path,
) -> None:
    more = {"golden/deep/inputs": b"1", "golden/deep/other": b"2", "fallback/n.onnx": b"3"}
    contents = CONTENTS | more
    made = replace(MADE, members={name: member(held) for name, held in contents.items()})
    with archive.open_bundle(bundle(tmp_path / "a", made, contents)) as (file, manifest):
        archive.unpack_members(file, manifest, tmp_path, ["golden/deep/inputs", "fallback/m.onnx"])
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*/*") if p.is_file()}
    assert found == {"golden/deep/inputs", "fallback/m.onnx"}


def test_nothing_is_unpacked_where_there_is_no_room(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, needed = tmp_path / "new" / "out", len(CONTENTS["models/m/m.onnx"]) + 4
    asked = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return type("Usage", (), {"free": free})

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with archive.open_bundle(whole) as (file, manifest):
        free = needed - 1
        with pytest.raises(OrtuneError, match=r"cannot unpack 3\.1 MB into .*: 3\.1 MB are free"):
            archive.unpack_members(file, manifest, out, ["models/m/m.onnx"])
        assert not out.exists() and asked == [tmp_path], "of the nearest folder that is there"
        free = needed
        archive.unpack_members(file, manifest, out, ["models/m/m.onnx"])
    assert (out / "models/m/weights.bin").read_bytes() == b"1234"


def test_a_text_of_more_than_the_table_may_have_is_read_at_once(tmp_path: Path) -> None:
    contents = CONTENTS | {EVIDENCE: b" " * (3 << 20)}
    made = replace(MADE, members={name: member(held) for name, held in contents.items()})
    with archive.open_bundle(bundle(tmp_path / "a", made, contents)) as (file, _):
        assert len(file.read(EVIDENCE)) == 3 << 20


def test_a_table_of_contents_of_more_than_two_mebibytes_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as file:
        for at in range(2500):
            file.writestr(f"{at:0>900}", b"")
    with (
        pytest.raises(BadModel, match="a is damaged: its table of contents is too large"),
        archive.open_bundle(tmp_path / "a"),
    ):
        raise AssertionError("opened")


def entry(name: str, size: int, packed: int | None = None, **fields: Any) -> zipfile.ZipInfo:
    """A row of a table of contents: a member that lies in the zip as it is, at its beginning."""
    made = zipfile.ZipInfo(name)
    made.file_size, made.compress_size = size, size if packed is None else packed
    given = {"header_offset": 0, "create_system": 3, **fields}
    for field, value in given.items():
        setattr(made, field, value)
    return made


class TestTable:
    def said(self, *entries: zipfile.ZipInfo, size: int = 1 << 30) -> str:
        return "; ".join(archive.list_zip_faults(entries, size))

    @pytest.mark.parametrize(
        ("name", "most"),
        [
            (MANIFEST, 4_194_304),
            (EVIDENCE, 8_388_608),
            (SBOM, 4_194_304),
            (PREPROCESS, 65_536),
            (SERVING, 65_536),
            (COMPILED, 262_144),
            (READER, 1_048_576),
            (SETTINGS, 262_144),
            (RECIPE, 1_048_576),
            (name_plan_member(1, SETTINGS), 262_144),
            (name_plan_member(15, RECIPE), 1_048_576),
        ],
    )
    def test_every_text_has_its_most(self, name: str, most: int) -> None:
        assert self.said(entry(name, most)) == ""
        said = f"has '{name}' of {most + 1} bytes: it may have {most}"
        assert self.said(entry(name, most + 1)) == said

    def test_what_is_no_text_lies_as_it_is_and_has_no_most(self) -> None:
        assert self.said(entry("models/m.onnx", 1 << 29)) == ""
        said = "has 'models/m.onnx' compressed, where bundles store it uncompressed"
        assert self.said(entry("models/m.onnx", 101, 100)) == said
        assert self.said(entry(name_plan_member(16, RECIPE), 101, 100)).endswith(
            "store it uncompressed"
        )

    @pytest.mark.parametrize(
        ("size", "packed"), [(1_048_576, 1), (2_097_200, 10_486), (2_000_000, 10_000)]
    )
    def test_beyond_a_mebibyte_a_text_unpacks_to_two_hundred_times_at_most(
        self, size: int, packed: int
    ) -> None:
        assert self.said(entry(EVIDENCE, size, packed)) == ""
        said = f"has '{EVIDENCE}', which unpacks to more than 200 times its size"
        assert self.said(entry(EVIDENCE, size + 1, packed)) == said

    def test_members_are_bounded(self) -> None:
        every = [entry(f"{at}", 0) for at in range(4097)]
        assert self.said(*every[:4096]) == ""
        assert self.said(*every) == "has 4097 members, more than the 4096 that a bundle may have"

    def test_members_have_bytes_of_their_own_within_the_zip(self) -> None:
        two = entry("a", 60), entry("b", 40)
        assert self.said(*two, size=100) == ""
        assert self.said(*two, size=99) == "has members that share their bytes"
        assert self.said(entry("a", 60, header_offset=40), size=100) == ""
        beyond = "has 'a' beyond its own end"
        assert self.said(entry("a", 60, header_offset=41), size=100) == beyond
        assert self.said(entry("a", 60, header_offset=-1), size=100) == beyond

    def test_links_and_devices_of_unix_are_refused_and_of_other_systems_there_are_none(
        self,
    ) -> None:
        for kind in (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO):
            attributes = (kind | 0o644) << 16
            odd = entry("a", 1, external_attr=attributes)
            assert self.said(odd) == "has 'a', which is not a regular file"
            assert self.said(entry("a", 1, external_attr=attributes, create_system=0)) == ""
        assert self.said(entry("a", 1, external_attr=(stat.S_IFREG | 0o644) << 16)) == ""
        assert self.said(entry("a", 1, external_attr=0o644 << 16)) == ""

    def test_names_that_differ_by_case_alone_are_refused(self) -> None:
        said = "has two members that some systems take for one: 'A'"
        assert self.said(entry("a", 1), entry("A", 1)) == said

    def test_a_name_is_as_long_as_systems_allow(self) -> None:
        assert archive.is_safe_member("a" * 1024) and not archive.is_safe_member("a" * 1025)


@pytest.mark.parametrize("name", ["a", "a/b.onnx", "a/.hidden", "a b/c..d", "a/b/c/d"])
def test_plain_names_are_safe(name: str) -> None:
    assert archive.is_safe_member(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../a", "a/../b", "a/..", "/a", "//a", "a/", "a//b", "./a", "a/./b"),
        *("C:a", "C:/a", "c:\\a", "\\a", "\\\\host\\share\\a", "a\\b", "a\\..\\b", "a\0b"),
        *("a\x1b[2Jb", "\u202ea"),
    ],
)
def test_names_that_leave_their_folder_on_any_system_are_unsafe(name: str) -> None:
    assert not archive.is_safe_member(name)


class TestMembers:
    def test_unlisted_missing_and_double_ones_are_named(self, tmp_path: Path) -> None:
        more = bundle(tmp_path / "more", contents={**CONTENTS, "models/extra": b""})
        fewer = {n: c for n, c in CONTENTS.items() if n != "golden/outputs"}
        less = bundle(tmp_path / "less", contents=fewer)
        twice = bundle(tmp_path / "twice")
        with zipfile.ZipFile(twice, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
            file.writestr(SETTINGS, b"{}")
        for path, odd in ((more, "models/extra"), (less, "golden/outputs"), (twice, SETTINGS)):
            said = f"{path.name}: manifest and members differ: '{odd}'"
            with pytest.raises(BadModel, match=said), archive.open_bundle(path):
                raise AssertionError("opened")

    def test_without_a_manifest_it_is_no_bundle(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a", "w") as file:
            file.writestr("weights.pt", b"x")
        said = "a is a zip without manifest.json, so not a bundle"
        with pytest.raises(BadModel, match=said), archive.open_bundle(tmp_path / "a"):
            raise AssertionError("opened")

    def test_an_unsafe_name_is_refused_also_where_the_manifest_lists_it(
        self, tmp_path: Path
    ) -> None:
        made = replace(MADE, members={**MADE.members, "../x": member(b"x")})
        path = bundle(tmp_path / "a", made, {**CONTENTS, "../x": b"x"})
        said = "a has the unsafe member '../x'"
        with pytest.raises(BadModel, match=said), archive.open_bundle(path):
            raise AssertionError("opened")

    def test_a_manifest_that_unpacks_to_a_bomb_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "bomb"
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
            file.open(MANIFEST, "w") as out,
        ):
            for _ in range(65):
                out.write(bytes(1 << 20))
        monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("read"))
        with (
            pytest.raises(BadModel, match=r"'manifest.json' of 68157440 bytes: it may have"),
            archive.open_bundle(path),
        ):
            raise AssertionError("opened")

    def test_another_size_than_the_manifest_has_is_found_before_anything_is_unpacked(
        self, tmp_path: Path
    ) -> None:
        path = bundle(tmp_path / "a", contents=CONTENTS | {"golden/inputs": b"in and more"})
        said = "a: 'golden/inputs' was changed after packing: its size is not the one in the"
        with pytest.raises(BadModel, match=said), archive.open_bundle(path):
            raise AssertionError("opened")


class TestManifest:
    def test_what_it_says_of_its_first_plan(self) -> None:
        other = replace(PLAN, plan="other", backend="openvino", models={}, golden={})
        two = replace(MADE, plans=(PLAN, other))
        assert (two.plan, two.backend) == ("clean @ cpu", "cpu")

    def test_a_model_is_an_onnx_file(self) -> None:
        made = replace(MADE, fallback={"": "models/m/weights.bin"})
        with pytest.raises(BadModel, match=r"'models/m/weights\.bin' is no ONNX model"):
            read_manifest(made.write_json(), "b")

    @pytest.mark.parametrize("name", ["golden/inputs", "a b", "evil.so", "-x", "os:system"])
    def test_code_is_a_library_in_its_folder_or_a_module(self, name: str) -> None:
        made = replace(MADE, custom_ops=(*MADE.custom_ops, name))
        with pytest.raises(BadModel, match=f"'{name}' is neither a library in it nor the name"):
            read_manifest(made.write_json(), "b")

    @pytest.mark.parametrize("name", ["ops", "own.ops-cpu", "own.ops:register"])
    def test_code_may_be_a_module_or_a_function_in_one(self, name: str) -> None:
        made = replace(MADE, custom_ops=(*MADE.custom_ops, name))
        assert read_manifest(made.write_json(), "b") == made

    def test_without_a_model_it_is_none(self) -> None:
        bare = replace(PLAN, models={}, golden={})
        with pytest.raises(BadModel, match="different models in different places"):
            read_manifest(
                replace(MADE, plans=(bare,), fallback={}, signatures={}).write_json(), "b"
            )

    @pytest.mark.parametrize(
        ("ratio", "good"),
        [
            ((0.5, 0.0, 0.6), True),
            ((0.5, 0.5, 0.6), True),
            ((0.5, 0.4, 0.5), True),
            ((0.5, 0.4, float("inf")), False),
            ((0.5, -0.1, 0.6), False),
        ],
    )
    def test_a_ratio_is_within_its_interval(
        self, ratio: tuple[float, float, float], good: bool
    ) -> None:
        made = replace(MADE, plans=(replace(PLAN, ratio=ratio),))
        if good:
            assert read_manifest(made.write_json(), "b") == made
        else:
            with pytest.raises(BadModel, match="an invalid interval for the ratio of plan 1"):
                read_manifest(made.write_json(), "b")

    def test_what_is_nested_deeper_than_bundles_are_is_not_looked_at(self) -> None:
        deep = '{"more": ' + "[" * 70 + "]" * 70 + ", "
        with pytest.raises(BadModel, match="it is nested too deeply"):
            read_manifest(MADE.write_json().decode().replace("{", deep, 1).encode(), "b")

    def test_sixteen_plans_are_read(self) -> None:
        plans = tuple(
            replace(
                PLAN, settings=name_plan_member(at, SETTINGS), recipe=name_plan_member(at, RECIPE)
            )
            for at in range(16)
        )
        named = {name: member(b"") for one in plans for name in (one.settings, one.recipe)}
        made = replace(MADE, plans=plans, members={**MADE.members, **named})
        assert read_manifest(made.write_json(), "b") == made

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b"1", b'{"format": "x"}', b"{}", b'{"format": Infinity}']
    )
    def test_what_is_none_is_refused(self, content: bytes) -> None:
        with pytest.raises(BadModel, match="b: its manifest cannot be read"):
            read_manifest(content, "b")

    def test_a_newer_format_names_who_wrote_it_and_this_one_is_read(self) -> None:
        assert read_manifest(MADE.write_json(), "b") == MADE
        newer = replace(MADE, format=FORMAT + 1, ortune="9.9")
        with pytest.raises(BadModel, match=f"b has format {FORMAT + 1}") as caught:
            read_manifest(newer.write_json(), "b")
        assert caught.value.fix == "install ortune 9.9"

    def test_the_first_format_is_read_with_what_it_did_not_record(self) -> None:
        """It had one plan, whose fields stood in the manifest itself."""
        old = json.loads(MADE.write_json())
        assert old.pop("format") == FORMAT == 2, "raised with what an older reader could misread"
        (plan,) = old.pop("plans")
        flat = {name: plan[name] for name in ("plan", "backend", "models", "golden")}
        del old["workload"], old["licence"], old["provenance"]
        old["custom_ops"] = plan["custom_ops"]
        found = read_manifest(json.dumps({"format": 1, **old, **flat}).encode(), "b")
        assert found.workload == "latency"
        assert (found.plans[0].arithmetic.integers, found.plans[0].arithmetic.risky) == (0, 0)
        assert found.plans == (replace(PLAN, key="", ratio=None),)
        with pytest.raises(BadModel, match="PackedPlan lacks 'plan"):
            read_manifest(json.dumps({"format": 1, **old}).encode(), "b")

    def test_a_field_of_another_form_is_refused(self) -> None:
        with pytest.raises(BadModel, match="b: its manifest is wrong"):
            read_manifest(MADE.write_json().replace(b'"members": {', b'"members": 3, "x": {'), "b")

    @pytest.mark.parametrize("name", [n for n in CONTENTS if n.count("/") < 2])
    def test_every_file_that_it_names_has_a_digest(self, name: str) -> None:
        members = {n: m for n, m in MADE.members.items() if n != name}
        with pytest.raises(BadModel, match=f"has no digest of '{name}'"):
            read_manifest(replace(MADE, members=members).write_json(), "b")

    @pytest.mark.parametrize(
        "fields",
        [
            {"plans": (replace(PLAN, models={}),), "fallback": {}, "signatures": {}},
            {"plans": (replace(PLAN, models={"x": "models/m/m.onnx"}),)},
            {"plans": (replace(PLAN, golden={"x": Golden("golden/inputs", "golden/outputs")}),)},
            {"fallback": {"x": "fallback/m.onnx"}},
            {"signatures": {"x": Signature((), ())}},
            {"signatures": {}},
        ],
    )
    def test_models_are_named_alike_everywhere(self, fields: dict[str, Any]) -> None:
        with pytest.raises(BadModel, match="different models in different places"):
            read_manifest(replace(MADE, **fields).write_json(), "b")

    @pytest.mark.parametrize("count", [0, 17])
    def test_plans_are_bounded(self, count: int) -> None:
        with pytest.raises(BadModel, match=f"b has {count} plans; a bundle has 1 to 16"):
            read_manifest(replace(MADE, plans=(PLAN,) * count).write_json(), "b")

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"models": {"": "models/other.onnx"}}, "no digest of 'models/other.onnx'"),
            ({"golden": {"": Golden("golden/inputs", "no")}}, "no digest of 'no'"),
            ({"settings": "evidence.json"}, "settings or recipe of plan 1 in an unexpected file"),
            (
                {"recipe": "plans/1/recipe.json"},
                "settings or recipe of plan 1 in an unexpected file",
            ),
            ({"custom_ops": ("other",)}, "lists no library that plan 1 names"),
            ({"ratio": (0.5, 0.6, 0.7)}, "an invalid interval for the ratio of plan 1"),
            ({"ratio": (float("nan"),) * 3}, "an invalid interval for the ratio of plan 1"),
            ({"ratio": (1.0, -1.0, float("inf"))}, "an invalid interval for the ratio of plan 1"),
            ({"key": "../x"}, "an invalid key for plan 1"),
        ],
    )
    def test_a_plan_that_does_not_fit_the_rest(self, changed: dict[str, Any], said: str) -> None:
        with pytest.raises(BadModel, match=said):
            read_manifest(replace(MADE, plans=(replace(PLAN, **changed),)).write_json(), "b")

    def test_the_second_plan_has_settings_and_recipe_of_its_own(self) -> None:
        texts = (name_plan_member(1, SETTINGS), name_plan_member(1, RECIPE))
        assert texts == ("plans/1/settings.json", "plans/1/recipe.json")
        second = replace(PLAN, settings=texts[0], recipe=texts[1])
        two = replace(MADE, plans=(PLAN, second))
        with pytest.raises(BadModel, match=f"no digest of '{texts[0]}'"):
            read_manifest(two.write_json(), "b")
        listed = replace(two, members={**MADE.members, **{name: member(b"") for name in texts}})
        assert read_manifest(listed.write_json(), "b") == listed

    @pytest.mark.parametrize("licence", ["MIT", "Apache-2.0 OR (MIT AND BSD-3-Clause)", ""])
    def test_a_licence_is_an_expression(self, licence: str) -> None:
        held = replace(MADE, licence=licence)
        assert read_manifest(held.write_json(), "b").licence == licence
        with pytest.raises(BadModel, match="an invalid licence"):
            read_manifest(replace(MADE, licence=f"{licence}\x1b[31m").write_json(), "b")
