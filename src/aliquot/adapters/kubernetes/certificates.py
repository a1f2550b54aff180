"""X.509 as far as our ports need it: an authority of our own, certificates that it signs, and live TLS contexts.

EC P-256 throughout, PEM in and out. services/scheduler/ports/certrotation.py decides when anything is made or renewed.
`cryptography` is loaded with the first use: only a scheduler with a webhook or mutual TLS needs it.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

SKEW = 300.0  # seconds: how far the checker's clock may be behind ours
_END = b"-----END CERTIFICATE-----"


class CertificateError(Exception):
    """What was read is no certificate or key, or not of a kind we make."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Facts:
    """What a certificate says. Times in seconds since 1970; names are DNS names and IP addresses."""

    made: float
    ends: float
    names: frozenset[str]


def make_authority(name: str, now: float, seconds: float) -> Pair:
    """An authority that trusts itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"{name} authority {_time(now):%Y-%m-%d}")
    builder = _builder(subject, subject, key.public_key(), now, now + seconds)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _signed(builder, key, key, authority=True)


def issue(authority: Pair, names: Iterable[str], now: float, seconds: float, *, client: bool = False) -> Pair:
    """A server's or a client's certificate for these names, which lasts no longer than its authority. It cannot be used
    as the other. Raises CertificateError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer, issuer_key = _certificate(authority.certificate), _key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    wanted, usage = sorted(set(names)), ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    ends = min(now + seconds, issuer.not_valid_after_utc.timestamp())
    builder = _builder(_subject(wanted[0]), issuer.subject, key.public_key(), now, ends)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([_alternative(name) for name in wanted]), False),
        (x509.ExtendedKeyUsage([usage]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return _signed(builder, key, issuer_key, authority=False)


def read_facts(pem: bytes) -> Facts:
    """What the first certificate there says. Raises CertificateError."""
    from cryptography import x509

    found = _certificate(pem)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        present = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    except x509.ExtensionNotFound:
        present = set()
    begins = found.not_valid_before_utc.timestamp()
    return Facts(made=begins + SKEW, ends=found.not_valid_after_utc.timestamp(), names=frozenset(present))


def belong_together(pair: Pair) -> bool:
    """Whether the key is the certificate's. Raises CertificateError."""
    return bool(_certificate(pair.certificate).public_key() == _key(pair.key).public_key())


def signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether that authority signed it. Raises CertificateError."""
    from cryptography.exceptions import InvalidSignature

    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def split(bundle: bytes) -> tuple[bytes, ...]:
    """The certificates of a bundle, one by one."""
    parts = bundle.split(_END)[:-1]
    return tuple(part[part.index(b"-----BEGIN") :] + _END + b"\n" for part in parts if b"-----BEGIN" in part)


def server_context() -> ssl.SSLContext:
    """A context without a certificate yet: `present` gives it one, and another later."""
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def require_clients(context: ssl.SSLContext, trusted: bytes) -> None:
    """Refuse, from the next handshake on, clients without a certificate that one of these authorities (also) signed.
    Raises CertificateError."""
    trust(context, trusted)
    context.verify_mode = ssl.CERT_REQUIRED


def certificate_names(shown: Mapping[str, Any]) -> frozenset[str]:
    """The common names and DNS names of a verified certificate, as the ssl module describes it."""
    subject = [entry for part in shown.get("subject", ()) for entry in part]
    common = {value for key, value in subject if key == "commonName"}
    return frozenset(common | {value for key, value in shown.get("subjectAltName", ()) if key == "DNS"})


def client_context() -> ssl.SSLContext:
    """A context for connections to servers that `trust` names, without a certificate yet."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def trust(context: ssl.SSLContext, trusted: bytes) -> None:
    """Trust these authorities, besides those trusted before. Raises CertificateError."""
    try:
        context.load_verify_locations(cadata=trusted.decode("ascii"))
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateError(f"the authorities' certificates cannot be used: {error}") from error


def present(context: ssl.SSLContext, pair: Pair) -> None:
    """Show this certificate from the next handshake on; connections that are open stay so. Raises CertificateError.

    The ssl module reads files only. This one is in memory: the key never touches a disk.
    """
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pair.key + b"\n" + pair.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"the certificate cannot be used: {error}") from error
    finally:
        os.close(file)


def _subject(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, ends: float
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now) - timedelta(seconds=SKEW))
        .not_valid_after(_time(ends))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> Pair:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = builder.add_extension(usage, critical=True).sign(signer, hashes.SHA256())
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _certificate(pem: bytes) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError(f"not a certificate: {error}") from error


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"not a private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("a private key of another kind than ours")
    return key
