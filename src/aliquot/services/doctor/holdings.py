"""Does what Pods hold on the node agree with their grants: CDI specs, folders and the kubelet's own account against
the Pods' annotations. What was seen in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from aliquot import dialects
from aliquot.dialects import QgpuRules, Rules, gpushare, hami, native, qgpu, t9k
from aliquot.dialects.wire.cdi import VENDOR
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.dialects.wire.webhook.admission import reads_environment
from aliquot.dialects.wire.workloads import StartedPod
from aliquot.model.claim import Claim
from aliquot.model.containers.edits import Spec
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.model.numbers.quantity import QuantityError, parse_count
from aliquot.model.refusal import Invalid
from aliquot.services.doctor.agent import restarting, runs
from aliquot.services.doctor.findings import Finding, found, ok
from aliquot.services.doctor.site import Held, Site

_RESOURCES = frozenset((*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, native.PLACE))


def _resources(node: Node) -> frozenset[str]:
    """The resources that the kubelet counts for us."""
    return _RESOURCES.union(hami.COUNTED) if Offer.HAMI in node.offers else _RESOURCES


def living(pods: Iterable[StartedPod]) -> dict[str, StartedPod]:
    """The Pods that are not over, by UID."""
    return {pod.metadata.uid: pod for pod in pods if not pod.finished}


def holding_findings(site: Site, node: NodeObject | Invalid, pods: list[StartedPod], rules: Rules) -> Iterator[Finding]:
    """All that Pods hold here and should not, and the other way round. `pods` are those of this node."""
    parsed = None if isinstance(node, Invalid) else dialects.parse_node(node, rules)
    here = parsed if isinstance(parsed, Node) else Node(site.node_name)
    wrong = [
        *_leftovers(site, living(pods)),
        *_specs(site, living(pods), here, rules),
        *_allocations(site, pods, here, rules),
        *_unseen(site, living(pods)),
        *_unresolved(site, living(pods)),
        *_without_environment(site, living(pods), here, rules),
    ]
    yield from wrong
    if not wrong:
        count = len({spec.pod_uid for spec in site.specs} | site.folders)
        yield ok("holdings", f"{count} Pod{'s' * (count != 1)} on the cards, each with what it was granted")


# --- what Pods that are gone have left behind ------------------------------------------------------------------------


def _leftovers(site: Site, pods: Mapping[str, StartedPod]) -> Iterator[Finding]:
    tenants = site.agent.tenants if site.agent and runs(site) else []
    lingering = {tenant.id: tenant for tenant in tenants if tenant.ended}
    known = {tenant.id for tenant in tenants}  # ResourceClaims are tenants too, and no Pods
    for uid in sorted(lingering.keys() - pods.keys()):
        pids = sorted({pid for share in lingering[uid].cards for pid in share.pids})
        who = f": {', '.join(map(str, pids))}" if pids else ""
        what = f"Pod {lingering[uid].name} is over, but processes of it still hold its cards{who}"
        yield found(
            "holdings",
            site.node_name,
            what,
            "a kubelet that runs ends them; else kill them, and the agent frees the cards",
        )
    for spec in site.specs:
        if spec.pod_uid not in pods and spec.pod_uid not in known:
            what = f"is of Pod {spec.namespace}/{spec.pod} ({spec.pod_uid}), which is gone: it was not removed"
            yield found("cdi", _file(site, spec), what, _sweep(site, f"rm {_file(site, spec)}"))
    for uid in sorted(site.folders - pods.keys() - known):
        folder = f"{site.places.run}/t/{uid}"
        what = "is the folder of a Pod that is gone: it was not removed"
        yield found("tenants", folder, what, _sweep(site, f"rm -r {folder}"))
    for name, uid in sorted(site.links.items()):
        if uid not in pods and uid not in lingering:
            link = f"{site.places.run}/a/{name}"
            what = f"links to the folder of a Pod that is gone ({uid}): it was not removed"
            yield found("tenants", link, what, _sweep(site, f"rm {link}"))


def _sweep(site: Site, by_hand: str) -> str:
    if runs(site):
        return f"{by_hand}; or {restarting(site)}: it cleans up when it starts"
    return f"{by_hand}; or start the agent, which removes it"


def _file(site: Site, spec: Spec) -> str:
    return f"{site.places.cdi}/{spec.name.file}"


# --- what Pods have, against what they were granted ------------------------------------------------------------------


def granted(pod: PodObject, node: Node, rules: Rules) -> tuple[Claim, Grant] | None:
    """The claim and grant, by whichever version of the rules the grant was made."""
    for version in sorted(QgpuRules, key=lambda version: version is not rules.qgpu):
        claim = dialects.parse_pod(pod, replace(rules, qgpu=version))
        grant = dialects.parse_grant(pod, claim, node) if isinstance(claim, Claim) else None
        if isinstance(claim, Claim) and isinstance(grant, Grant):
            return claim, grant
    return None


def _specs(site: Site, pods: Mapping[str, StartedPod], node: Node, rules: Rules) -> Iterator[Finding]:
    for spec in site.specs:
        lost = sorted(mount.host for mount in spec.edits.mounts if mount.host in site.absent)
        if lost and spec.pod_uid in pods:
            what = f"mounts {lost[0]}, which is not there: Pod {spec.namespace}/{spec.pod} cannot start its container"
            yield found(
                "cdi", _file(site, spec), what, f"{restarting(site)}: it installs what it mounts when it starts"
            )
        both = granted(pods[spec.pod_uid], node, rules) if spec.pod_uid in pods else None
        if both is None:
            continue
        claim, grant = both
        names = [container.name for container in grant.containers]
        name = spec.container if spec.container in names else names[0]
        promised = dialects.render_env(claim, grant, node, name, rules)
        wrong = sorted(key for key, value in promised.items() if spec.edits.env.get(key) != value)
        if wrong:
            has = spec.edits.env.get(wrong[0], "not set")
            what = f"gives Pod {spec.namespace}/{spec.pod} {wrong[0]}={has}, but it was granted {promised[wrong[0]]}"
            fix = f"create the Pod again: kubectl delete pod {spec.pod} -n {spec.namespace}. Who besides aliquot writes"
            yield found("cdi", _file(site, spec), what, f"{fix} this file, or the Pod's annotation {native.GRANT}?")


def _allocations(site: Site, pods: list[StartedPod], node: Node, rules: Rules) -> Iterator[Finding]:
    by_name = {_key(pod): pod for pod in pods}
    for held in site.held or ():
        ours = {resource: count for resource, count in held.amounts.items() if resource in _resources(node)}
        pod = by_name.get(f"{held.namespace}/{held.pod}")
        if not ours or pod is None or pod.finished:
            continue
        if granted(pod, node, rules) is None:
            what = f"container {held.container} holds {_amounts(ours)}, but the Pod was granted no card: it was placed"
            fix = "kubectl delete pod POD once kube-scheduler asks Aliquot: `aliquot manifests scheduler-config`"
            yield found("allocations", _key(pod), f"{what} without Aliquot", fix)
            continue
        asked = _limits(pod, held, _resources(node))
        for resource, count in ours.items():
            if asked is not None and asked.get(resource) != count:
                what = f"container {held.container} holds {count} of {resource}, but asks for {asked.get(resource, 0)}"
                fix = "kubectl delete pod POD; if it happens again, restart the kubelet: its own records are wrong"
                yield found("allocations", _key(pod), what, fix)


def _limits(pod: PodObject, held: Held, resources: frozenset[str]) -> dict[str, int] | None:
    """What a container asks for; None where the Pod has none of that name."""
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        if container.name == held.container:
            limits = (container.resources and container.resources.limits) or {}
            return {limit: _count(limits[limit]) for limit in limits if limit in resources}
    return None


def _key(pod: PodObject) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name or '(no name)'}"


def _count(value: object) -> int:
    try:
        return parse_count(value)
    except QuantityError:
        return -1


def _amounts(ours: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {resource}" for resource, count in ours.items())


# --- whether the agent can see them ----------------------------------------------------------------------------------


def _unseen(site: Site, pods: Mapping[str, StartedPod]) -> Iterator[Finding]:
    """A running Pod has at least one process, and the agent must know whose each is."""
    if site.processes is None or site.agent is None:
        return
    running = [
        tenant
        for tenant in site.agent.tenants
        if (pod := pods.get(tenant.id)) is not None and pod.runs and not tenant.ended
    ]
    unseen = [tenant.name for tenant in running if not site.processes.get(tenant.id)]
    if unseen and len(unseen) == len(running):
        what = f"the agent sees no process of {', '.join(unseen[:3])}, which runs: no tenant is held to its share"
        fix = "the agent's Pod needs hostPID: true; without it the kernel hides the process ids of other Pods"
        yield found("processes", site.node_name, what, fix)


def _unresolved(site: Site, pods: Mapping[str, StartedPod]) -> Iterator[Finding]:
    """Containers for which the runtime did not find our files, though we wrote them."""
    for pod in pods.values():
        messages = (status.waiting.message or "" for status in pod.container_statuses if status.waiting is not None)
        message = next((text for text in messages if _NOT_FOUND in text), "")
        if f"{VENDOR}/" in message:
            what = f"the runtime does not see what the agent wrote into {site.places.cdi}: {message[:160]}"
            fix = f"is {site.places.cdi} among the cdi_spec_dirs of its configuration? If so, it does not watch it now:"
            yield found("cdi", _key(pod), what, f"{fix} systemctl restart containerd; containers keep running")


_NOT_FOUND = "unresolvable CDI device"  # as the library says it that containerd and CRI-O share


def _without_environment(site: Site, pods: Mapping[str, StartedPod], node: Node, rules: Rules) -> Iterator[Finding]:
    """Without CDI, a container reads its environment from annotations, by references that our webhook has put in."""
    for pod in pods.values() if site.places.cdi is None else ():
        both = granted(pod, node, rules)
        if both is None:
            continue  # a finding of its own
        promised = {
            container.name: dialects.render_env(*both, node, container.name, rules) for container in both[1].containers
        }
        if any(env and not reads_environment(pod, name, env) for name, env in promised.items()):
            what = "the agent lets no container of it start: the runtime has no CDI, so that the webhook must have them"
            fix = "start the scheduler with --webhook-port and --env-by-annotation; then kubectl delete pod POD"
            yield found("cdi", _key(pod), f"{what} read their environment, but has not seen the Pod", fix)
