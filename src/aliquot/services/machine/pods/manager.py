"""The Pods of one machine: what was applied, whom that wants, who runs. One thread, joined by the daemon's loop.

    apply, delete   what is wanted changes; it is on the disk before anything is done about it
    tick            what is wanted is compared with what there is: keepers are started, told to end, and, late, killed
    keep            a keeper says that it is there: its Pod waits for room, and hears where it may start
    report          what a keeper tells of its containers

A Pod goes only when none of its processes lives. A keeper that is gone before its Pod was over takes the Pod with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aliquot.adapters.host import children, processes
from aliquot.adapters.host.processend import when_ended
from aliquot.adapters.host.supervisors import SupervisorError, Supervisors, make_log_folder
from aliquot.adapters.storage.database import StoreError
from aliquot.adapters.storage.objectstore import ObjectStore
from aliquot.dialects.local.objects import amounts_of
from aliquot.dialects.local.pods import restart_policy_of
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.localpod import LocalPod, Phase, Workload
from aliquot.model.tenancy import Tenancy
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.pods import creation, launchspec
from aliquot.services.machine.pods.controllers import decide
from aliquot.services.machine.pods.reports import with_report
from aliquot.services.machine.pods.startorder import StartOrder
from aliquot.services.machine.pods.supervisor import POD_VARIABLE
from aliquot.services.machine.queue import QueuedRequest
from aliquot.services.machine.tenants import LocalMachine

_LOG = logging.getLogger("aliquot.pods")
_MOST_STARTING = 8  # keepers of one user at once: each takes some tens of milliseconds of a core
_PATIENCE = 3.0  # seconds over the grace period until a keeper is killed
_AGAIN = 5.0  # seconds after which a keeper that could not be started is tried again

Say = Callable[[dict[str, Any]], None]
WorkloadKey = tuple[str, str, str]


class PodManager:
    """See the head of the file. `environment` is what the processes of a tenant need, by its folder."""

    def __init__(
        self,
        node: LocalMachine,
        store: ObjectStore,
        keepers: Supervisors,
        environment: Callable[[Tenancy, str], dict[str, Any]],
    ) -> None:
        self.machine = node
        self.workloads: dict[WorkloadKey, Workload] = {}
        self.pods: dict[str, LocalPod] = {}
        self.claims: dict[str, Claim | None] = {}
        self._store, self._keepers, self._environment = store, keepers, environment
        self._lines: dict[str, Say] = {}  # to the keepers
        self._start_order = StartOrder(self.pods)
        self._not_before: dict[str, float] = {}  # on the monotonic clock
        self._kill_at: dict[str, float] = {}
        self._clearing: set[str] = set()  # without a keeper, but perhaps not without processes
        self._quiet = False  # nothing more is begun

    # --- after a restart ---------------------------------------------------------------------------------------

    def restore(self, *, rebooted: bool) -> None:
        """What there was is there again; whose keeper is gone is dealt with as if it went now."""
        self.workloads.update({workload_key(workload): workload for workload in self._store.workloads()})
        for pod in self._store.pods():
            self._know(pod)
            if pod.supervisor is not None and not rebooted and processes.lives(*pod.supervisor):
                self._watch(pod)
                if pod.ending is not None:
                    self._tell_end(pod)
                elif pod.state.phase is Phase.PENDING and pod.state.node is None:
                    self._start_order.begin(pod.uid, again=True)
            elif pod.supervisor is not None or pod.state.phase is Phase.RUNNING:
                self._supervisor_lost(pod, rebooted=rebooted)
            else:
                self._clearing.add(pod.uid)
        self._not_before.clear()  # whoever waited for the daemon has waited enough
        self._clear_strays()

    def _clear_strays(self) -> None:
        """Logs of Pods that never were written down, or were forgotten just before."""
        for name in os.listdir(self.machine.home.pod_logs):
            if name not in self.pods:
                shutil.rmtree(f"{self.machine.home.pod_logs}/{name}", ignore_errors=True)

    def _know(self, pod: LocalPod) -> None:
        self.pods[pod.uid] = pod
        if pod.uid not in self.claims:
            self.claims[pod.uid] = launchspec.claim_of(pod)

    def _write(self, pod: LocalPod) -> None:
        """For what happened already: where the disk does not take it, the next daemon finds out for itself."""
        self._know(pod)
        try:
            self._store.write(pods=[pod])
        except StoreError as error:
            _LOG.error("%s: %s", pod.key, error)

    # --- what is wanted ----------------------------------------------------------------------------------------

    def named(self, namespace: str, name: str) -> LocalPod | None:
        """The Pod of that name."""
        return next((pod for pod in self.pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def owned(self, workload: Workload) -> list[LocalPod]:
        """Its Pods, oldest first."""
        return [pod for pod in self.pods.values() if _owner_of(pod) == _as_owner(workload)]

    def put(self, applied: Sequence[Workload | LocalPod], now: float) -> None:
        """Take them in; all of it or, with StoreError, nothing. Their Pods are made, and wait, in that order."""
        workloads = [each for each in applied if isinstance(each, Workload)]
        self._store.write(workloads=workloads, pods=[each for each in applied if isinstance(each, LocalPod)])
        self.workloads.update({workload_key(workload): workload for workload in workloads})
        for each in applied:
            if isinstance(each, LocalPod):
                self._know(each)
            elif not self._quiet:
                self._control(each, self.owned(each), now)

    def delete(self, *, workload: Workload | None, pods: Iterable[LocalPod], grace: float | None) -> None:
        """From now on they are not wanted."""
        going = [
            replace(pod, ending=launchspec.plan(pod).grace if grace is None else grace)
            for pod in pods
            if pod.ending is None or (grace is not None and grace < pod.ending)
        ]
        self._store.write(gone=[] if workload is None else [workload], pods=going)
        if workload is not None:
            self.workloads.pop(workload_key(workload), None)
        for pod in going:
            self._know(pod)
            self._tell_end(pod)

    # --- what is done about it ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Once in a while, and when something changed."""
        try:
            if self._clearing:
                marked = processes.by_environment(POD_VARIABLE)  # once for all of them
                for uid in list(self._clearing):
                    self._clear(uid, marked.get(uid, set()))
            self._kill_late()
            if not self._quiet:
                self._control_all(now)
                self._start_supervisors(now)
        except StoreError as error:
            _LOG.error("%s", error)

    def _control_all(self, now: float) -> None:
        owned: dict[object, list[LocalPod]] = {}
        for pod in self.pods.values():
            owned.setdefault(_owner_of(pod), []).append(pod)
        for workload in list(self.workloads.values()):
            self._control(workload, owned.get(_as_owner(workload), []), now)

    def _control(self, workload: Workload, there: Sequence[LocalPod], now: float) -> None:
        decision = decide(workload, amounts_of(workload.manifest), there, now)
        if decision.end:
            self.delete(workload=None, pods=decision.end, grace=None)
        # A name that another has comes free when that one goes.
        free = [each for each in decision.make if each is None or self.named(workload.namespace, each) is None]
        made = [creation.replica(workload, name, self.machine.home, now) for name in free]
        if made:
            self._store.write(pods=made)
            for pod in made:
                self._know(pod)

    def _start_supervisors(self, now: float) -> None:
        clock, starting = time.monotonic(), self._start_order.by_user()
        for pod in list(self.pods.values()):
            if starting[pod.applier.user] >= _MOST_STARTING:
                continue
            wanted = pod.supervisor is None and pod.ending is None and not pod.state.phase.over
            if not wanted or pod.uid in self._clearing or self._not_before.get(pod.uid, 0.0) > clock:
                continue
            starting[pod.applier.user] += self._start_supervisor(pod, now)

    def _start_supervisor(self, pod: LocalPod, now: float) -> bool:
        """Whether it is on its way."""
        claim, folder = self.claims[pod.uid], self.logs(pod)
        never = None if claim is None else self.machine.why_never(claim)
        if never is not None:  # it waits for another machine: whoever stood behind it in the queue would wait with it
            self._not_before[pod.uid] = float("inf")
            self._write(
                replace(pod, state=replace(creation.with_event(pod.state, now, never, "Warning"), reason=never))
            )
            return False
        try:
            make_log_folder(folder, pod.applier)
            supervisor = self._keepers.start(pod.uid, pod.applier, f"{folder}/.keeper", {POD_VARIABLE: pod.uid})
        except (SupervisorError, OSError) as error:
            _LOG.warning("%s: %s", pod.key, error)
            self._not_before[pod.uid] = time.monotonic() + _AGAIN
            self._know(replace(pod, state=replace(pod.state, reason=str(error))))
            return False
        pod = replace(pod, supervisor=supervisor)
        self._start_order.begin(pod.uid)
        self._write(pod)
        self._watch(pod)
        return True

    def _watch(self, pod: LocalPod) -> None:
        """See that we hear of its keeper's end."""
        assert pod.supervisor is not None
        uid, (pid, started) = pod.uid, pod.supervisor
        when_ended(pid, started, lambda: self._supervisor_ended(uid, pid))

    # --- keepers -----------------------------------------------------------------------------------------------

    async def keep(self, request: Mapping[str, Any], caller: Caller, say: Say) -> tuple[LocalPod, QueuedRequest | None]:
        """A keeper is there. Raises RefusedError when it is nobody's, or its Pod is gone: it ends then."""
        pod = self.pods.get(str(request.get("uid")))
        if pod is None or pod.supervisor != (caller.pid, processes.start_time(caller.pid)):
            raise RefusedError("denied", text="no Pod here has this process for its keeper")
        self._lines[pod.uid] = say
        asks = pod.ending is None and request.get("granted") is not True
        if asks:
            await self._start_order.turn(pod.uid)
            pod = self.pods.get(pod.uid, pod)
            if self._lines.get(pod.uid) is not say:  # it is gone, or has come back on another line
                return pod, None
        self._start_order.end(pod.uid)
        if not self._quiet:
            self._start_supervisors(time.time())
        if pod.ending is not None:
            say({"event": {"end": pod.ending}})
        return pod, self._ask_room(pod, caller, say) if asks and pod.ending is None else None

    def _ask_room(self, pod: LocalPod, caller: Caller, say: Say) -> QueuedRequest | None:
        claim = self.claims[pod.uid]
        if claim is None:
            self.seat(pod.uid, None, None, say)
            return None
        self._know(replace(pod, state=replace(pod.state, node=None)))  # wherever it was to go, it never heard of it
        listener = _QueuedPod(self, pod.uid, say)
        return self.machine.submit_pod(
            claim, launchspec.run_request_of(pod, claim), caller, pod.created, time.time(), listener
        )

    def seat(self, uid: str, tenancy: Tenancy | None, grant: Grant | None, say: Say) -> None:
        """It may start: written down, and told."""
        pod = self.pods[uid]
        there = (node for node in self.machine.nodes if grant is not None and node.name == grant.node)
        node = next(there, self.machine.nodes[0])
        claim, logs, now = self.claims[uid], self.logs(pod), time.time()
        placed = f"placed on {node.name}" if grant is None else launchspec.placement_reason(grant)
        state = replace(
            creation.with_event(pod.state, now, placed),
            reason=None,
            node=node.name,
            containers=launchspec.states(pod, node.name, grant, logs),
            why=(*pod.state.why[:1], placed) if grant is not None else ("asked for no card",),
        )
        environment = (
            {} if tenancy is None else self._environment(tenancy, str(self.machine.directory(tenancy.tenant.id)))
        )
        self._write(replace(pod, state=state))  # what was promised is on the disk already: the tenancy
        told = launchspec.told(pod, grant, claim, node, environment, logs) | {"most_restarts": self._most_restarts(pod)}
        say({"event": {"granted": told}})

    def _most_restarts(self, pod: LocalPod) -> int | None:
        """A Job's; all others are tried for ever."""
        kind, name = pod.owner or ("", "")
        job = self.workloads.get((kind, pod.namespace, name)) if kind == "Job" else None
        return None if job is None else amounts_of(job.manifest).backoff_limit

    def report(self, uid: str, said: Mapping[str, Any], now: float) -> None:
        """What its keeper tells of it."""
        pod = self.pods.get(uid)
        if pod is None or pod.supervisor is None:
            return
        state = with_report(pod.state, said, now)
        if state != pod.state:
            self._store.write(pods=[replace(pod, state=state)])  # if it cannot be, the keeper tells it again
            self._know(replace(pod, state=state))

    def hung_up(self, uid: str, say: Say) -> None:
        """The keeper's connection is gone. It, or its successor, may be back before we hear."""
        if self._lines.get(uid) is say:
            del self._lines[uid]

    def _supervisor_ended(self, uid: str, pid: int) -> None:
        self._keepers.reap(pid)
        pod = self.pods.get(uid)
        if pod is None or pod.supervisor is None or pod.supervisor[0] != pid:
            return
        self._start_order.end(uid)
        self._lines.pop(uid, None)
        self._supervisor_lost(pod, rebooted=False)

    def _supervisor_lost(self, pod: LocalPod, *, rebooted: bool) -> None:
        self._clearing.add(pod.uid)
        now, state = time.time(), pod.state
        if state.phase is Phase.PENDING and state.node is None:
            self._not_before[pod.uid] = time.monotonic() + _AGAIN  # nothing of it was begun: another one keeps it
        elif rebooted and not state.phase.over and restart_policy_of(pod.manifest) == "Always":
            state = creation.anew(pod, self.logs(pod))
        elif not state.phase.over:
            text = "the machine was booted again" if rebooted else "its keeper was ended before it was over"
            state = creation.failed(state, text, now)
        self._write(replace(pod, supervisor=None, state=state))

    # --- the end -----------------------------------------------------------------------------------------------

    def _tell_end(self, pod: LocalPod) -> None:
        """Its keeper ends it; if it does not, we do."""
        assert pod.ending is not None
        if pod.supervisor is None:
            self._clearing.add(pod.uid)
            return
        self._kill_at[pod.uid] = time.monotonic() + pod.ending + _PATIENCE
        line = self._lines.get(pod.uid)
        if line is not None:
            line({"event": {"end": pod.ending}})
        else:
            self._signal(pod.supervisor, signal.SIGTERM)

    def _kill_late(self) -> None:
        clock = time.monotonic()
        for uid, deadline in list(self._kill_at.items()):
            if deadline <= clock:
                del self._kill_at[uid]
                pod = self.pods.get(uid)
                if pod is not None and pod.supervisor is not None:
                    self._signal(pod.supervisor, signal.SIGKILL)

    def _signal(self, keeper: tuple[int, int], number: int) -> None:
        try:
            processes.send_signal(keeper[0], number, keeper[1])
        except PermissionError as error:
            _LOG.warning("process %d: %s", keeper[0], error)

    def _clear(self, uid: str, marked: set[int]) -> None:
        """End whatever is left of it, of those who carry its mark; and forget it, if it is to go."""
        pod = self.pods.get(uid)
        if pod is None or pod.supervisor is not None:
            self._clearing.discard(uid)
            return
        left = {pid for pid in marked if processes.uid_of(pid) == pod.applier.user}
        children.kill_all(left)
        if left or pod.tenant in self.machine.tenancies:
            return
        if pod.ending is not None:
            self._store.write(gone_pods=[pod])
            shutil.rmtree(self.logs(pod), ignore_errors=True)
            self._start_order.end(uid)
            for known in (self.pods, self.claims, self._kill_at, self._not_before):
                known.pop(uid, None)
        self._clearing.discard(uid)

    def suspend(self) -> None:
        """The simulated cards are about to end: so do all Pods, to come up again with the next ones."""
        self._quiet = True
        for pod in list(self.pods.values()):
            if pod.supervisor is None:
                continue
            self._signal(pod.supervisor, signal.SIGKILL)
            children.kill_all(processes.with_environment(POD_VARIABLE, pod.uid, uid=pod.applier.user))
            if pod.ending is None and not pod.state.phase.over:
                self._write(replace(pod, supervisor=None, state=creation.anew(pod, self.logs(pod))))

    def logs(self, pod: LocalPod) -> str:
        """The folder of its containers' output."""
        return creation.logs_of(self.machine.home, pod.uid)


class _QueuedPod:
    """A Pod in the queue."""

    def __init__(self, pods: PodManager, uid: str, say: Say) -> None:
        self._pods, self._uid, self._say = pods, uid, say

    def notify(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self._say(message)

    def on_grant(self, tenancy: Tenancy, grant: Grant) -> None:
        self._pods.seat(self._uid, tenancy, grant, self._say)


def workload_key(workload: Workload) -> WorkloadKey:
    """By which it is known."""
    return workload.kind, workload.namespace, workload.name


def _as_owner(workload: Workload) -> object:
    """With the user: of another's of that name, deleted just now, some Pods may still be ending."""
    return workload.namespace, (workload.kind, workload.name), workload.applier.user


def _owner_of(pod: LocalPod) -> object:
    return pod.namespace, pod.owner, pod.applier.user
