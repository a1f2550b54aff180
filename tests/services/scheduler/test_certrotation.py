"""When keys are renewed; at no time is a certificate shown whose authority the API server may not know."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.certificates import Pair, read_facts, signed_by, split
from aliquot.services.scheduler.certrotation import Keys, Lifetimes, renewed

NOW = 1_800_000_000.0
DAY = 86400.0
LIVES = Lifetimes(authority=90 * DAY, certificate=9 * DAY, known=DAY)
NAMES = ("web.svc",)


def made(now: float = NOW) -> Keys:
    return renewed(None, NAMES, now, LIVES)


def authority(keys: Keys) -> Pair:
    assert keys.authority is not None
    return keys.authority


def test_the_first_keys_are_an_authority_and_what_it_signed() -> None:
    keys = made()
    assert keys.trusted == authority(keys).certificate
    assert signed_by(keys.serving.certificate, keys.trusted)
    assert read_facts(keys.serving.certificate).names == {"web.svc"}


def test_nothing_is_due_in_the_first_two_thirds() -> None:
    keys = made()
    assert renewed(keys, NAMES, NOW + 5.9 * DAY, LIVES) is keys


def test_a_certificate_is_renewed_after_two_thirds_by_the_same_authority() -> None:
    keys = made()
    after = renewed(keys, NAMES, NOW + 6 * DAY, LIVES)
    assert after.serving != keys.serving
    assert (after.authority, after.trusted) == (keys.authority, keys.trusted)
    assert renewed(after, NAMES, NOW + 6 * DAY, LIVES) is after


def test_a_certificate_that_lacks_a_name_is_renewed_and_keeps_those_it_has() -> None:
    after = renewed(made(), ("127.0.0.1",), NOW, LIVES)
    assert read_facts(after.serving.certificate).names == {"web.svc", "127.0.0.1"}
    assert renewed(after, NAMES, NOW, LIVES) is after


def test_a_new_authority_is_trusted_a_while_before_it_signs() -> None:
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


def test_what_has_run_out_is_replaced_at_once_and_trusted_no_more() -> None:
    after = renewed(made(), NAMES, NOW + 91 * DAY, LIVES)
    assert after.trusted == authority(after).certificate
    assert signed_by(after.serving.certificate, after.trusted)
    later = renewed(made(), NAMES, NOW + 9.5 * DAY, LIVES)
    assert read_facts(later.serving.certificate).ends > NOW + 10 * DAY


def test_damaged_keys_are_replaced_and_what_is_trusted_stays_so() -> None:
    keys = made()
    broken = Pair(b"no", b"key")
    for damaged in (
        replace(keys, serving=broken),
        replace(keys, authority=broken),
        replace(keys, serving=Pair(keys.serving.certificate, authority(keys).key)),
        replace(keys, authority=Pair(authority(keys).certificate, keys.serving.key)),
    ):
        after = renewed(damaged, NAMES, NOW, LIVES)
        assert any(signed_by(after.serving.certificate, each) for each in split(after.trusted))
        assert authority(keys).certificate in after.trusted
        assert renewed(after, NAMES, NOW, LIVES) is after


def test_somebody_elses_certificate_is_never_touched() -> None:
    foreign = replace(made(), authority=None)
    assert renewed(foreign, ("other",), NOW + 400 * DAY, LIVES) is foreign


@settings(max_examples=40)
@given(st.lists(st.floats(0.01, 8), min_size=1, max_size=25))
def test_whenever_one_looks_what_is_shown_was_trusted_long_enough(pauses: list[float]) -> None:
    """The bundle of the look before is what the API server may still have; its clock is not asked."""
    now, keys = NOW, made()
    for pause in pauses:
        now += pause * DAY
        known = keys.trusted
        ends = [read_facts(each.certificate).ends for each in (keys.serving, authority(keys))]
        keys = renewed(keys, NAMES, now, LIVES)
        shown = keys.serving.certificate
        assert read_facts(shown).ends > now
        assert min(ends) <= now or any(signed_by(shown, each) for each in split(known))
