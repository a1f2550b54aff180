"""What an uninstallation that is ended in the middle leaves for the next one."""

from __future__ import annotations

import asyncio
import copy

import pytest

from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.dialects.gpushare import MEMORY
from aliquot.dialects.native import AGENT, COUNTED
from aliquot.services.install.uninstaller import Uninstaller
from kit.clusters.fakeapi import Api, forbidden

PATH = "/api/v1/nodes/n1"
NODE = {
    "metadata": {"name": "n1", "resourceVersion": "1", "annotations": {AGENT: "away", COUNTED: MEMORY, "mine": "yes"}},
    "status": {"capacity": {MEMORY: "655360", "cpu": "8"}, "allocatable": {MEMORY: "655360", "cpu": "8"}},
}


def clean(api: Api) -> bool:
    uninstaller = Uninstaller(api.kube, report=lambda *_: None, now=lambda: 0.0, until=1.0)
    return asyncio.run(uninstaller._clean_node(copy.deepcopy(api.objects[PATH]), {}, None))


@pytest.mark.parametrize("ends_at", ["/status", "n1"], ids=["at the first patch", "at the second patch"])
def test_node_is_cleaned_by_the_next_uninstallation_if_one_ends_between_its_patches(ends_at: str) -> None:
    """By the annotations it knows that the amounts are ours."""
    api = Api({PATH: copy.deepcopy(NODE)})
    api.refuse = lambda verb, path: forbidden()(verb, path) if path.endswith(ends_at) else None
    with pytest.raises(ApiError):
        clean(api)
    api.refuse = lambda verb, path: None
    assert clean(api)
    assert api.objects[PATH]["metadata"]["annotations"] == {"mine": "yes"}
    assert api.objects[PATH]["status"] == {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8"}}
    assert not clean(api)


def test_node_is_cleaned_with_two_patches_and_no_conflict() -> None:
    api = Api({PATH: copy.deepcopy(NODE)})
    assert clean(api)
    assert [path for path, _ in api.sent("patch")] == [f"{PATH}/status", PATH]
