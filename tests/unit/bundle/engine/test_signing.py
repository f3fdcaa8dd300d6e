"""A signature beside a bundle: what it holds, and all that makes it worth nothing."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies
from tests.unit.packaged import forge

from ortune.bundle.engine.archive import signature_of, verify_signature
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.cli.main import main
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.study import Study

pytest.importorskip("model_signing")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

X = np.array([[-5, 0, 1, 2]], np.float32)
Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def written(folder: Path, name: str, key: Private) -> tuple[Path, Path]:
    """Write both halves of a key as PEM."""
    private, public = folder / f"{name}.pem", folder / f"{name}.public.pem"
    pem = serialization.Encoding.PEM
    private.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, form))
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path, "own", ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return studies.study(tmp_path)


@pytest.fixture
def signed(study: Study, tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    return pack(study, tmp_path / "toy.ortune", sign=keys[0])


def refused(bundle: Path, key: Path, said: str, kind: type[OrtuneError] = BadModel) -> None:
    """Checking it and opening it say so in two lines; without a key it opens or not as before."""
    for act in (verify_signature, lambda path, key: load_engine(path, require_signature=key)):
        with pytest.raises(kind, match=said) as caught:
            act(bundle, key)
        assert len(str(caught.value).splitlines()) == 2, caught.value


def test_a_signed_bundle_opens_with_the_key_and_anywhere(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    place = signature_of(signed)
    assert place.name == "toy.ortune.sig" and place.stat().st_size < 5000
    verify_signature(signed, keys[1])
    load_engine(signed, require_signature=keys[1]).close()
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "renamed.ortune"
    shutil.copy(signed, moved)
    shutil.copy(place, signature_of(moved))
    load_engine(moved, require_signature=str(keys[1])).close()
    link = tmp_path / "link.ortune"
    link.symlink_to(signed)
    shutil.copy(place, signature_of(link))
    verify_signature(link, keys[1])


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()])
def test_larger_curves(study: Study, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    private, public = written(tmp_path, "large", ec.generate_private_key(curve))
    verify_signature(pack(study, tmp_path / "x.ortune", sign=private), public)


def test_the_bundle_is_the_same_with_a_signature_and_without(
    signed: Path, study: Study, tmp_path: Path
) -> None:
    assert pack(study, tmp_path / "plain.ortune").read_bytes() == signed.read_bytes()


def test_a_signature_that_was_removed(signed: Path, keys: tuple[Path, Path]) -> None:
    signature_of(signed).unlink()
    refused(signed, keys[1], r"is not signed.*there is no toy\.ortune\.sig")
    load_engine(signed).close()


def test_a_bundle_rewritten_with_digests_that_agree(signed: Path, keys: tuple[Path, Path]) -> None:
    forge(signed, {"models/more.bin": b"other"})
    load_engine(signed).close()
    refused(signed, keys[1], "its signature does not match this file")


def test_a_changed_byte_and_another_key(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = signed.read_bytes()
    _, other = written(tmp_path, "other", ec.generate_private_key(ec.SECP256R1()))
    refused(signed, other, "its signature does not match this file and .*: Key mismatch\n")
    for place in (4, len(whole) // 2, len(whole) - 1):
        signed.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadModel, match="its signature does not match this file"):
            verify_signature(signed, keys[1])
    signed.write_bytes(whole + b"\0")
    refused(signed, keys[1], "its signature does not match this file")


def test_a_signature_of_another_bundle(
    signed: Path, study: Study, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    other = pack(study, tmp_path / "other.ortune", trial="ba5e", sign=keys[0])
    shutil.copy(signature_of(other), signature_of(signed))
    refused(signed, keys[1], "its signature does not match this file")


def test_a_signature_by_another_key_that_claims_to_be_by_this_one(
    study: Study, signed: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    private, _ = written(tmp_path, "other", ec.generate_private_key(ec.SECP256R1()))
    forged = json.loads(
        signature_of(pack(study, tmp_path / "forged.ortune", sign=private)).read_text()
    )
    own = json.loads(signature_of(signed).read_text())
    forged["verificationMaterial"] = own["verificationMaterial"]
    signature_of(signed).write_text(json.dumps(forged))
    refused(signed, keys[1], "its signature does not match this file")


def _without_hint(text: str) -> str:
    told = json.loads(text)
    del told["verificationMaterial"]["publicKey"]["hint"]
    return json.dumps(told)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "{",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: "[" * 100_000,
        lambda text: "x" * (2 << 20),
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("dsseEnvelope", "other"),
        lambda text: text.replace("signatures", "others"),
        _without_hint,
    ],
)
def test_a_signature_that_is_none(
    signed: Path,
    keys: tuple[Path, Path],
    change: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = signature_of(signed)
    place.write_text(change(place.read_text()))
    refused(signed, keys[1], "signature")
    assert capsys.readouterr().out == ""


class TestKeys:
    def test_what_is_no_key(self, signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
        text = tmp_path / "text.pem"
        text.write_text("hello")
        for key, why in (
            (text, "Unable to load PEM file"),
            (tmp_path / "none.pem", "No such file or directory"),
            (tmp_path, "Is a directory"),
            (keys[0], r"[^.:\n]{1,80}"),
        ):
            said = rf"is not a usable public key \(PEM; P-256, P-384 or P-521\): {why}\n"
            refused(signed, key, said, BadSettings)

    @pytest.mark.parametrize(
        "key",
        [
            rsa.generate_private_key(65537, 2048),
            ed25519.Ed25519PrivateKey.generate(),
            ec.generate_private_key(ec.SECP256K1()),
        ],
        ids=["rsa", "ed25519", "secp256k1"],
    )
    def test_keys_of_other_kinds(
        self, study: Study, signed: Path, tmp_path: Path, key: Private
    ) -> None:
        private, public = written(tmp_path, "kind", key)
        refused(signed, public, "is not a usable public key", BadSettings)
        with pytest.raises(BadSettings, match="is not a usable private key") as caught:
            pack(study, tmp_path / "x.ortune", sign=private)
        assert len(str(caught.value).splitlines()) == 2
        assert not (tmp_path / "x.ortune").exists(), "nothing is packed that cannot be signed"

    def test_a_plain_model_has_no_signature(self, study: Study, keys: tuple[Path, Path]) -> None:
        with pytest.raises(BadSettings, match="only bundles are signed"):
            load_engine(study.models[""], require_signature=keys[1])


def test_without_the_package_a_demand_is_refused(
    signed: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    refused(signed, keys[1], "signatures need package model-signing", OrtuneError)
    load_engine(signed).close()


def test_the_package_checks_it_by_its_own_command(signed: Path, keys: tuple[Path, Path]) -> None:
    words = ["verify", "key", str(signed), "--signature", str(signature_of(signed))]
    command = [sys.executable, "-m", "model_signing", *words, "--public_key", str(keys[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


class TestCommand:
    def test_sign_verify_and_run(
        self,
        signed: Path,
        keys: tuple[Path, Path],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        np.savez(tmp_path / "x.npz", x=X)
        check = ["recheck", str(signed), "--signature-only", "--require-signature", str(keys[1])]
        run = ["run", str(signed), str(tmp_path / "x.npz"), "--require-signature", str(keys[1])]
        assert main(check) == 0 and "signed by the owner of" in capsys.readouterr().out
        assert main(run) == 0
        capsys.readouterr()
        signature_of(signed).unlink()
        for words in (check, run):
            assert main(words) == 2
            what, fix = capsys.readouterr().err.splitlines()
            assert "is not signed" in what and fix.startswith("  fix: ")

    def test_an_existing_signature_is_kept(
        self, signed: Path, study: Study, keys: tuple[Path, Path]
    ) -> None:
        signed.unlink()
        before = signature_of(signed).read_bytes()
        with pytest.raises(OrtuneError, match=r"toy\.ortune\.sig exists"):
            pack(study, signed, sign=keys[0])
        assert not signed.exists()
        pack(study, signed, sign=keys[0], force=True)
        assert signature_of(signed).read_bytes() != before
        verify_signature(signed, keys[1])
