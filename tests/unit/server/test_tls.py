"""Certificates are tried before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.certificates import pair

from ortune.core.errors import BadSettings
from ortune.server.tls import certificate


def refused(cert: Path | None, key: Path | None) -> str:
    with pytest.raises(BadSettings) as caught:
        certificate(cert, key, lambda text: None)
    assert len(str(caught.value).splitlines()) == 2
    return str(caught.value)


def test_a_good_one_is_taken(tmp_path: Path) -> None:
    good, said = pair(tmp_path), list[str]()
    found = certificate(good.certificate, str(good.key), said.append)
    assert found is not None and found.path == good.certificate and not said
    assert certificate(None, None, said.append) is None


def test_one_that_ends_soon_is_warned_of(tmp_path: Path) -> None:
    soon, said = pair(tmp_path, ends=3), list[str]()
    assert certificate(soon.certificate, soon.key, said.append)
    assert len(said) == 1 and "expires on" in said[0]


@pytest.mark.parametrize(
    ("begins", "ends", "words"), [(-9, -1, "has expired"), (2, 9, "is not valid yet")]
)
def test_one_out_of_its_time(tmp_path: Path, begins: float, ends: float, words: str) -> None:
    old = pair(tmp_path, begins=begins, ends=ends)
    assert words in refused(old.certificate, old.key)


def test_one_that_is_not_for_servers(tmp_path: Path) -> None:
    client = pair(tmp_path, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert "refused by clients" in refused(client.certificate, client.key)


def test_a_key_that_does_not_fit(tmp_path: Path) -> None:
    one, other = pair(tmp_path, "one"), pair(tmp_path, "other")
    assert "is not the key of certificate" in refused(one.certificate, other.key)


def test_a_key_that_is_encrypted_asks_nobody_for_a_password(tmp_path: Path) -> None:
    hidden = pair(tmp_path, password=b"secret")
    assert "is encrypted" in refused(hidden.certificate, hidden.key)


def test_half_a_pair_and_what_is_no_pem(tmp_path: Path) -> None:
    good, empty = pair(tmp_path), tmp_path / "empty.pem"
    empty.write_text("hello")
    assert "--tls-cert is given without --tls-key" in refused(good.certificate, None)
    assert "--tls-key is given without --tls-cert" in refused(None, good.key)
    assert "no PEM file" in refused(empty, good.key)
    assert "no PEM file" in refused(good.certificate, empty)
    assert "No such file" in refused(tmp_path / "none.pem", good.key)
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "--tls-cert" in refused(broken, good.key)
