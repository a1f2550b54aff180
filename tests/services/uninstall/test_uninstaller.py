"""What an uninstallation that is ended in the middle leaves for the next one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

import pytest

from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.dialects.gpushare import MEMORY
from aliquot.dialects.native import AGENT, COUNTED
from aliquot.dialects.wire.ownobjects import MANAGED_LABEL, NAME_LABEL
from aliquot.services.uninstall.clusterobjects import UninstallError
from aliquot.services.uninstall.sweeper import SweepSettings, within_limit_range
from aliquot.services.uninstall.uninstaller import Uninstaller
from kit.clusters.fakeapi import Api, Json, forbidden

PATH = "/api/v1/nodes/n1"
NODE = {
    "metadata": {"name": "n1", "resourceVersion": "1", "annotations": {AGENT: "away", COUNTED: MEMORY, "mine": "yes"}},
    "status": {"capacity": {MEMORY: "655360", "cpu": "8"}, "allocatable": {MEMORY: "655360", "cpu": "8"}},
}


def clean(api: Api) -> bool:
    uninstaller = Uninstaller(api.kube, report=lambda *_: None, now=lambda: 0.0, until=1.0)
    return asyncio.run(uninstaller._clean_node(copy.deepcopy(api.objects[PATH]), None))


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


def test_uninstallation_ends_with_an_error_if_the_list_of_pods_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    api, asked = Api({}), 0

    async def get(path: str, **_: object) -> Json:
        nonlocal asked
        asked += 1
        assert asked < 10, "it is not asked for ever"
        return {"items": [], "metadata": {"continue": "again"} if path == "/api/v1/pods" else {}}

    monkeypatch.setattr(api.kube, "get", get)
    uninstaller = Uninstaller(api.kube, report=lambda *_: None, now=lambda: 0.0, until=1.0)
    with pytest.raises(UninstallError, match="the list /api/v1/pods has no end"):
        asyncio.run(uninstaller.holders())


def test_node_is_cleaned_with_two_patches_and_no_conflict() -> None:
    api = Api({PATH: copy.deepcopy(NODE)})
    assert clean(api)
    assert [path for path, _ in api.sent("patch")] == [f"{PATH}/status", PATH]


PODS = "/api/v1/namespaces/aliquot-system/pods"
FORBIDDEN = 'pods "aliquot-sweep-n1" is forbidden: '


class DeletingApi(Api):
    async def delete(self, path: str, **_: object) -> None:
        if self.objects.pop(path, None) is None:
            raise ApiError(404, "NotFound", path)


class LimitedApi(DeletingApi):
    """Its namespace has a LimitRange, which says this of every Pod that it does not let in."""

    says: Callable[[Json], str]

    async def create(self, path: str, body: Json, **more: object) -> Json:
        refusal = self.says(body["spec"]["containers"][0]["resources"])
        if refusal:
            self.calls.append(("refused", path, body))
            raise ApiError(403, "Forbidden", FORBIDDEN + refusal)
        await super().create(path, body, **more)
        self.objects[f"{path}/{body['metadata']['name']}"]["status"] = {"phase": "Succeeded"}
        return body


def sweep(api: Api) -> str | None:
    uninstaller = Uninstaller(api.kube, report=lambda *_: None, now=lambda: 0.0, until=1.0)
    return asyncio.run(uninstaller._sweep_node("aliquot-system", "n1", SweepSettings("image"), False))


def test_sweeper_requests_what_a_limit_range_wants() -> None:
    def says(resources: Json) -> str:
        wanted = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
        if resources == wanted:
            return ""
        if resources["requests"]["cpu"] == "0":
            of_pod = "minimum memory usage per Pod is 64Mi, but request is 0"
            return f"[minimum cpu usage per Container is 10m, but request is 0, {of_pod}]"
        return "maximum memory usage per Container is 128Mi, but limit is 256Mi"

    api = LimitedApi()
    api.says = says
    assert sweep(api) is None
    assert [len(api.sent(verb)) for verb in ("refused", "create")] == [2, 1]


def test_sweeper_that_no_limit_range_lets_in_is_a_problem_of_its_node() -> None:
    amounts = iter(range(100))
    api = LimitedApi()
    api.says = lambda _: f"minimum cpu usage per Container is {next(amounts)}m, but request is 0"
    problem = sweep(api)
    assert problem is not None
    assert problem.startswith(f"node n1 is not cleaned: {FORBIDDEN}minimum cpu usage")


@pytest.mark.parametrize(
    ("refusal", "requests", "limits"),
    [
        ("minimum memory usage per Container is 1Gi, but request is 0", {"memory": "1Gi"}, {"memory": "1Gi"}),
        ("maximum cpu usage per Container is 2.  No limit is specified", {}, {"cpu": "2"}),
        ("minimum cpu usage per Pod is 100m.  No request is specified", {"cpu": "100m"}, {}),
        (
            "memory max limit to request ratio per Container is 4, but no request is specified or request is 0",
            {"memory": "256Mi"},
            {},
        ),
        (
            "cpu max limit to request ratio per Container is 4, but no request is specified or request is 0",
            {"cpu": "100m"},
            {"cpu": "100m"},
        ),
        (
            "[minimum cpu usage per Container is 2, but request is 0, cpu max limit to request ratio per Pod is 1, but"
            " no request is specified or request is 0]",
            {"cpu": "2"},
            {"cpu": "2"},
        ),
    ],
)
def test_bounds_are_read_from_the_refusal(refusal: str, requests: Json, limits: Json) -> None:
    found = within_limit_range(SweepSettings("image"), FORBIDDEN + refusal)
    assert found is not None
    zero, most = {"cpu": "0", "memory": "0"}, {"memory": "256Mi"}
    assert found.resources == {"requests": {**zero, **requests}, "limits": {**most, **limits}}
    assert within_limit_range(found, FORBIDDEN + refusal) is None, "it would change nothing"


def test_other_refusals_change_nothing() -> None:
    assert within_limit_range(SweepSettings("image"), FORBIDDEN + "exceeded quota: q, requested: pods=1") is None


SPACE = "/api/v1/namespaces/aliquot-system"


@pytest.mark.parametrize(
    ("labels", "pods", "stays"),
    [
        ({MANAGED_LABEL: "aliquot"}, [], False),
        ({MANAGED_LABEL: "aliquot"}, [{NAME_LABEL: "aliquot"}], False),
        ({MANAGED_LABEL: "aliquot"}, [{"app": "theirs"}], True),
        ({MANAGED_LABEL: "Helm"}, [], True),
        ({}, [], True),
    ],
    ids=["ours", "a sweeper that failed", "with a Pod of others", "Helm's", "of others"],
)
def test_namespace_is_deleted_if_it_is_ours_and_nobody_else_is_in_it(labels: Json, pods: Json, stays: bool) -> None:
    items = [{"metadata": {"name": "p", "labels": of}} for of in pods]
    api = DeletingApi({SPACE: {"metadata": {"name": "aliquot-system", "labels": labels}}, PODS: {"items": items}})
    uninstaller = Uninstaller(api.kube, report=lambda *_: None, now=lambda: 0.0, until=1.0)
    asyncio.run(uninstaller.delete_objects("aliquot-system", ()))
    assert (SPACE in api.objects) is stays
