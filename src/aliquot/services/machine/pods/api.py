"""The Pod operations of the control socket: apply, delete, object, pod-logs; and the connections of supervisors.

Everybody may read. Users may change their own objects; root and the daemon's owner may change all.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from aliquot.adapters.host.users import account_of, user_name
from aliquot.dialects import QgpuRules, Rules
from aliquot.dialects.kube.manifests import WORKLOADS
from aliquot.dialects.local.claims import accepted_claim, chosen_cards, largest_request
from aliquot.dialects.local.objects import (
    CRON_JOB,
    POD,
    LocalObject,
    amounts_of,
    read_objects,
    template_of,
    template_pod_of,
)
from aliquot.dialects.local.status import without_values
from aliquot.dialects.native import TOGETHER
from aliquot.dialects.pods import annotation_field
from aliquot.model.containers.localpod import Applier, LocalPod, Workload
from aliquot.model.refusal import Invalid
from aliquot.model.status.answers import AppliedObject, AppliedObjects, DeletedPods, PodLog, Send, ShownObject
from aliquot.model.status.requests import ApplyRequest, DeleteRequest, ObjectRequest, PodLogRequest, SupervisorRequest
from aliquot.services.daemon.connections import Client
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.daemon.requests import Operation
from aliquot.services.machine.pods.creation import new_pod
from aliquot.services.machine.pods.cron import CronJobs, zone_of
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.pods.records import WorkloadKey, workload_key
from aliquot.services.machine.pods.reports import parse_report
from aliquot.services.machine.pods.status import pod_object, workload_object
from aliquot.services.machine.requests import card_names, card_sizes, parse_rules

_MOST_PODS = 1024  # on one machine
_MOST_OF_ONE_USER = 256  # so that only root can use up all Pods
_LONGEST_ENVIRONMENT = 1 << 16  # characters of the environment of the user who applies
_STEP, _LONG_STEP = 0.02, 0.25  # seconds between checks whether Pods are gone: at first, and for those that take long
_LONG = 5.0  # seconds after which the long steps begin
_BETWEEN_REPORTS = 0.02  # seconds at least: every report may be a write
_OVER_GRACE = 20.0  # seconds after the grace period until `delete` gives up waiting


class PodApi:
    """See the module docstring."""

    def __init__(self, pods: PodManager, cron_jobs: CronJobs, rules: QgpuRules = QgpuRules.SEED) -> None:
        self._pods, self._cron_jobs, self._rules = pods, cron_jobs, rules
        self._supervising: dict[str, Client] = {}  # connections of supervisors, by their Pod's uid
        self._storing = asyncio.Lock()  # between a check and the write, nothing else is written
        self._checking: asyncio.Task[None] | None = None  # the next check of all who wait for Pods to be gone
        self._waits_since = 0.0  # when the last of them began to wait, on the loop's clock
        self.operations: dict[str, Operation[Any]] = {
            "apply": Operation(ApplyRequest, self._apply),
            "delete": Operation(DeleteRequest, self._delete),
            "object": Operation(ObjectRequest, self._object),
            "pod-logs": Operation(PodLogRequest, self._logs),
        }

    # --- apply -------------------------------------------------------------------------------------------------

    async def _apply(self, request: ApplyRequest, caller: Caller, _send: Send) -> AppliedObjects:
        """Apply all objects or none. Others have their turn after each object: hundreds take a third of a second."""
        self._pods.machine.admission.may_run(caller)
        rules = parse_rules(request.rules, self._rules)
        if isinstance(rules, Invalid):
            raise invalid(rules)
        objects = await asyncio.to_thread(read_objects, request.objects, Rules(rules))
        if isinstance(objects, Invalid):
            raise invalid(objects)
        for item in objects:
            self._check_here(item)
            await asyncio.sleep(0)
        applier, now = _applier(request, caller), time.time()
        results: list[AppliedObject] = []
        applied: list[Workload | LocalPod] = []  # new and changed ones, in the order of the manifest
        replaced: list[LocalPod] = []
        before: dict[WorkloadKey, Workload | None] = {}  # as they were when they were checked
        for item in objects:
            await asyncio.sleep(0)
            notes = list(item.notes)
            if item.kind == POD:
                action = self._pod(item, applier, now, applied, replaced, notes)
            elif item.makes_pods:
                key = (item.kind, item.namespace, item.name)
                before[key] = self._pods.workloads.get(key)
                action = self._workload(item, applier, now, applied, notes)
            else:
                action = "skipped"
            results.append(AppliedObject(item.kind, item.namespace, item.name, action, notes=notes))
        bare = [item for item in applied if isinstance(item, LocalPod)]
        workloads = [item for item in applied if isinstance(item, Workload)]
        self._check_count(bare, workloads, replaced, caller.uid)
        if not request.dry_run:
            if replaced:  # two Pods cannot have one name
                await self._pods.delete(workload=None, pods=replaced, grace=None)
                await self._until_gone([pod.uid for pod in replaced])
            async with self._storing:
                self._refuse_changed({workload_key(made): before[workload_key(made)] for made in workloads}, bare)
                self._check_count(bare, workloads, replaced, caller.uid)  # others may have been stored meanwhile
                await self._pods.put(applied, now)
            self._pods.tick(now)
            for result in results:
                await asyncio.sleep(0)
                result.pods = self._names(result)
        return AppliedObjects(results)

    def _check_here(self, item: LocalObject) -> None:
        """Refuse what this machine can never run."""
        if not item.makes_pods:
            return
        label, machine = f"{item.kind} {item.namespace}/{item.name}", self._pods.machine
        zone = zone_of(item.manifest) if item.kind == CRON_JOB else None
        if isinstance(zone, Invalid):
            raise invalid(Invalid(f"{label}: {zone.field}", zone.value, zone.allowed))
        pod = template_pod_of(item.manifest)
        claim = accepted_claim(pod)
        why = None if claim is None else machine.why_never(structs.replace(claim, cpu_milli=0, memory_mib=0))
        if claim is not None and why is not None:
            chosen = chosen_cards(pod)
            # Where any card would do, it is the choice that nothing here meets.
            if chosen and machine.why_never(structs.replace(claim, cards=None, cpu_milli=0, memory_mib=0)) is None:
                (field, value), here = chosen, card_names(machine.cards)
            else:
                (field, value), here = largest_request(pod, claim), card_sizes(machine.cards)
            field = {POD: "", CRON_JOB: "spec.jobTemplate.spec.template."}.get(item.kind, "spec.template.") + field
            raise invalid(Invalid(f"{label}: {field}", value, f"this machine has {here}; {why}"))
        if claim is not None and claim.group:
            broken = machine.group_members.refusal(claim.group, claim.app_class)
            if broken is not None:
                raise invalid(Invalid(f"{label}: {annotation_field(TOGETHER)}", broken.value, broken.allowed))

    def _check_count(
        self, bare: list[LocalPod], workloads: list[Workload], replaced: list[LocalPod], user: int
    ) -> None:
        known = self._pods.workloads | {workload_key(workload): workload for workload in workloads}
        alone = [pod for pod in self._pods.pods.values() if pod.owner is None and pod not in replaced]
        count = Counter(account_of(pod.applier.user) for pod in (*alone, *bare))
        for workload in known.values():
            count[account_of(workload.applier.user)] += max(
                1, amounts_of(workload.manifest).replicas
            )  # 0 replicas need a record too
        if count.total() > _MOST_PODS:
            allowed = f"at most {_MOST_PODS} Pods on one machine: delete some"
            raise invalid(Invalid("objects", count.total(), allowed))
        if user not in (0, os.geteuid()) and (found := count[account_of(user)]) > _MOST_OF_ONE_USER:
            allowed = f"at most {_MOST_OF_ONE_USER} Pods per user: delete some"
            raise invalid(Invalid("objects", found, allowed))

    def _pod(
        self,
        found: LocalObject,
        applier: Applier,
        now: float,
        applied: list[Workload | LocalPod],
        replaced: list[LocalPod],
        notes: list[str],
    ) -> str:
        existing = self._pods.named(found.namespace, found.name)
        label = f"{POD} {found.namespace}/{found.name}"
        if existing is not None:
            self._owner_only(applier.user, f"change {label}", existing.applier.user)
            if existing.owner is not None:
                owner = " ".join(existing.owner)
                raise invalid(
                    Invalid(f"{label}: metadata.name", found.name, f"another name: this Pod belongs to {owner}")
                )
            if existing.ending is None and existing.template == template_of(found.manifest):
                return "unchanged"
            replaced.append(existing)
            applier = _owner(existing.applier, applier, notes)
        applied.append(new_pod(found.manifest, None, applier, self._pods.machine.home, now))
        return "created" if existing is None or existing.ending is not None else "configured"

    def _workload(
        self, found: LocalObject, applier: Applier, now: float, applied: list[Workload | LocalPod], notes: list[str]
    ) -> str:
        existing = self._pods.workloads.get((found.kind, found.namespace, found.name))
        made = Workload(
            found.kind, found.namespace, found.name, found.manifest, template_of(found.manifest), applier, now
        )
        if existing is None:
            applied.append(made)
            return "created"
        self._owner_only(applier.user, f"change {found.kind} {found.namespace}/{found.name}", existing.applier.user)
        if existing.manifest == found.manifest:
            return "unchanged"
        if found.kind == "Job" and existing.template != made.template:
            where = f"{found.kind} {found.namespace}/{found.name}: spec.template"
            raise invalid(
                Invalid(where, "a changed template", "the template that it has; `aliquot delete` the Job first")
            )
        # Pods of the same template stay.
        applied.append(replace(made, applier=_owner(existing.applier, applier, notes), created=existing.created))
        return "configured"

    def _refuse_changed(self, before: Mapping[WorkloadKey, Workload | None], bare: list[LocalPod]) -> None:
        """Refuse what others changed since it was checked."""
        taken = [pod.key for pod in bare if self._pods.named(pod.namespace, pod.name) is not None]
        taken += [
            f"{kind} {namespace}/{name}"
            for (kind, namespace, name), was in before.items()
            if self._pods.workloads.get((kind, namespace, name)) is not was
        ]
        if taken:
            raise RefusedError("failed", text=f"another user changed {taken[0]} meanwhile: apply it again")

    def _names(self, applied: AppliedObject) -> list[str]:
        if applied.kind == POD:
            return [applied.name]
        workload = self._pods.workloads.get((applied.kind, applied.namespace, applied.name))
        owned = [] if workload is None else self._pods.owned(workload)
        return sorted(pod.name for pod in owned if pod.ending is None)

    # --- delete ------------------------------------------------------------------------------------------------

    async def _delete(self, request: DeleteRequest, caller: Caller, send: Send) -> DeletedPods:
        async with self._storing:
            found = self._find(request.kind, request.namespace, request.name)
            workload = found if isinstance(found, Workload) else None
            kind = POD if workload is None else workload.kind
            self._owner_only(caller.uid, f"delete {kind} {found.namespace}/{found.name}", found.applier.user)
            going = self._pods.owned(found) if isinstance(found, Workload) else [found]
            await self._pods.delete(workload=workload, pods=going, grace=request.grace)
        for pod in going:
            send({"event": {"deleting": pod.key}})
        uids = [pod.uid for pod in going]
        if workload is not None and workload.kind == CRON_JOB:
            uids += self._cron_jobs.delete_jobs(workload, request.grace)
        await self._until_gone(uids)
        return DeletedPods([pod.key for pod in going])

    async def _until_gone(self, uids: list[str]) -> None:
        ending = [self._pods.pods[uid] for uid in uids if uid in self._pods.pods]
        deadline = time.monotonic() + max((pod.ending or 0.0 for pod in ending), default=0.0) + _OVER_GRACE
        self._waits_since = asyncio.get_running_loop().time()
        while any(uid in self._pods.pods for uid in uids):
            if time.monotonic() > deadline:
                left = ", ".join(self._pods.pods[uid].key for uid in uids if uid in self._pods.pods)
                raise RefusedError("failed", text=f"{left}: some processes have not ended; the daemon keeps trying")
            if self._checking is None:
                self._checking = asyncio.create_task(self._check_later())
            await asyncio.shield(self._checking)

    async def _check_later(self) -> None:
        """Once for all who wait: each check looks at all Pods, and a user may wait for hundreds that do not end."""
        try:
            waited = asyncio.get_running_loop().time() - self._waits_since
            await asyncio.sleep(_STEP if waited < _LONG else _LONG_STEP)
            self._pods.tick(time.time())
            await self._pods.sweeper.look()
        finally:
            self._checking = None

    # --- queries -----------------------------------------------------------------------------------------------

    async def _object(self, request: ObjectRequest, caller: Caller, _send: Send) -> ShownObject:
        found = self._find(request.kind, request.namespace, request.name)
        shown = workload_object(self._pods, found) if isinstance(found, Workload) else pod_object(self._pods, found)
        permitted = caller.uid in (0, os.geteuid(), found.applier.user)
        return ShownObject(shown if permitted else without_values(shown))

    async def _logs(self, request: PodLogRequest, caller: Caller, _send: Send) -> PodLog:
        """The path of the output. The caller reads it with its own permissions."""
        pod = self._find(POD, request.namespace, request.name)
        assert isinstance(pod, LocalPod)
        self._owner_only(caller.uid, f"read the output of {pod.key}", pod.applier.user)
        mains = [container.name for container in pod.state.containers if not container.init]
        name = mains[0] if request.container is None else request.container
        found = next((container for container in pod.state.containers if container.name == name), None)
        if found is None:
            names = sorted(container.name for container in pod.state.containers)
            raise RefusedError("unknown-name", name=name[:80], names=names)
        running = not pod.state.phase.over
        return PodLog(pod.key, found.name, found.log, running)

    def _find(self, kind: str | None, namespace: str | None, name: str | None) -> LocalPod | Workload:
        """Raises RefusedError with the existing names."""
        namespace, name = namespace or "default", name or ""
        if kind == POD:
            pod = self._pods.named(namespace, name)
            if pod is not None:
                return pod
            names = [pod.key for pod in self._pods.pods.values()]
        elif kind in WORKLOADS:
            workload = self._pods.workloads.get((kind, namespace, name))
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
            raise RefusedError("denied", text=f"only root{f' and {user_name(owner)}' if owner else ''} may {what}")

    # --- supervisors -------------------------------------------------------------------------------------------

    async def serve_supervisor(self, request: SupervisorRequest, caller: Caller, client: Client) -> None:
        """Until its connection closes. A supervisor runs as its Pod's user, who may have taken it over: it has one
        connection, the newest. That does not count among the user's: the number of Pods is limited already."""
        send = client.send
        uid = self._pods.check_supervisor(request, caller)
        former, self._supervising[uid] = self._supervising.get(uid), client
        if former is not None:
            former.drop()
        client.uncount()
        try:
            await self._listen_to_supervisor(request, caller, client, send)
        finally:
            if self._supervising.get(uid) is client:
                del self._supervising[uid]

    async def _listen_to_supervisor(
        self, request: SupervisorRequest, caller: Caller, client: Client, send: Send
    ) -> None:
        pod, entry = await self._pods.connect_supervisor(request, caller, send)
        try:
            while line := await client.readline():
                message = json.loads(line)
                if isinstance(message, dict) and isinstance(message.get("state"), dict):
                    await self._pods.report(pod.uid, parse_report(message["state"]), time.time())
                    send({"event": {"noted": message.get("report")}})
                    await asyncio.sleep(_BETWEEN_REPORTS)
        except (ValueError, RecursionError):
            raise RefusedError("malformed", text="not a line of JSON") from None
        finally:
            self._pods.disconnect_supervisor(pod.uid, send)
            if entry is not None:
                self._pods.machine.admission.leave(entry, time.time())


def _owner(owner: Applier, changing: Applier, notes: list[str]) -> Applier:
    """The owner stays when another user changes the object. So does the environment, which may contain secrets."""
    if owner.user == changing.user:
        return changing
    notes.append(
        f"{user_name(owner.user)} stays its owner: containers run as that user, in that user's folder and environment"
    )
    return owner


def _applier(request: ApplyRequest, caller: Caller) -> Applier:
    folder, environment = request.cwd, request.env
    if not folder.startswith("/") or not _is_for_kernel(folder):
        raise invalid(Invalid("cwd", folder, "an absolute path"))
    if not all(_is_for_kernel(name + value) and name and "=" not in name for name, value in environment.items()):
        raise invalid(Invalid("env", environment, "a mapping of names to strings"))
    size = sum(len(name) + len(value) for name, value in environment.items())
    if size > _LONGEST_ENVIRONMENT:  # every container gets it
        raise invalid(Invalid("env", f"{size} characters", f"at most {_LONGEST_ENVIRONMENT}"))
    return Applier(caller.uid, caller.gid, folder, environment)


def _is_for_kernel(text: str) -> bool:
    """Whether it can be a path or a variable. Bytes that are no UTF-8 can: Python writes them as U+DC80 to U+DCFF."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
