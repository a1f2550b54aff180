"""Follows the PodGroups of every API that the cluster serves (dialects/podgroups.py).

Most clusters serve one of these APIs or none. One that is missing is asked for again from time to time: its CRD may be
installed later. Nothing is logged about it, and no rights are needed for what does not exist.

An API whose list fails for good (its conversion webhook is gone, or its aggregated server) must not keep every Pod of
the cluster waiting: after `PATIENCE` we go on without its groups, say so, and read them once it answers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects.podgroups import RESOURCE, VERSIONS, GroupObject
from aliquot.services.scheduler.cluster import Cluster

log = logging.getLogger(__name__)

_RETRY = 1.0  # seconds, while the API server does not answer
_SELDOM = 60.0  # seconds, while it serves no PodGroups of that API
PATIENCE = 60.0  # seconds after Nodes and Pods are known


class GroupSink:
    """Applies the PodGroups of one API."""

    def __init__(self, cluster: Cluster, api: str) -> None:
        self._roster, self._api = cluster.groups, api

    def listing(self) -> None: ...

    def changed(self, item: GroupObject) -> None:
        self._roster.set_group(self._api, item)

    def gone(self, key: str) -> None:
        self._roster.drop_group(f"{self._api}/{key}")

    def listed(self, drift: int) -> None: ...


class PodGroups:
    """See the head of the file. `listed`: Nodes and Pods are known, so the API server answers."""

    def __init__(self, kube: Kube, cluster: Cluster, listed: asyncio.Event, *, patience: float = PATIENCE) -> None:
        self.answered = asyncio.Event()  # every API's are known, not there for us, or given up
        self._kube = kube
        self._reflectors = {api: Reflector(kube, "", GroupObject, GroupSink(cluster, api)) for api in VERSIONS}
        self._open = set(VERSIONS)  # APIs without an answer yet
        self._given_up: set[str] = set()  # those that did not answer in time
        self._listed, self._patience = listed, patience

    def known(self) -> bool:
        """Whether the PodGroups of every API are known: all answered, and none is given up."""
        return self.answered.is_set() and not self._given_up

    async def run(self) -> None:
        """Follow the PodGroups until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_up())
            for api in VERSIONS:
                tasks.create_task(self._follow(api))

    async def _give_up(self) -> None:
        await self._listed.wait()
        await asyncio.sleep(self._patience)
        for api in sorted(self._open):
            path = self._reflectors[api].path or f"/apis/{api}"
            effect = "Pods of its PodGroups are not held for each other until it answers"
            fix = f"kubectl get --raw {path} shows the error; remove the CRD or APIService if nothing serves it"
            log.warning("pod_groups_unanswered", extra={"data": {"path": path, "effect": effect, "fix": fix}})
            self._given_up.add(api)
            self._close(api)

    async def _follow(self, api: str) -> None:
        while True:
            try:
                version = await self._served(api)
            except Unreachable:
                await asyncio.sleep(_RETRY)
                continue
            if version is None:
                await self._without(api)
            else:
                await self._reflect(api, f"/apis/{api}/{version}/{RESOURCE}")

    async def _served(self, api: str) -> str | None:
        """The newest version with PodGroups in it; scheduling.k8s.io has other kinds, and has always been there."""
        try:
            group: Any = await self._kube.get(f"/apis/{api}")
            served = {version.get("version") for version in group.get("versions") or ()}
            for version in VERSIONS[api]:
                if version not in served:
                    continue
                kinds: Any = await self._kube.get(f"/apis/{api}/{version}")
                if any(kind.get("name") == RESOURCE for kind in kinds.get("resources") or ()):
                    return version
        except ApiError as error:  # 404: no such group; 403: discovery is closed to us
            if error.status not in (403, 404):
                raise Unreachable(str(error)) from error
        return None

    async def _without(self, api: str) -> None:
        self._answer(api)
        await asyncio.sleep(_SELDOM)

    def _answer(self, api: str) -> None:
        if api in self._given_up:
            self._given_up.discard(api)
            log.info("pod_groups_answered", extra={"data": {"api": api}})
        self._close(api)

    def _close(self, api: str) -> None:
        self._open.discard(api)
        if not self._open:
            self.answered.set()

    async def _reflect(self, api: str, path: str) -> None:
        """Until cancelled, or until the API server refuses the first list."""
        reflector = self._reflectors[api]
        reflector.follow(path)
        await reflector.run_if_readable(lambda: self._answer(api))
        fix = f"the account needs list and watch on {RESOURCE} ({api}): upgrade the chart"
        log.warning("pod_groups_not_readable", extra={"data": {"path": path, "fix": fix}})
        await self._without(api)
