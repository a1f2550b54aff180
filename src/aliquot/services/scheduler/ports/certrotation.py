"""When to renew a port's CA and certificates, and in which order. A function of the keys and the time; no IO.

The decision depends only on the keys in the Secret, so every replica comes to the same conclusion and a restart in the
middle loses nothing:

    certificate   renewed after two thirds of its lifetime, or when it lacks a name
    authority     renewed after two thirds of its lifetime. The new one is at first only trusted, beside the old one; it
                  signs the next certificate once the API server has trusted it for an hour. So the bundle always
                  contains the authority of every certificate that a replica presents
    client        the certificate of callers, where they need one; renewed as the certificate. It lasts as long as its
                  authority: people copy it to control planes
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from aliquot.adapters.kubernetes.certificates import (
    CertificateError,
    Pair,
    belong_together,
    issue,
    make_authority,
    read_facts,
    signed_by,
    split,
)

_NAME = "aliquot"
_CLIENT = "aliquot-client"
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates live, in seconds."""

    authority: float = 3650 * _DAY
    certificate: float = 365 * _DAY
    known: float = 3600.0  # how long an authority is trusted before it signs
    client: float = 3650 * _DAY


@dataclass(frozen=True, slots=True)
class Keys:
    """What the replicas share. `trusted` is the bundle: the authority's certificate, then those of older ones."""

    authority: Pair | None  # None: a certificate that another program issues and renews
    trusted: bytes
    serving: Pair
    client: Pair | None = None  # None: the port's clients need no certificate, or another program issues it


def renewed(
    keys: Keys | None, names: Iterable[str], now: float, lifetimes: Lifetimes, *, for_clients: bool = False
) -> Keys:
    """The keys to use from now on: the same object if nothing is due. `for_clients`: with a client's certificate."""
    wanted = frozenset(names)
    if keys is not None and keys.authority is None:
        return keys
    if keys is None:
        result = _fresh(wanted, now, lifetimes)
    else:
        try:
            result = _renewed(keys, wanted, now, lifetimes)
        except (
            CertificateError
        ):  # damaged: keep what is still trusted, for replicas that have not read the new keys yet
            result = _fresh(wanted, now, lifetimes, _unexpired(keys.trusted, now))
    return _with_client(result, now, lifetimes) if for_clients else result


def _fresh(names: frozenset[str], now: float, lifetimes: Lifetimes, older: bytes = b"") -> Keys:
    authority = make_authority(_NAME, now, lifetimes.authority)
    serving = issue(authority, names, now, lifetimes.certificate)
    return Keys(authority, authority.certificate + older, serving)


def _renewed(keys: Keys, wanted: frozenset[str], now: float, lifetimes: Lifetimes) -> Keys:
    authority = keys.authority
    assert authority is not None
    signer = read_facts(authority.certificate)
    if signer.ends <= now or not belong_together(authority):
        return _fresh(wanted, now, lifetimes, _unexpired(keys.trusted, now))
    shown = read_facts(keys.serving.certificate)
    usable = (
        shown.ends > now
        and wanted <= shown.names
        and belong_together(keys.serving)
        and any(signed_by(keys.serving.certificate, trusted) for trusted in split(keys.trusted))
    )
    if usable and now >= signer.ends - lifetimes.authority / 3:
        newer = make_authority(_NAME, now, lifetimes.authority)
        return replace(keys, authority=newer, trusted=newer.certificate + _unexpired(keys.trusted, now))
    due = now >= shown.ends - lifetimes.certificate / 3
    known = now >= signer.made + lifetimes.known or signed_by(keys.serving.certificate, authority.certificate)
    if usable and not (due and known):
        return keys
    # Only add names: replicas that are reached under different names must not remove each other's.
    return replace(keys, serving=issue(authority, wanted | shown.names, now, lifetimes.certificate))


def _with_client(keys: Keys, now: float, lifetimes: Lifetimes) -> Keys:
    assert keys.authority is not None
    if keys.client is not None and not _client_due(keys.client, keys.authority, keys.trusted, now, lifetimes):
        return keys
    return replace(keys, client=issue(keys.authority, [_CLIENT], now, lifetimes.client, client=True))


def _client_due(client: Pair, authority: Pair, bundle: bytes, now: float, lifetimes: Lifetimes) -> bool:
    signer = read_facts(authority.certificate)
    try:
        ends = read_facts(client.certificate).ends
        signed = any(signed_by(client.certificate, trusted) for trusted in split(bundle))
        if ends <= now or not signed or not belong_together(client):
            return True
    except CertificateError:
        return True
    due, longer = now >= ends - lifetimes.client / 3, min(now + lifetimes.client, signer.ends) > ends
    return due and longer and now >= signer.made + lifetimes.known


def _unexpired(bundle: bytes, now: float) -> bytes:
    kept = []
    for certificate in split(bundle):
        try:
            if read_facts(certificate).ends > now:
                kept.append(certificate)
        except CertificateError:
            continue
    return b"".join(kept)
