"""Key renewal: no replica ever presents a certificate whose authority the API server may not trust."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.certificates import Pair, read_facts, signed_by, split
from aliquot.services.scheduler.ports.certrotation import Keys, Lifetimes, renewed

NOW = 1_800_000_000.0
DAY = 86400.0
LIVES = Lifetimes(authority=90 * DAY, certificate=9 * DAY, known=DAY)
NAMES = ("web.svc",)


def made(now: float = NOW) -> Keys:
    return renewed(None, NAMES, now, LIVES)


def authority(keys: Keys) -> Pair:
    assert keys.authority is not None
    return keys.authority


def test_first_keys_are_an_authority_and_its_certificate() -> None:
    keys = made()
    assert keys.trusted == authority(keys).certificate
    assert signed_by(keys.serving.certificate, keys.trusted)
    assert read_facts(keys.serving.certificate).names == {"web.svc"}


def test_keys_are_kept_for_two_thirds_of_their_lifetime() -> None:
    keys = made()
    assert renewed(keys, NAMES, NOW + 5.9 * DAY, LIVES) is keys


def test_certificate_is_renewed_by_the_same_authority() -> None:
    keys = made()
    after = renewed(keys, NAMES, NOW + 6 * DAY, LIVES)
    assert after.serving != keys.serving
    assert (after.authority, after.trusted) == (keys.authority, keys.trusted)
    assert renewed(after, NAMES, NOW + 6 * DAY, LIVES) is after


def test_certificate_is_renewed_if_a_name_is_missing() -> None:
    after = renewed(made(), ("127.0.0.1",), NOW, LIVES)
    assert read_facts(after.serving.certificate).names == {"web.svc", "127.0.0.1"}
    assert renewed(after, NAMES, NOW, LIVES) is after


def test_new_authority_is_trusted_before_it_signs() -> None:
    keys = replace(made(), serving=renewed(made(NOW + 56 * DAY), NAMES, NOW + 56 * DAY, LIVES).serving)
    keys = renewed(keys, NAMES, NOW + 56 * DAY, LIVES)  # a certificate that will be due at the same time
    due = NOW + 62 * DAY
    both = renewed(keys, NAMES, due, LIVES)
    assert len(split(both.trusted)) == 2
    assert split(both.trusted)[0] == authority(both).certificate
    assert both.serving == keys.serving
    assert renewed(both, NAMES, due + 0.9 * DAY, LIVES) is both
    after = renewed(both, NAMES, due + DAY, LIVES)
    assert signed_by(after.serving.certificate, authority(after).certificate)
    assert after.trusted == both.trusted


def test_expired_keys_are_replaced_and_no_longer_trusted() -> None:
    after = renewed(made(), NAMES, NOW + 91 * DAY, LIVES)
    assert after.trusted == authority(after).certificate
    assert signed_by(after.serving.certificate, after.trusted)
    later = renewed(made(), NAMES, NOW + 9.5 * DAY, LIVES)
    assert read_facts(later.serving.certificate).ends > NOW + 10 * DAY


def test_damaged_keys_are_replaced_and_bundle_is_kept() -> None:
    keys = made()
    broken = Pair(b"no", b"key")
    for damaged in (
        replace(keys, serving=broken),
        replace(keys, authority=broken),
        replace(keys, serving=Pair(keys.serving.certificate, authority(keys).key)),
        replace(keys, authority=Pair(authority(keys).certificate, keys.serving.key)),
    ):
        after = renewed(damaged, NAMES, NOW, LIVES)
        assert any(signed_by(after.serving.certificate, issuer) for issuer in split(after.trusted))
        assert authority(keys).certificate in after.trusted
        assert renewed(after, NAMES, NOW, LIVES) is after


def test_foreign_certificate_is_never_renewed() -> None:
    foreign = replace(made(), authority=None)
    assert renewed(foreign, ("other",), NOW + 400 * DAY, LIVES) is foreign


@settings(max_examples=40)
@given(st.lists(st.floats(0.01, 8), min_size=1, max_size=25))
def test_presented_certificate_is_always_in_the_previous_bundle(pauses: list[float]) -> None:
    """The API server may still have the bundle of the previous step; its clock does not matter."""
    now, keys = NOW, made()
    for pause in pauses:
        now += pause * DAY
        known = keys.trusted
        ends = [read_facts(pair.certificate).ends for pair in (keys.serving, authority(keys))]
        keys = renewed(keys, NAMES, now, LIVES)
        shown = keys.serving.certificate
        assert read_facts(shown).ends > now
        assert min(ends) <= now or any(signed_by(shown, issuer) for issuer in split(known))
