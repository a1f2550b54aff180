"""What is asked about Pods on the control socket: apply, delete, object, pod-logs; and the lines of their keepers.

Everybody may look; each user may change what is theirs, root and the daemon's owner everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from aliquot.dialects.kube import WORKLOADS
from aliquot.dialects.local.objects import POD, LocalObject, amounts_of, read_objects, template_of
from aliquot.dialects.local.pods import LONGEST_GRACE
from aliquot.dialects.local.status import without_values
from aliquot.model.localpod import Applier, LocalPod, Workload
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.machine.pods.creation import new_pod
from aliquot.services.machine.pods.manager import PodManager, workload_key
from aliquot.services.machine.pods.status import pod_object, workload_object

_MOST_PODS = 1024  # on one machine
_MOST_OF_ONE_USER = 256  # so that nobody but root can use them all up
_LONGEST_ENVIRONMENT = 1 << 16  # characters of what is passed on from whoever applies
_STEP = 0.02  # seconds between looks whether a Pod is gone
_BETWEEN_REPORTS = 0.02  # seconds at least: each may be a write
_OVER_GRACE = 20.0  # seconds until we give up waiting for one to go

Say = Callable[[dict[str, Any]], None]
Operation = Callable[[dict[str, Any], Caller, Say], Awaitable[dict[str, Any]]]


class PodApi:
    """See the head of the file."""

    def __init__(self, pods: PodManager) -> None:
        self._pods = pods
        self.operations: dict[str, Operation] = {
            "apply": self._apply,
            "delete": self._delete,
            "object": self._object,
            "pod-logs": self._logs,
        }

    # --- apply -------------------------------------------------------------------------------------------------

    async def _apply(self, request: dict[str, Any], caller: Caller, _say: Say) -> dict[str, Any]:
        """All of it or nothing."""
        self._pods.machine.may_run(caller)
        objects = read_objects(request.get("objects"))
        if isinstance(objects, Invalid):
            raise invalid(objects)
        applier, now = _applier(request, caller), time.time()
        results: list[dict[str, Any]] = []
        applied: list[Workload | LocalPod] = []  # whatever is new, in the order of the manifest
        replaced: list[LocalPod] = []
        for each in objects:
            notes = list(each.notes)
            if each.kind == POD:
                action = self._pod(each, applier, now, applied, replaced, notes)
            elif each.makes_pods:
                action = self._workload(each, applier, now, applied, notes)
            else:
                action = "skipped"
            results.append(
                {"kind": each.kind, "namespace": each.namespace, "name": each.name, "action": action, "pods": [],
                 "notes": notes}
            )  # fmt: skip
        bare = [each for each in applied if isinstance(each, LocalPod)]
        workloads = [each for each in applied if isinstance(each, Workload)]
        self._check_count(bare, workloads, replaced, caller.uid)
        if request.get("dry_run") is not True:
            await self._make_room(replaced, bare, workloads)
            self._pods.put(applied, now)
            self._pods.tick(now)
            for result in results:
                result["pods"] = self._names(result)
        return {"results": results}

    def _check_count(
        self, bare: list[LocalPod], workloads: list[Workload], replaced: list[LocalPod], user: int
    ) -> None:
        known = self._pods.workloads | {workload_key(workload): workload for workload in workloads}
        alone = [pod for pod in self._pods.pods.values() if pod.owner is None and pod not in replaced]
        count = Counter(each.applier.user for each in (*alone, *bare))
        for each in known.values():
            count[each.applier.user] += max(1, amounts_of(each.manifest).replicas)  # one that wants none is kept too
        if count.total() > _MOST_PODS:
            allowed = f"at most {_MOST_PODS} Pods in all on one machine: delete some"
            raise invalid(Invalid("objects", count.total(), allowed))
        if user not in (0, os.geteuid()) and count[user] > _MOST_OF_ONE_USER:
            allowed = f"at most {_MOST_OF_ONE_USER} Pods of one user: delete some"
            raise invalid(Invalid("objects", count[user], allowed))

    def _pod(
        self,
        found: LocalObject,
        applier: Applier,
        now: float,
        applied: list[Workload | LocalPod],
        replaced: list[LocalPod],
        notes: list[str],
    ) -> str:
        there = self._pods.named(found.namespace, found.name)
        label = f"{POD} {found.namespace}/{found.name}"
        if there is not None:
            self._owner_only(applier.user, f"change {label}", there.applier.user)
            if there.owner is not None:
                owner = " ".join(there.owner)
                raise invalid(Invalid(f"{label}: metadata.name", found.name, f"another name: it is a Pod of {owner}"))
            if there.ending is None and there.template == template_of(found.manifest):
                return "unchanged"
            replaced.append(there)
            applier = _whose(there.applier, applier, notes)
        applied.append(new_pod(found.manifest, None, applier, self._pods.machine.home, now))
        return "created" if there is None or there.ending is not None else "configured"

    def _workload(
        self, found: LocalObject, applier: Applier, now: float, applied: list[Workload | LocalPod], notes: list[str]
    ) -> str:
        there = self._pods.workloads.get((found.kind, found.namespace, found.name))
        made = Workload(
            found.kind, found.namespace, found.name, found.manifest, template_of(found.manifest), applier, now
        )
        if there is None:
            applied.append(made)
            return "created"
        self._owner_only(applier.user, f"change {found.kind} {found.namespace}/{found.name}", there.applier.user)
        if there.manifest == found.manifest:
            return "unchanged"
        if found.kind == "Job" and there.template != made.template:
            where = f"{found.kind} {found.namespace}/{found.name}: spec.template"
            raise invalid(Invalid(where, "another one", "the one it has: a Job runs once; `aliquot delete` it first"))
        # Pods of the same template are left alone.
        applied.append(replace(made, applier=_whose(there.applier, applier, notes), created=there.created))
        return "configured"

    async def _make_room(self, replaced: list[LocalPod], bare: list[LocalPod], workloads: list[Workload]) -> None:
        """A bare Pod that is applied anew is made anew: two cannot have one name. What others did meanwhile stays."""
        if not replaced:
            return
        before = [self._pods.workloads.get(workload_key(workload)) for workload in workloads]
        self._pods.delete(workload=None, pods=replaced, grace=None)
        await self._until_gone([each.uid for each in replaced])
        now = [self._pods.workloads.get(workload_key(workload)) for workload in workloads]
        taken = [each.key for each in bare if self._pods.named(each.namespace, each.name) is not None]
        taken += [
            f"{each.kind} {each.namespace}/{each.name}"
            for each, was, is_now in zip(workloads, before, now, strict=True)
            if was is not is_now
        ]
        if taken:
            raise RefusedError("failed", text=f"{taken[0]} was changed by somebody else meanwhile: apply it again")

    def _names(self, result: Mapping[str, Any]) -> list[str]:
        if result["kind"] == POD:
            return [result["name"]]
        workload = self._pods.workloads.get((result["kind"], result["namespace"], result["name"]))
        there = [] if workload is None else self._pods.owned(workload)
        return sorted(each.name for each in there if each.ending is None)

    # --- delete ------------------------------------------------------------------------------------------------

    async def _delete(self, request: dict[str, Any], caller: Caller, say: Say) -> dict[str, Any]:
        grace = request.get("grace")
        if grace is not None and (
            isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= LONGEST_GRACE
        ):
            raise invalid(Invalid("grace", grace, "seconds, 0 to 86400"))
        found = self._find(request)
        self._owner_only(caller.uid, f"delete {found.kind if isinstance(found, Workload) else POD} {found.namespace}/"
                         f"{found.name}", found.applier.user)  # fmt: skip
        going = self._pods.owned(found) if isinstance(found, Workload) else [found]
        workload = found if isinstance(found, Workload) else None
        self._pods.delete(workload=workload, pods=going, grace=None if grace is None else float(grace))
        for each in going:
            say({"event": {"deleting": each.key}})
        await self._until_gone([each.uid for each in going])
        return {"deleted": [each.key for each in going]}

    async def _until_gone(self, uids: list[str]) -> None:
        there = [self._pods.pods[uid] for uid in uids if uid in self._pods.pods]
        deadline = time.monotonic() + max((each.ending or 0.0 for each in there), default=0.0) + _OVER_GRACE
        while any(uid in self._pods.pods for uid in uids):
            if time.monotonic() > deadline:
                left = ", ".join(self._pods.pods[uid].key for uid in uids if uid in self._pods.pods)
                raise RefusedError("failed", text=f"{left}: not all processes have ended; the daemon goes on trying")
            await asyncio.sleep(_STEP)
            self._pods.tick(time.time())

    # --- looking -----------------------------------------------------------------------------------------------

    async def _object(self, request: dict[str, Any], caller: Caller, _say: Say) -> dict[str, Any]:
        found = self._find(request)
        show = workload_object(self._pods, found) if isinstance(found, Workload) else pod_object(self._pods, found)
        theirs = caller.uid in (0, os.geteuid(), found.applier.user)
        return {"object": show if theirs else without_values(show)}

    async def _logs(self, request: dict[str, Any], _caller: Caller, _say: Say) -> dict[str, Any]:
        """Where the output is. Reading it is the caller's, with the caller's rights."""
        pod = self._find({**request, "kind": POD})
        assert isinstance(pod, LocalPod)
        mains = [container.name for container in pod.state.containers if not container.init]
        name = mains[0] if request.get("container") is None else request["container"]
        found = next((container for container in pod.state.containers if container.name == name), None)
        if found is None:
            names = sorted(container.name for container in pod.state.containers)
            raise RefusedError("unknown-name", name=str(name)[:80], names=names)
        running = not pod.state.phase.over
        return {"pod": pod.key, "container": found.name, "log": found.log, "running": running}

    def _find(self, request: Mapping[str, Any]) -> LocalPod | Workload:
        """Raises RefusedError, with the names there are."""
        kind, name = request.get("kind"), request.get("name")
        namespace = request.get("namespace") or "default"
        if kind == POD:
            pod = self._pods.named(str(namespace), str(name))
            if pod is not None:
                return pod
            names = [pod.key for pod in self._pods.pods.values()]
        elif isinstance(kind, str) and kind in WORKLOADS:
            workload = self._pods.workloads.get((str(kind), str(namespace), str(name)))
            if workload is not None:
                return workload
            names = [
                f"{workload.namespace}/{workload.name}"
                for workload in self._pods.workloads.values()
                if workload.kind == kind
            ]
        else:
            raise invalid(Invalid("kind", kind, f"Pod, {', '.join(WORKLOADS)}"))
        raise RefusedError("unknown-name", name=f"{namespace}/{name}"[:140], names=sorted(names))

    def _owner_only(self, user: int, what: str, owner: int) -> None:
        if user not in (0, os.geteuid(), owner):
            raise RefusedError("denied", text=f"only root{f' and user {owner}' if owner else ''} may {what}")

    # --- keepers -----------------------------------------------------------------------------------------------

    async def keep(self, request: dict[str, Any], caller: Caller, reader: asyncio.StreamReader, say: Say) -> None:
        """As long as its line is open."""
        pod, entry = await self._pods.keep(request, caller, say)
        try:
            while line := await reader.readline():
                said = json.loads(line)
                if isinstance(said, dict) and isinstance(said.get("state"), dict):
                    self._pods.report(pod.uid, said["state"], time.time())
                    say({"event": {"noted": said.get("report")}})
                    await asyncio.sleep(_BETWEEN_REPORTS)
        except (ValueError, RecursionError):
            raise RefusedError("malformed", text="not a line of JSON") from None
        finally:
            self._pods.hung_up(pod.uid, say)
            if entry is not None:
                self._pods.machine.leave(entry, time.time())


def _whose(owner: Applier, changing: Applier, notes: list[str]) -> Applier:
    """Whose it is does not change with who changes it: nor what its processes find around them, which may be secret."""
    if owner.user == changing.user:
        return changing
    notes.append(f"it stays user {owner.user}'s: its containers run as they do, in their folder and environment")
    return owner


def _applier(request: Mapping[str, Any], caller: Caller) -> Applier:
    folder, environment = request.get("cwd", "/"), request.get("env", {})
    if not isinstance(folder, str) or not folder.startswith("/") or "\0" in folder:
        raise invalid(Invalid("cwd", folder, "an absolute path"))
    if not isinstance(environment, dict) or not all(
        isinstance(value, str) and "\0" not in name + value and name and "=" not in name
        for name, value in environment.items()
    ):
        raise invalid(Invalid("env", environment, "a mapping of names to text"))
    size = sum(len(name) + len(value) for name, value in environment.items())
    if size > _LONGEST_ENVIRONMENT:  # every container gets it
        raise invalid(Invalid("env", f"{size} characters", f"at most {_LONGEST_ENVIRONMENT}"))
    return Applier(caller.uid, caller.gid, folder, environment)
