"""The service account of our scheduler, by its token."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.ownpods import account_of_deployment, account_of_token
from kit.values.strategies import anything


def _token(payload: object) -> str:
    parts = ({"alg": "RS256"}, payload)
    words = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*words, "signature"])


@pytest.mark.parametrize(
    ("subject", "account"),
    [
        ("system:serviceaccount:gpu:aliquot-scheduler", "gpu/aliquot-scheduler"),
        ("system:serviceaccount:gpu:default", None),  # of every Pod of the namespace
        ("system:serviceaccount:gpu", None),
        ("system:node:n1", None),
        ("admin", None),
    ],
)
def test_account_of_a_token(subject: str, account: str | None) -> None:
    assert account_of_token(_token({"sub": subject})) == account


@pytest.mark.parametrize("token", [None, "", "secret", "a.b.c", "a.e30.c", "a.é.c"])
def test_other_credentials_have_no_account(token: str | None) -> None:
    assert account_of_token(token) is None


@given(anything)
def test_account_of_any_payload_never_raises(payload: object) -> None:
    account_of_token(_token(payload))


@given(st.text())
def test_account_of_any_text_never_raises(token: str) -> None:
    account_of_token(token)


@pytest.mark.parametrize(
    ("name", "account"), [("aliquot-scheduler", "gpu/aliquot-scheduler"), ("default", None), (None, None)]
)
def test_account_of_a_deployment(name: str | None, account: str | None) -> None:
    spec = {"template": {"spec": {"serviceAccountName": name}}}
    assert account_of_deployment({"metadata": {"namespace": "gpu"}, "spec": spec}) == account


@given(anything)
def test_account_of_anything_never_raises(deployment: object) -> None:
    account_of_deployment(deployment)


@given(st.integers(1, 12))
def test_account_is_read_from_payloads_of_any_length(letters: int) -> None:
    name = "a" * letters
    assert account_of_token(_token({"sub": f"system:serviceaccount:team:{name}"})) == f"team/{name}"
