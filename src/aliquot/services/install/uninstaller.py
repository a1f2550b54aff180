"""`aliquot uninstall`: nothing of ours stays in a cluster. And what Helm's hook runs before Helm deletes its objects.

holders    Pods on our cards: who would lose them
programs   the webhook first, so that nothing is admitted in vain; the scheduler, so that no Pod comes; the agents
sweep      a Pod on each node that had an agent, or where files were left behind, takes away what stands there
nodes      labels that we set, annotations, taint, condition, resources at 0; where files stay, a mark that says so
rest       everything else, the record last: killed before, the same command goes on
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects import native
from aliquot.dialects.kube import is_finished
from aliquot.dialects.wire import deployment as made
from aliquot.dialects.wire import workloads
from aliquot.dialects.wire.deployment import DAEMON_SET, DEPLOYMENT, WEBHOOK, Identity, Json, Record
from aliquot.dialects.wire.leftovers import KUBELET, LeftBehind, had_agent, node_leftovers, parse_left_behind
from aliquot.model.refusal import Invalid
from aliquot.services.install.installer import Installer, InstallError, Say

_LOOK = 0.5  # seconds between two looks at what is awaited
_TRIES = 8  # at a node that somebody else writes too
_AT_ONCE = 50  # nodes swept at the same time
_HOST = "/host"
_SWEEP = "sweep"  # the component of the Pods that do it
_MOUNTS = ("/run", "/var/run", "/var/lib")  # a folder is removed from its parent; each may be a link of the host


@dataclass(frozen=True, slots=True)
class Agents:
    """How the agents were run: their sweepers are run alike."""

    image: str
    kubelet: str = KUBELET
    pull_secrets: tuple[Mapping[str, Any], ...] = ()
    pull_policy: str = "IfNotPresent"
    selinux: Mapping[str, str] | None = None
    known: bool = False  # the image, by whoever runs the command or by what is installed


class Uninstaller:
    """One command's work. `until`: when patience ends."""

    def __init__(self, kube: Kube, *, say: Say, now: Callable[[], float], until: float) -> None:
        self._kube, self._say, self._now, self._until = kube, say, now, until
        self.installer = Installer(kube, say=say, now=now)

    async def holders(self) -> list[Json]:
        """The Pods that have cards from us and have not ended."""
        found: list[Json] = []
        further: dict[str, str] = {}
        while True:
            page = await self._kube.get("/api/v1/pods", params={"limit": "500", **further}, timeout=60.0)
            found += [item for item in page.get("items") or () if _holds(item)]
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            further = {"continue": token}

    async def evict(self, pods: Iterable[Json]) -> None:
        """Delete them, and wait until they are gone."""
        paths = {_path(pod): pod["metadata"]["uid"] for pod in pods}
        for path in paths:
            self._say("pods", f"deleting {path.rpartition('/')[2]}")
            await self._delete(path)
        while True:
            left = [path for path, uid in paths.items() if await self._uid(path) == uid]
            if not left:
                return
            self._check_time(f"{len(left)} Pods did not end in time, {left[0].rpartition('/')[2]} among them")
            await asyncio.sleep(_LOOK)

    # --- programs ------------------------------------------------------------------------------------------------

    async def agents(self, namespace: str, image: str | None, installed: str | None, usual: str) -> Agents:
        """How they are run, or would be where they are gone already: by `image`, else as they are or were installed."""
        account = await self.installer.get(Identity("v1", "ServiceAccount", namespace, DAEMON_SET)) or {}
        secrets = tuple(account.get("imagePullSecrets") or ())
        found = await self.installer.get(Identity("apps/v1", "DaemonSet", namespace, DAEMON_SET))
        if found is None:
            known = image or installed
            return Agents(known or usual, pull_secrets=secrets, known=known is not None)
        inner = found["spec"]["template"]["spec"]
        container = inner["containers"][0]
        folders = [word.partition("=")[2] for word in container.get("args", ()) if word.startswith("--kubelet-dir=")]
        return Agents(
            image or container["image"],
            (folders or [KUBELET])[0],
            (*secrets, *(inner.get("imagePullSecrets") or ())),
            container.get("imagePullPolicy", "IfNotPresent"),
            (inner.get("securityContext") or {}).get("seLinuxOptions"),
            known=True,
        )

    async def close(self, namespace: str) -> None:
        """Webhook and scheduler; gone when this returns. From then on no Pod comes to our cards."""
        self._say("programs", "the webhook")
        webhook = Identity("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "", WEBHOOK)
        await self.installer.delete(webhook)
        await self._end(namespace, "Deployment", DEPLOYMENT, "scheduler")

    async def programs(self, namespace: str) -> None:
        """These, and the agents; gone when this returns."""
        await self.close(namespace)
        await self._end(namespace, "DaemonSet", DAEMON_SET, "agent")

    async def _end(self, namespace: str, kind: str, name: str, component: str) -> None:
        self._say("programs", name)
        await self.installer.delete(Identity("apps/v1", kind, namespace, name))
        await self._until_no_pods(namespace, component)

    async def _until_no_pods(self, namespace: str, component: str) -> None:
        selector = f"{made.SELECTOR},{made.COMPONENT_LABEL}={component}"
        while True:
            pods = await self.installer.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
            if not pods:
                return
            self._check_time(f"Pod {pods[0]['metadata']['name']} did not end in time")
            await asyncio.sleep(_LOOK)

    # --- nodes ---------------------------------------------------------------------------------------------------

    async def nodes(self) -> list[Json]:
        """All of them."""
        return await self.installer.items("/api/v1/nodes")

    async def sweep(self, namespace: str, agents: Agents, *, keep_running: bool) -> dict[str, str | None]:
        """What stands on the nodes that had an agent. Answers for each of them why it could not be swept, or None."""
        told: dict[str, str | None] = {}
        work: dict[str, Agents] = {}
        for node in await self.nodes():
            name, how = node["metadata"]["name"], _how(node, agents)
            if isinstance(how, Agents):
                work[name] = how
            elif how is not None:
                told[name] = how
        names = list(work)
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            answers = await asyncio.gather(
                *(self._sweep_one(namespace, name, work[name], keep_running) for name in some)
            )
            told |= dict(zip(some, answers, strict=True))
            self._say("nodes", f"{at + len(some)} of {len(names)} swept")
        return told

    async def _sweep_one(self, namespace: str, node: str, agents: Agents, keep_running: bool) -> str | None:
        pod = sweeper(namespace, node, agents, keep_running=keep_running)
        path = _path(pod)
        await self._delete(path, grace=0)  # of a command that was killed
        while True:
            try:
                await self._kube.create(path.rpartition("/")[0], pod)
                break
            except ApiError as error:
                if error.status == 422:
                    return f"node {node} is not swept: {error.message}"
                await self._make_way(namespace, error)
            self._check_time(f"Pod {pod['metadata']['name']} cannot be made, or one of an earlier try does not end")
            await asyncio.sleep(_LOOK)
        while True:
            told = await self._kube.get(path)
            phase = (told.get("status") or {}).get("phase")
            if phase == "Succeeded":
                await self._delete(path, grace=0)
                return None
            if phase == "Failed" or self._now() >= self._until:
                return f"node {node} is not swept: {await self._why(namespace, told)}"
            await asyncio.sleep(_LOOK)

    async def _make_way(self, namespace: str, error: ApiError) -> None:
        """For a Pod that could not be made. After an earlier command the namespace may be gone: it is made for it."""
        if error.status == 404:
            labels = {made.NAME_LABEL: "aliquot", made.COMPONENT_LABEL: _SWEEP, made.MANAGED_LABEL: made.MANAGER}
            metadata = {"name": namespace, "labels": {**labels, "pod-security.kubernetes.io/enforce": "privileged"}}
            await self.installer.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        elif error.status != 409 and not (error.status == 403 and "serviceaccount" in error.message):
            raise error  # 409: one of an earlier try is still there; 403: the namespace has no account yet

    async def leave_room(self, namespace: str) -> None:
        """The namespace, where it was made for the sweepers alone."""
        which = Identity("v1", "Namespace", "", namespace)
        try:
            found = await self.installer.get(which)
        except ApiError as error:
            if error.status == 403:  # Helm's hook: it is in that namespace, and may not look at it
                return
            raise
        if found is not None and (found["metadata"].get("labels") or {}).get(made.COMPONENT_LABEL) == _SWEEP:
            await self._delete_namespace(which)

    async def _why(self, namespace: str, pod: Json) -> str:
        name = pod["metadata"]["name"]
        try:
            text: bytes = await self._kube.get(f"{_path(pod)}/log", params={"tailLines": "1"}, into=bytes)
        except ApiError:
            text = b""
        return text.decode(errors="replace").strip() or f"{workloads.not_ready(pod)}; Pod {namespace}/{name} is left"

    async def clean_nodes(
        self, labelled: Mapping[str, Mapping[str, str]], agents: Agents, stays: Collection[str] = ()
    ) -> int:
        """Our marks on Nodes. Where files stay, the node says so from now on. Answers how many had some."""
        done = 0
        for node in await self.nodes():
            name = node["metadata"]["name"]
            how = _sweeping(node, agents)
            if isinstance(how, str):  # its mark stays as it is, until somebody has looked
                continue
            left = LeftBehind(how.image, how.kubelet, how.selinux) if name in stays else None
            done += await self._clean(name, node, labelled.get(name, {}), left)
        return done

    async def _clean(self, name: str, node: Json, labelled: Mapping[str, str], left: LeftBehind | None) -> bool:
        path, wrote = f"/api/v1/nodes/{name}", False
        for attempt in range(_TRIES):
            patch, status = node_leftovers(node, labelled, left)
            try:
                if patch is not None:
                    await self._kube.patch(path, patch, into=bytes)
                if status is not None:
                    await self._kube.patch(f"{path}/status", status, form="strategic", into=bytes)
                return wrote or bool(patch or status)
            except ApiError as error:
                if error.status == 404:
                    return wrote
                if error.status != 409 or attempt == _TRIES - 1:
                    raise
            wrote = True
            node = await self._kube.get(path)
        return wrote

    # --- the rest ------------------------------------------------------------------------------------------------

    async def rest(self, record: Record | None, namespace: str, usual: Sequence[Identity]) -> None:
        """Every object that there may be, the record and the namespace last."""
        known = dict.fromkeys((*usual, *(record.objects if record else ())))
        before = made.record_before(record) if record else None
        known |= dict.fromkeys(before.objects if before else ())
        for which in reversed(known):
            if which.kind != "Namespace" and await self.installer.delete(which):
                self._say("objects", str(which))
        await self.installer.delete(Identity("v1", "ConfigMap", namespace, made.RECORD))
        await self._leave_namespace(Identity("v1", "Namespace", "", namespace))

    async def _leave_namespace(self, which: Identity) -> None:
        found = await self.installer.get(which)
        if found is None:
            return
        if (found["metadata"].get("labels") or {}).get(made.MANAGED_LABEL) != made.MANAGER:
            bare = {"apiVersion": which.api, "kind": which.kind, "metadata": {"name": which.name}}
            await self.installer.apply(bare)  # which gives back what we had added
            return
        await self._delete_namespace(which)

    async def _delete_namespace(self, which: Identity) -> None:
        self._say("objects", str(which))
        await self.installer.delete(which)
        while await self.installer.get(which) is not None:
            self._check_time(
                f"namespace {which.name} does not end: kubectl get all -n {which.name} shows what is in it"
            )
            await asyncio.sleep(_LOOK)

    async def _delete(self, path: str, grace: int | None = None) -> None:
        try:
            params = {} if grace is None else {"gracePeriodSeconds": str(grace)}
            await self._kube.delete(path, params=params, into=bytes)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _uid(self, path: str) -> str | None:
        try:
            return str((await self._kube.get(path))["metadata"]["uid"])
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _check_time(self, what: str) -> None:
        if self._now() >= self._until:
            raise InstallError(f"{what}: run the same command again, with a longer --timeout")


def sweeper(namespace: str, node: str, agents: Agents, *, keep_running: bool) -> Json:
    """The Pod that sweeps one node: it goes there past every scheduler and taint, and needs no account."""
    labels = {made.NAME_LABEL: "aliquot", made.COMPONENT_LABEL: _SWEEP, made.MANAGED_LABEL: made.MANAGER}
    args = ["uninstall", "--this-node", f"--host-root={_HOST}", f"--kubelet-dir={agents.kubelet}"]
    names = {folder: folder.strip("/").replace("/", "-") for folder in _MOUNTS}
    if not agents.kubelet.startswith("/var/lib/"):
        names[agents.kubelet] = "kubelet"
    container = {
        "name": "sweep",
        "image": agents.image,
        "imagePullPolicy": agents.pull_policy,
        "args": [*args, *(["--keep-running"] if keep_running else [])],
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": name, "mountPath": f"{_HOST}{folder}"} for folder, name in names.items()],
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": list(agents.pull_secrets),
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"seLinuxOptions": agents.selinux} if agents.selinux else {}),
        },
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": folder, "type": "Directory"}} for folder, name in names.items()
        ],
    }
    metadata = {"name": f"aliquot-sweep-{node}"[:253], "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _holds(pod: Json) -> bool:
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return bound and native.GRANT in (pod["metadata"].get("annotations") or {}) and not is_finished(pod)


def _how(node: Json, agents: Agents) -> Agents | str | None:
    """As what a node is swept; why it cannot be; None: nothing of ours was there."""
    if parse_left_behind(node) is None and not had_agent(node):
        return None
    ready = [
        condition["status"] for condition in node["status"].get("conditions") or () if condition["type"] == "Ready"
    ]
    if ready != ["True"]:
        name = node["metadata"]["name"]
        return f"node {name} is not ready: when it is, `aliquot uninstall` again, or with --this-node there"
    return _sweeping(node, agents)


def _sweeping(node: Json, agents: Agents) -> Agents | str:
    """Before Kubernetes 1.30 an agent may write annotations of any Node. So a mark's image counts only where nothing
    else tells one: then no agent has an account any more, and those before had their marks written anew.
    """
    left = parse_left_behind(node)
    if left is None or had_agent(node):
        return agents
    if isinstance(left, Invalid):
        name = node["metadata"]["name"]
        return agents if agents.known else f"node {name}: {left.sentence()}; or say with --image what sweeps it"
    image = agents.image if agents.known else left.image
    return replace(agents, image=image, kubelet=left.kubelet, selinux=agents.selinux or left.selinux)
