"""What is told of Pods: enough for everybody, and nothing that is somebody's own."""

from __future__ import annotations

from aliquot.model.localpod import ContainerState
from aliquot.services.podstatus import container_told, without_values


def test_others_see_the_names_of_variables_but_not_what_they_are() -> None:
    shown = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}, {"name": "B"}]}]}}
    hidden = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "(not yours)"}, {"name": "B"}]}]}}
    assert without_values(shown) == hidden


def test_a_label_that_is_called_env_stays_as_it_is() -> None:
    shown = {"metadata": {"labels": {"env": "prod"}, "annotations": {"env": 5}}}
    assert without_values(shown) == shown


def test_of_very_long_commands_the_beginning_is_told() -> None:
    told = container_told(ContainerState("main", "", ("python", "-c", "x" * 1000, "more"), "/log"))
    assert told["command"] == ["python", "-c", "x" * 490 + "..."]
    assert container_told(ContainerState("main", "", ("sleep", "600"), "/log"))["command"] == ["sleep", "600"]
