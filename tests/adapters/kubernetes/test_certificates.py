"""Certificates of our own, checked by the TLS that everybody uses."""

from __future__ import annotations

import ssl
import time

import pytest

from aliquot.adapters.kubernetes.certificates import (
    CertificateError,
    Pair,
    belong_together,
    issue,
    make_authority,
    present,
    read_facts,
    server_context,
    signed_by,
    split,
)

NOW = float(int(time.time()))  # OpenSSL reads its own clock
HOUR = 3600.0
AUTHORITY, OTHER = make_authority("test", NOW, HOUR), make_authority("test", NOW, HOUR)


def shake_hands(server: ssl.SSLContext, authority: bytes, name: str) -> bytes:
    """A TLS handshake in memory; the certificate that the server showed."""
    client = ssl.create_default_context(cadata=authority.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    for side in (theirs, ours, theirs, ours):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    shown = theirs.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.parametrize("name", ["web.kube-system.svc", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_authority_trusts_the_certificate_under_each_of_its_names(name: str) -> None:
    context = server_context()
    present(context, issue(AUTHORITY, ["web.kube-system.svc", "127.0.0.1", "::1"], NOW, HOUR))
    assert shake_hands(context, AUTHORITY.certificate, name)


def test_no_other_name_and_no_other_authority_will_do() -> None:
    context = server_context()
    present(context, issue(AUTHORITY, ["web.kube-system.svc"], NOW, HOUR))
    for authority, name in ((AUTHORITY, "other.kube-system.svc"), (OTHER, "web.kube-system.svc")):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(context, authority.certificate, name)


def test_a_context_shows_the_new_certificate_from_the_next_handshake_on() -> None:
    context = server_context()
    shown = set()
    for _ in range(2):
        present(context, issue(AUTHORITY, ["a"], NOW, HOUR))
        shown.add(shake_hands(context, AUTHORITY.certificate, "a"))
    assert len(shown) == 2


def test_a_bundle_of_old_and_new_trusts_both() -> None:
    bundle = AUTHORITY.certificate + OTHER.certificate
    for authority in (AUTHORITY, OTHER):
        context = server_context()
        present(context, issue(authority, ["a"], NOW, HOUR))
        assert shake_hands(context, bundle, "a")
    assert split(bundle) == (AUTHORITY.certificate, OTHER.certificate)
    assert split(b"") == ()


def test_a_certificate_reports_its_times_and_names() -> None:
    facts = read_facts(issue(AUTHORITY, ["a", "127.0.0.1"], NOW, 60).certificate)
    assert (facts.made, facts.ends, facts.names) == (NOW, NOW + 60, frozenset({"a", "127.0.0.1"}))
    assert read_facts(AUTHORITY.certificate).names == frozenset()


def test_a_certificate_ends_no_later_than_its_authority() -> None:
    assert read_facts(issue(AUTHORITY, ["a"], NOW, 10 * HOUR).certificate).ends == NOW + HOUR


def test_signed_by_and_belong_together() -> None:
    pair = issue(AUTHORITY, ["a"], NOW, HOUR)
    assert signed_by(pair.certificate, AUTHORITY.certificate)
    assert not signed_by(pair.certificate, OTHER.certificate)
    assert belong_together(pair)
    assert not belong_together(Pair(pair.certificate, AUTHORITY.key))


@pytest.mark.parametrize(
    "pair", [Pair(b"", b""), Pair(b"-----BEGIN CERTIFICATE-----\n", b"x"), Pair(AUTHORITY.key, b"")]
)
def test_a_malformed_certificate_is_a_certificateerror(pair: Pair) -> None:
    for use in (
        lambda: read_facts(pair.certificate),
        lambda: belong_together(pair),
        lambda: issue(pair, ["a"], NOW, HOUR),
        lambda: present(server_context(), pair),
        lambda: signed_by(pair.certificate, AUTHORITY.certificate),
    ):
        with pytest.raises(CertificateError):
            use()


def test_a_key_that_is_not_the_certificates_is_not_presented() -> None:
    with pytest.raises(CertificateError):
        present(server_context(), Pair(AUTHORITY.certificate, OTHER.key))
