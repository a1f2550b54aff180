"""Manages the Pods of one machine: desired workloads, existing Pods and their supervisor processes. Single-threaded.

    put, delete         change the desired state; it is on the disk before anything acts on it
    tick                reconciles: starts supervisors, asks them to end, kills the late ones (ending.py)
    connect_supervisor  a supervisor has connected: queues its Pod, and sends the launch spec with the grant
    report              a supervisor reports the state of its containers

A Pod is removed only when none of its processes is alive. If a supervisor dies before its Pod is over, the Pod fails.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from aliquot.adapters.host.home import POD_VARIABLE, TENANT_VARIABLE
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.supervisors import SupervisorError, Supervisors, make_log_folder
from aliquot.adapters.host.users import account_of
from aliquot.adapters.storage.database import StoreError
from aliquot.adapters.storage.folders import remove_folder
from aliquot.adapters.storage.objectstore import ObjectStore
from aliquot.dialects.kube.conditions import scheduling_gates
from aliquot.dialects.local.objects import amounts_of
from aliquot.dialects.local.pods import restart_policy_of
from aliquot.model.choice import Choice
from aliquot.model.containers.launch import render_launch
from aliquot.model.containers.localpod import LocalPod, Phase, Workload
from aliquot.model.grant import Grant
from aliquot.model.status.answers import Answer, Send
from aliquot.model.status.requests import SupervisorRequest
from aliquot.model.tenancy import Tenancy, TenantEnvironment
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.pods import creation, launchspec
from aliquot.services.machine.pods.controllers import decide
from aliquot.services.machine.pods.ending import PodEnding, send_signal
from aliquot.services.machine.pods.records import PodRecords, as_owner, owner_of, workload_key
from aliquot.services.machine.pods.reports import PodReport, with_report
from aliquot.services.machine.pods.startorder import StartOrder
from aliquot.services.machine.queue import QueuedRequest
from aliquot.services.machine.sweeper import Sweeper
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.wording.placement import why_there

_LOG = logging.getLogger("aliquot.pods")
_MOST_STARTING = 8  # supervisors of one user at once: each takes some tens of milliseconds of a core
_STARTS_AT_ONCE = 4  # of all users, before others have their turn; each takes some milliseconds
_AGAIN = 5.0  # seconds until a failed start of a supervisor is retried


class PodManager(PodRecords):
    """See the module docstring. `environment` returns the environment of a tenant's processes, given its folder."""

    def __init__(
        self,
        machine: LocalMachine,
        store: ObjectStore,
        supervisors: Supervisors,
        environment: Callable[[Tenancy, str], TenantEnvironment],
        log_limit: int | None = None,
    ) -> None:
        super().__init__(store, machine.store.writer, machine.clock)
        self.machine = machine
        self._supervisors, self._environment, self._log_limit = supervisors, environment, log_limit
        self._unstored: set[str] = set()  # replicas that are not on the disk yet: they must not start
        self._unnoted: set[str] = set()  # Pods whose last report is not on the disk
        self._connections: dict[str, Send] = {}  # to the supervisors, by Pod uid
        self._start_order = StartOrder(self.pods)
        self._not_before: dict[str, float] = {}  # on the monotonic clock
        self._suspended = False  # start nothing more
        self._ending = PodEnding(
            self.pods, self._connections, machine.tenancies, delete=self._delete_row, removed=self._removed
        )
        self.sweeper = Sweeper(machine, self._ending, (TENANT_VARIABLE, POD_VARIABLE))

    # --- after a restart ---------------------------------------------------------------------------------------

    def restore(self, *, rebooted: bool) -> None:
        """Load the Pods. A supervisor that is gone is handled as if it had ended now."""
        self.workloads.update({workload_key(workload): workload for workload in self._store.workloads()})
        since, clock, now = float("-inf"), self.machine.clock(), time.time()
        for pod in self._store.pods():
            since = max(since, clock - max(0.0, now - pod.created))  # in the order in which they were made
            self._since[pod.uid] = since
            self._remember(pod)
            if pod.supervisor is not None and not rebooted and processes.lives(*pod.supervisor):
                self._watch(pod)
                if pod.ending is not None:
                    self._ending.ask(pod)
                elif pod.state.phase is Phase.PENDING and pod.state.node is None:
                    self._start_order.begin(pod.uid, again=True)
            elif pod.supervisor is not None or pod.state.phase is Phase.RUNNING:
                self._supervisor_lost(pod, rebooted=rebooted)
            else:
                self._ending.lost_supervisor(pod.uid)
        self._not_before.clear()  # those Pods have waited for the daemon long enough
        self._clear_strays()

    def _clear_strays(self) -> None:
        """Remove logs of Pods that were never stored, or were removed just before the daemon ended."""
        for name in os.listdir(self.machine.home.pod_logs):
            if name not in self.pods:
                remove_folder(Path(self.machine.home.pod_logs, name))

    # --- desired state -----------------------------------------------------------------------------------------

    async def put(self, applied: Sequence[Workload | LocalPod], now: float) -> None:
        """Store all of them or, with StoreError, none. Creates and queues their Pods in this order."""
        await self._writer.run(lambda: self._write_applied(applied))
        self._accept(applied, now)

    def put_later(self, job: Workload, now: float, failed: Callable[[], None]) -> None:
        """Store the Job, then create its Pods; or call `failed`."""

        def then(error: Exception | None) -> None:
            if error is None:
                self._accept([job], now)
            else:
                _LOG.error("job_not_stored", extra={"data": {"job": job.name, "error": str(error)}})
                failed()

        self._writer.put(lambda: self._write_applied([job]), then)

    def _accept(self, applied: Sequence[Workload | LocalPod], now: float) -> None:
        self.workloads.update({workload_key(item): item for item in applied if isinstance(item, Workload)})
        for item in applied:
            if isinstance(item, LocalPod):
                self._remember(item)
            elif not self._suspended:
                self._reconcile(item, self.owned(item), now)

    async def delete(self, *, workload: Workload | None, pods: Iterable[LocalPod], grace: float | None) -> None:
        """Delete the workload and end the Pods. With StoreError nothing happens."""
        uids = [pod.uid for pod in pods]
        gone, going = _gone(workload), self._going(uids, grace)
        await self._writer.run(lambda: self._store.write(gone=gone, pods=going))
        changed = self._going(uids, grace)
        if changed != going:  # a report came meanwhile, and was written over the end
            self._write("pods", pods=changed)
        self._end(workload, changed)

    def delete_later(self, *, workload: Workload | None, pods: Iterable[LocalPod], grace: float | None) -> None:
        """The same at once; what cannot be written now is found again after a restart."""
        gone, going = _gone(workload), self._going([pod.uid for pod in pods], grace)
        if gone or going:
            self._write(workload.name if workload else ", ".join(pod.key for pod in going), gone=gone, pods=going)
        self._end(workload, going)

    def _end(self, workload: Workload | None, going: Iterable[LocalPod]) -> None:
        if workload is not None:
            self.workloads.pop(workload_key(workload), None)
        for pod in going:
            self._remember(pod)
            self._ending.ask(pod)

    # --- reconciliation ----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Call it periodically and after every change."""
        try:
            self._ending.kill_late()
            if not self._suspended:
                self._reconcile_all(now)
                self._start_supervisors(now)
        except StoreError as error:
            _LOG.error("reconcile_failed", extra={"data": {"error": str(error)}})

    def _reconcile_all(self, now: float) -> None:
        owned: dict[object, list[LocalPod]] = {}
        for pod in self.pods.values():
            owned.setdefault(owner_of(pod), []).append(pod)
        for workload in list(self.workloads.values()):
            self._reconcile(workload, owned.get(as_owner(workload), []), now)

    def _reconcile(self, workload: Workload, pods: Sequence[LocalPod], now: float) -> None:
        decision = decide(workload, amounts_of(workload.manifest), pods, now)
        if decision.end:
            self.delete_later(workload=None, pods=decision.end, grace=None)
        # A name that another Pod has becomes free when that Pod is gone.
        free = [name for name in decision.make if name is None or self.named(workload.namespace, name) is None]
        made = [creation.replica(workload, name, self.machine.home, now) for name in free]
        if made:
            for pod in made:
                self._remember(pod)
                self._unstored.add(pod.uid)
            self._writer.put(lambda: self._store.write(pods=made), lambda error: self._made(made, error))

    def _made(self, made: Sequence[LocalPod], error: Exception | None) -> None:
        """Replicas are on the disk, or cannot be: then the next tick tries again."""
        for pod in made:
            self._unstored.discard(pod.uid)
            if error is not None:
                self._forget(pod.uid)
        if error is not None:
            _LOG.error("reconcile_failed", extra={"data": {"error": str(error)}})
        elif not self._suspended:
            self._start_supervisors(time.time())

    def _forget(self, uid: str) -> None:
        super()._forget(uid)
        self._ending.forget(uid)
        self._not_before.pop(uid, None)
        self._unnoted.discard(uid)

    def _start_supervisors(self, now: float) -> None:
        clock, starting, left = time.monotonic(), self._start_order.by_user(), _STARTS_AT_ONCE
        for pod in list(self.pods.values()):
            if left == 0:
                return
            if starting[account_of(pod.applier.user)] >= _MOST_STARTING or pod.uid in self._unstored:
                continue
            wanted = pod.supervisor is None and pod.ending is None and not pod.state.phase.over
            if (
                not wanted
                or scheduling_gates(pod.manifest["spec"])
                or self._ending.is_clearing(pod.uid)
                or self._not_before.get(pod.uid, 0.0) > clock
            ):
                continue
            started = self._start_supervisor(pod, now)
            starting[account_of(pod.applier.user)] += started
            left -= started

    def _start_supervisor(self, pod: LocalPod, now: float) -> bool:
        """Whether the supervisor was started."""
        claim, folder = self.claims[pod.uid], self.logs(pod)
        never = None if claim is None else self.machine.why_never(claim)
        if never is not None:  # it never fits here: in the queue, it would block the requests behind it
            self._not_before[pod.uid] = float("inf")
            self._persist(
                replace(pod, state=replace(creation.with_event(pod.state, now, never, "Warning"), reason=never))
            )
            return False
        try:
            make_log_folder(folder, pod.applier)
            supervisor = self._supervisors.start(pod.uid, pod.applier, f"{folder}/.keeper", {POD_VARIABLE: pod.uid})
        except (SupervisorError, OSError) as error:
            _LOG.warning("supervisor_start_failed", extra={"data": {"pod": pod.key, "error": str(error)}})
            self._not_before[pod.uid] = time.monotonic() + _AGAIN
            self._remember(replace(pod, state=replace(pod.state, reason=str(error))))
            return False
        pod = replace(pod, supervisor=supervisor)
        self._start_order.begin(pod.uid)
        self._persist(pod)
        self._watch(pod)
        return True

    def _watch(self, pod: LocalPod) -> None:
        """Call `_supervisor_ended` when the supervisor ends."""
        assert pod.supervisor is not None
        uid, (pid, started) = pod.uid, pod.supervisor
        processes.when_ended(pid, started, lambda _code: self._supervisor_ended(uid, pid))

    # --- supervisors -------------------------------------------------------------------------------------------

    def check_supervisor(self, request: SupervisorRequest, caller: Caller) -> str:
        """The uid of the caller's Pod. Raises RefusedError if it has none."""
        pod = self.pods.get(request.uid)
        if pod is None or pod.supervisor != (caller.pid, caller.started):
            raise RefusedError("denied", text="this process is not the supervisor of any Pod here")
        return pod.uid

    async def connect_supervisor(
        self, request: SupervisorRequest, caller: Caller, send: Send
    ) -> tuple[LocalPod, QueuedRequest | None]:
        """A supervisor has connected. Raises RefusedError if its Pod is gone or has another one: it ends then."""
        pod = self.pods[self.check_supervisor(request, caller)]
        self._connections[pod.uid] = send
        wants_grant = pod.ending is None and not request.granted
        if wants_grant:
            if self.machine.move_on(caller):  # an earlier grant never reached it
                await self.sweeper.look(caller.uid)
            await self._start_order.wait_for_turn(pod.uid)
            pod = self.pods.get(pod.uid, pod)
            if self._connections.get(pod.uid) is not send:  # it is gone or has reconnected
                return pod, None
        self._start_order.end(pod.uid)
        if not self._suspended:
            self._start_supervisors(time.time())
        if pod.ending is not None:
            send({"event": {"end": pod.ending}})
        return pod, self._request_grant(pod, caller, send) if wants_grant and pod.ending is None else None

    def _request_grant(self, pod: LocalPod, caller: Caller, send: Send) -> QueuedRequest | None:
        claim = self.claims[pod.uid]
        if claim is None:
            self.grant(pod.uid, None, None, send)
            return None
        self._remember(replace(pod, state=replace(pod.state, node=None)))  # an earlier grant never reached it
        if claim.group:  # Pods of one user, namespace and class: only these can be one tenant
            claim = structs.replace(claim, group=f"{claim.namespace}/{claim.group}/{claim.app_class.value}")
        listener = _QueuedPod(self, pod.uid, send)
        return self.machine.admission.submit_pod(
            claim, launchspec.run_request_of(pod, claim), caller, self._since[pod.uid], time.time(), listener
        )

    def grant(
        self, uid: str, tenancy: Tenancy | None, grant: Grant | None, send: Send, choice: Choice | None = None
    ) -> None:
        """The Pod may start: store that and send the launch spec."""
        pod = self.pods[uid]
        nodes = (node for node in self.machine.nodes if grant is not None and node.name == grant.node)
        node = next(nodes, self.machine.nodes[0])
        claim, logs, now = self.claims[uid], self.logs(pod), time.time()
        placed = f"placed on {node.name}" if grant is None else why_there(grant, choice)
        state = replace(
            creation.with_event(pod.state, now, placed),
            reason=None,
            node=node.name,
            containers=launchspec.states(pod, node.name, grant, logs),
            why=(*pod.state.why[:1], placed) if grant is not None else ("requested no card",),
        )
        environment = TenantEnvironment()
        if tenancy is not None:
            environment = self._environment(tenancy, str(self.machine.directory(tenancy.tenant.id)))
        self._persist(replace(pod, state=state))  # the tenancy is on the disk already
        spec = replace(
            launchspec.launch_spec(pod, grant, claim, node, environment, logs),
            most_restarts=self._most_restarts(pod),
            log_limit=self._log_limit,
        )
        send({"event": {"granted": render_launch(spec)}})

    def _most_restarts(self, pod: LocalPod) -> int | None:
        """The backoffLimit of its Job; None: without a limit."""
        kind, name = pod.owner or ("", "")
        job = self.workloads.get((kind, pod.namespace, name)) if kind == "Job" else None
        return None if job is None else amounts_of(job.manifest).backoff_limit

    async def report(self, uid: str, report: PodReport, now: float) -> None:
        """The supervisor reports the state of its Pod. It is on the disk when this returns. On StoreError, the
        supervisor reports again."""
        pod = self.pods.get(uid)
        if pod is None or pod.supervisor is None:
            return
        state = with_report(pod.state, report, now)
        if state != pod.state or uid in self._unnoted:
            changed = replace(pod, state=state)
            self._remember(changed)
            self._unnoted.add(uid)
            await self._writer.run(lambda: self._store.write(pods=[changed]))
            self._unnoted.discard(uid)

    def disconnect_supervisor(self, uid: str, send: Send) -> None:
        """Its connection is closed. The supervisor, or its successor, may have reconnected before."""
        if self._connections.get(uid) is send:
            del self._connections[uid]

    def _supervisor_ended(self, uid: str, pid: int) -> None:
        self._supervisors.reap(pid)
        pod = self.pods.get(uid)
        if pod is None or pod.supervisor is None or pod.supervisor[0] != pid:
            return
        self._start_order.end(uid)
        self._connections.pop(uid, None)
        self._supervisor_lost(pod, rebooted=False)

    def _supervisor_lost(self, pod: LocalPod, *, rebooted: bool) -> None:
        self._ending.lost_supervisor(pod.uid)
        now, state = time.time(), pod.state
        if state.phase is Phase.PENDING and state.node is None:
            self._not_before[pod.uid] = time.monotonic() + _AGAIN  # nothing ran yet: start another one
        elif rebooted and not state.phase.over and restart_policy_of(pod.manifest) == "Always":
            state = creation.started_over(pod, self.logs(pod))
        elif not state.phase.over:
            text = "the machine was rebooted" if rebooted else "its supervisor was killed"
            state = creation.failed(state, text, now)
        self._persist(replace(pod, supervisor=None, state=state))

    # --- the end -----------------------------------------------------------------------------------------------

    def _delete_row(self, pod: LocalPod, done: Callable[[Exception | None], None]) -> None:
        self._writer.put(lambda: self._store.write(gone_pods=[pod]), done)

    def _removed(self, pod: LocalPod) -> None:
        remove_folder(Path(self.logs(pod)))
        self._start_order.end(pod.uid)
        self._forget(pod.uid)

    async def suspend(self) -> None:
        """The simulated cards are about to end: kill all Pods. They start over with the next simulated cards."""
        self._suspended = True
        killed = {}
        for pod in list(self.pods.values()):
            if pod.supervisor is None:
                continue
            send_signal(pod.supervisor, signal.SIGKILL)
            killed[pod.uid] = pod.applier.user
            if pod.ending is None and not pod.state.phase.over:
                self._persist(replace(pod, supervisor=None, state=creation.started_over(pod, self.logs(pod))))
        found = await self.sweeper.scan(set(killed.values()))
        for uid, user in killed.items():
            processes.kill_all(found.marked(POD_VARIABLE, uid, user), user=user)

    def logs(self, pod: LocalPod) -> str:
        """The folder of the logs of its containers."""
        return creation.logs_of(self.machine.home, pod.uid)


class _QueuedPod:
    """A Pod in the queue."""

    def __init__(self, pods: PodManager, uid: str, send: Send) -> None:
        self._pods, self._uid, self._send = pods, uid, send

    def notify(self, message: Answer) -> None:
        if "error" in message:
            self._send(message)

    def on_grant(self, tenancy: Tenancy, grant: Grant, choice: Choice | None) -> None:
        self._pods.grant(self._uid, tenancy, grant, self._send, choice)


def _gone(workload: Workload | None) -> list[Workload]:
    return [] if workload is None else [workload]
