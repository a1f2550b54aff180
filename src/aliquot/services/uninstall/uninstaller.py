"""`aliquot uninstall`: removes everything of ours from a cluster. Helm's hook runs its first half.

holders            Pods on our cards, by our scheduler or by ResourceClaims, which would lose them
stop_scheduling    delete the webhook first, so that it admits nothing in vain; then the scheduler and the
                   DeviceClasses, so that no Pod arrives
clean              delete the agents, and the simulated cards of nodes where no Pod runs on; a Pod on each node that had
                   an agent, or where files were left behind, removes our files; then remove labels, annotations,
                   taint, condition and resources at 0 from the Nodes. A node where files stay gets a mark
delete_objects     everything else, the agents' account and the namespace last: killed before that, the same command
                   resumes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.adapters.kubernetes.paging import EndlessError, Pages
from aliquot.dialects import native
from aliquot.dialects.dra import CLAIMS, DEVICE_CLASSES
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.dra.pods import claim_names
from aliquot.dialects.wire import workloads
from aliquot.dialects.wire.leftovers import LeftBehind, node_leftovers, parse_left_behind, render_left_behind
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.ownobjects import (
    COMPONENT_LABEL,
    DAEMON_SET,
    DEPLOYMENT,
    MANAGED_LABEL,
    MANAGER,
    NAME_LABEL,
    SELECTOR,
    SIMULATED_CARDS,
    WEBHOOK,
    Identity,
    cards_without_agents,
    identity,
)
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.services.uninstall import sweeper
from aliquot.services.uninstall.clusterobjects import ClusterObjects, Report, UninstallError
from aliquot.services.uninstall.sweeper import SweepSettings

_INTERVAL = 0.5  # seconds between two looks
_TRIES = 8  # at a node that another program writes too
_ADAPTATIONS = 4  # of a sweeper to LimitRanges, whose bounds may contradict each other
_BATCH = 50  # nodes swept at the same time


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of cleaning the nodes."""

    nodes: int  # that had marks of ours
    problems: tuple[str, ...]  # nodes that could not be swept, and why
    files_left: bool
    cards_left: bool = False  # simulated ones, for the Pods that run on


