"""Local Pods as Kubernetes shows them."""

from __future__ import annotations

from aliquot.dialects.local.status import without_values


def test_others_see_the_names_of_variables_but_not_what_they_are() -> None:
    shown = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}, {"name": "B"}]}]}}
    hidden = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "(hidden)"}, {"name": "B"}]}]}}
    assert without_values(shown) == hidden


def test_a_label_that_is_called_env_stays_as_it_is() -> None:
    shown = {"metadata": {"labels": {"env": "prod"}, "annotations": {"env": 5}}}
    assert without_values(shown) == shown