class Uninstaller:
    """`until` is when to give up, on the clock `now`."""

    def __init__(self, kube: Kube, *, report: Report, now: Callable[[], float], until: float) -> None:
        self.objects = ClusterObjects(kube)
        self._kube, self._report, self._now, self._until = kube, report, now, until

    async def holders(self, *, claims_only: bool = False) -> list[JsonObject]:
        """The Pods that hold cards of ours and have not finished. `claims_only`: those that hold them by
        ResourceClaims. These cannot run on without the agent: the kubelet asks it before it ends them."""
        items = await self.objects.items(CLAIMS)
        claims = {claim.key for claim in msgspec.convert(items, list[ClaimObject]) if claim.allocated}
        found: list[JsonObject] = []
        params, pages = {"limit": "500"}, Pages("/api/v1/pods")
        while True:
            page = await self._kube.get("/api/v1/pods", params=params, timeout=60.0)
            running = [pod for pod in page.get("items") or () if _runs(pod)]
            found += [pod for pod in running if (not claims_only and _has_grant(pod)) or _uses(pod, claims)]
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            try:
                params = {"limit": "500", "continue": pages.follow(str(token))}
            except EndlessError as error:
                raise UninstallError(str(error)) from error

    async def foreign(self, namespace: str) -> list[str]:
        """Our programs in another namespace, or installed by another tool, with the tool's name."""
        found = []
        for kind, name in (("deployments", DEPLOYMENT), ("daemonsets", DAEMON_SET)):
            for program in await self.objects.items(f"/apis/apps/v1/{kind}", labelSelector=SELECTOR):
                metadata = program["metadata"]
                tool = (metadata.get("labels") or {}).get(MANAGED_LABEL, "an unknown tool")
                if metadata["name"] == name and (tool != MANAGER or metadata["namespace"] != namespace):
                    found.append(f"{metadata['namespace']}/{name}, by {tool}")
        return found

    async def evict(self, pods: Iterable[JsonObject]) -> None:
        """Delete them, and wait until they are gone."""
        uids = {_pod_identity(pod): pod["metadata"]["uid"] for pod in pods}
        for which in uids:
            self._report("pods", f"deleting {which.name}")
            await self.objects.delete(which)
        while True:
            left = [which for which, uid in uids.items() if await self._uid(which) == uid]
            if not left:
                return
            self._check_time(f"{len(left)} Pods did not end in time, {left[0].name} among them")
            await asyncio.sleep(_INTERVAL)

    async def _uid(self, which: Identity) -> str | None:
        pod = await self.objects.get(which)
        return None if pod is None else str(pod["metadata"]["uid"])

    # --- programs ------------------------------------------------------------------------------------------------

    async def sweep_settings(
        self,
        namespace: str,
        image: str | None,
        default: str,
        labels: Mapping[str, str] | None = None,
    ) -> SweepSettings:
        """As the agents run, or did if they are gone already: with `image`, else with theirs or the default one; and
        with `labels` beside theirs."""
        account = await self.objects.get(_account(namespace))
        secrets = tuple((account or {}).get("imagePullSecrets") or ())
        daemons = await self.objects.get(Identity("apps/v1", "DaemonSet", namespace, DAEMON_SET))
        if daemons is not None:
            found = sweeper.agent_settings(daemons, image, secrets)
            return replace(found, labels={**found.labels, **(labels or {})})
        noted = parse_left_behind(account) if account else None
        left = noted if isinstance(noted, LeftBehind) else None
        known = image or (left.image if left else None)
        found = SweepSettings(
            known or default, pull_secrets=secrets, labels=labels or {}, image_known=known is not None
        )
        if left is None:
            return found
        labels = {**left.labels, **(labels or {})}
        return replace(found, kubelet=left.kubelet, selinux=left.selinux, labels=labels)

    async def note_settings(self, namespace: str, settings: SweepSettings) -> None:
        """Write on the agents' account how they ran: the same command, killed after it has deleted them, reads it."""
        note = render_left_behind(LeftBehind(settings.image, settings.kubelet, settings.selinux, settings.labels))
        body = {"metadata": {"annotations": {native.LEFT_BEHIND: note}}}
        try:
            await self._kube.patch(_account(namespace).path, body, into=bytes)
        except ApiError as error:
            if error.status != 404:  # no account: it was deleted already, and so were the agents
                raise

    async def stop_scheduling(self, namespace: str) -> None:
        """Delete webhook, scheduler and DeviceClasses, and wait until they are gone. From then on no Pod gets our
        cards."""
        self._report("programs", "the webhook")
        webhook = Identity("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "", WEBHOOK)
        await self.objects.delete(webhook)
        await self._stop(namespace, "Deployment", DEPLOYMENT, "scheduler")
        await self.objects.delete(webhook)  # a scheduler that took long to end may have created it again
        for name in DEVICE_CLASSES:  # kube-scheduler allocates claims without our scheduler
            await self.objects.delete(Identity("resource.k8s.io/v1", "DeviceClass", "", name))

    async def stop_programs(
        self, namespace: str, cards_on: Collection[str] = (), pull_secrets: Collection[JsonView] = ()
    ) -> bool:
        """The same, and the agents, with their cards where these are simulated. On the nodes `cards_on` those stay:
        Pods there run on, and a real card would stay too. Returns whether simulated cards stay."""
        await self.stop_scheduling(namespace)
        await self._stop(namespace, "DaemonSet", DAEMON_SET, "agent")
        cards = Identity("apps/v1", "DaemonSet", namespace, SIMULATED_CARDS)
        if await self.objects.get(cards) is None:
            return False
        if not cards_on:
            await self._stop(namespace, "DaemonSet", SIMULATED_CARDS, "simulated-cards")
            return False
        await self._kube.patch(cards.path, cards_without_agents(cards_on, pull_secrets), into=bytes)
        await self._wait_ended(namespace, "simulated-cards", cards_on)
        return True

    async def _stop(self, namespace: str, kind: str, name: str, component: str) -> None:
        self._report("programs", name)
        await self.objects.delete(Identity("apps/v1", kind, namespace, name))
        await self._wait_ended(namespace, component)

    async def _wait_ended(self, namespace: str, component: str, except_on: Collection[str] = ()) -> None:
        path, selector = f"/api/v1/namespaces/{namespace}/pods", f"{SELECTOR},{COMPONENT_LABEL}={component}"
        while True:
            pods = await self.objects.items(path, labelSelector=selector)
            left = [pod for pod in pods if (pod.get("spec") or {}).get("nodeName") not in except_on]
            if not left:
                return
            self._check_time(f"Pod {left[0]['metadata']['name']} did not end in time")
            await asyncio.sleep(_INTERVAL)

    # --- nodes ---------------------------------------------------------------------------------------------------

    async def clean(
        self,
        namespace: str,
        settings: SweepSettings,
        *,
        keep_running: bool,
        cards_on: Collection[str] = (),
    ) -> Cleaned:
        """Delete the programs, then remove our files from the hosts and our marks from the Nodes. `cards_on`: nodes
        where simulated cards stay."""
        cards_left = await self.stop_programs(namespace, cards_on, settings.pull_secrets)
        swept = await self._sweep(namespace, settings, keep_running=keep_running)
        left = [name for name, problem in swept.items() if keep_running or problem]
        nodes = await self.clean_nodes(settings, left)
        problems = tuple(problem for problem in swept.values() if problem)
        return Cleaned(nodes, problems, bool(left), cards_left)

    async def _nodes(self) -> list[JsonObject]:
        return await self.objects.items("/api/v1/nodes")

    async def _sweep(self, namespace: str, settings: SweepSettings, *, keep_running: bool) -> dict[str, str | None]:
        """Remove our files from every node that had an agent. By node: why that failed, or None."""
        problems: dict[str, str | None] = {}
        work: dict[str, SweepSettings] = {}
        for node in filter(sweeper.needs_sweep, await self._nodes()):
            name, own = node["metadata"]["name"], sweeper.settings_for(node, settings)
            if not sweeper.is_ready(node):
                problems[name] = (
                    f"node {name} is not ready: when it is, run `aliquot uninstall` again, or with --this-node there"
                )
            elif isinstance(own, str):
                problems[name] = own
            else:
                work[name] = own
        names = list(work)
        for start in range(0, len(names), _BATCH):
            batch = names[start : start + _BATCH]
            results = await asyncio.gather(
                *(self._sweep_node(namespace, name, work[name], keep_running) for name in batch)
            )
            problems |= dict(zip(batch, results, strict=True))
            self._report("nodes", f"{start + len(batch)} of {len(names)} cleaned")
        return problems

    async def _sweep_node(self, namespace: str, node: str, settings: SweepSettings, keep_running: bool) -> str | None:
        pod = sweeper.render_sweeper(namespace, node, settings, keep_running=keep_running)
        which = identity(pod)
        await self.objects.delete(which, grace=0)  # left by a command that was killed
        adapted = 0
        while True:
            try:
                await self._kube.create(which.path.rpartition("/")[0], pod)
                break
            except ApiError as error:
                within = sweeper.within_limit_range(settings, error.message) if error.status == 403 else None
                if error.status == 422 or (within is not None and adapted == _ADAPTATIONS):
                    return f"node {node} is not cleaned: {error.message}"
                if within is not None:
                    settings, adapted = within, adapted + 1
                    pod = sweeper.render_sweeper(namespace, node, settings, keep_running=keep_running)
                    continue
                await self._before_retry(namespace, error)
            self._check_time(f"Pod {which.name} cannot be created, or an earlier one does not end")
            await asyncio.sleep(_INTERVAL)
        while True:
            found = await self._kube.get(which.path)
            phase = (found.get("status") or {}).get("phase")
            if phase == "Succeeded":
                await self.objects.delete(which, grace=0)
                return None
            if phase == "Failed" or self._now() >= self._until:
                return f"node {node} is not cleaned: {await self._why(which, found)}"
            await asyncio.sleep(_INTERVAL)

    async def _before_retry(self, namespace: str, error: ApiError) -> None:
        """Handle the error of a creation. After an earlier command the namespace may be gone: create it."""
        if error.status == 404:
            labels = {**sweeper.LABELS, "pod-security.kubernetes.io/enforce": "privileged"}
            metadata = {"name": namespace, "labels": labels}
            await self.objects.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        elif error.status != 409 and not (error.status == 403 and "serviceaccount" in error.message):
            raise error  # 409: a Pod of an earlier try is still there; 403: the namespace has no account yet

    async def _why(self, which: Identity, pod: JsonObject) -> str:
        try:
            text: bytes = await self._kube.get(f"{which.path}/log", params={"tailLines": "1"}, into=bytes)
        except ApiError:
            text = b""
        state = f"{workloads.not_ready(workloads.read_pod(pod))}; see Pod {which.namespace}/{which.name}"
        return text.decode(errors="replace").strip() or state

    async def clean_nodes(self, settings: SweepSettings, left: Collection[str] = ()) -> int:
        """Remove our marks from the Nodes; mark those where files are left. Returns how many had some."""
        done = 0
        for node in await self._nodes():
            name, own = node["metadata"]["name"], sweeper.settings_for(node, settings)
            if isinstance(own, str):  # its mark stays, until a person has looked at it
                continue
            mark = LeftBehind(own.image, own.kubelet, own.selinux, own.labels) if name in left else None
            done += await self._clean_node(node, mark)
        return done

    async def _clean_node(self, node: JsonObject, mark: LeftBehind | None) -> bool:
        path, wrote = f"/api/v1/nodes/{node['metadata']['name']}", False
        for attempt in range(_TRIES):
            patch, status = node_leftovers(node, mark)
            try:
                if status is not None:  # first: without our annotations the amounts would count as another program's
                    node, wrote = await self._kube.patch(f"{path}/status", status, form="strategic"), True
                    patch, _ = node_leftovers(node, mark)
                if patch is not None:
                    await self._kube.patch(path, patch, into=bytes)
                return wrote or patch is not None
            except ApiError as error:
                if error.status == 404:
                    return wrote
                if error.status != 409 or attempt == _TRIES - 1:
                    raise
            wrote = True
            node = await self._kube.get(path)
        return wrote

    # --- the rest ------------------------------------------------------------------------------------------------

    async def delete_objects(self, namespace: str, objects: Iterable[Identity], *, cards_left: bool = False) -> None:
        """Every object that may exist, the agents' account and the namespace last. If simulated cards are left, the
        namespace stays with them; and it stays if Pods of others are in it."""
        account = _account(namespace)
        for which in (*reversed([which for which in objects if which != account]), account):
            if which.kind != "Namespace" and await self.objects.delete(which):
                self._report("objects", str(which))
        which = Identity("v1", "Namespace", "", namespace)
        found = None if cards_left else await self.objects.get(which)
        if found is None or (found["metadata"].get("labels") or {}).get(MANAGED_LABEL) != MANAGER:
            return
        others = await self._others_in(namespace)
        if others:
            self._report("objects", f"namespace {namespace} stays: {others[0]} is not ours")
            return
        await self._delete_namespace(which)

    async def _others_in(self, namespace: str) -> list[str]:
        pods = await self.objects.items(f"/api/v1/namespaces/{namespace}/pods")
        return [
            f"Pod {pod['metadata']['name']}"
            for pod in pods
            if (pod["metadata"].get("labels") or {}).get(NAME_LABEL) != "aliquot"
        ]

    async def delete_sweep_namespace(self, namespace: str) -> None:
        """Delete the namespace if it was created for the sweepers alone."""
        which = Identity("v1", "Namespace", "", namespace)
        try:
            found = await self.objects.get(which)
        except ApiError as error:
            if error.status == 403:  # Helm's hook: it runs in that namespace, and may not read it
                return
            raise
        if found is not None and (found["metadata"].get("labels") or {}).get(COMPONENT_LABEL) == sweeper.COMPONENT:
            await self._delete_namespace(which)

    async def _delete_namespace(self, which: Identity) -> None:
        self._report("objects", str(which))
        await self.objects.delete(which)
        while await self.objects.get(which) is not None:
            self._check_time(f"namespace {which.name} is not deleted yet: see kubectl get all -n {which.name}")
            await asyncio.sleep(_INTERVAL)

    def _check_time(self, problem: str) -> None:
        if self._now() >= self._until:
            raise UninstallError(f"{problem}: run the same command again with a longer --timeout")


def _account(namespace: str) -> Identity:
    return Identity("v1", "ServiceAccount", namespace, DAEMON_SET)


def _pod_identity(pod: JsonObject) -> Identity:
    return Identity("v1", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])


def _runs(pod: JsonObject) -> bool:
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return bound and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _has_grant(pod: JsonObject) -> bool:
    return native.GRANT in (pod["metadata"].get("annotations") or {})


def _uses(pod: JsonObject, claims: Collection[str]) -> bool:
    """Whether it uses one of these claims, given as namespace/name."""
    if not claims:
        return False
    namespace, names = pod["metadata"]["namespace"], claim_names(msgspec.convert(pod, PodObject))
    return any(f"{namespace}/{name}" in claims for name in names.values())
