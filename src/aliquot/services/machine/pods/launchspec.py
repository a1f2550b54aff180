"""Builds the launch spec of a Pod for its supervisor: commands, environments, folders and logs of its containers."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot import dialects
from aliquot.adapters.host.home import CONTAINER_VARIABLE, OF_A_TENANT, POD_VARIABLE
from aliquot.dialects.local.claims import accepted_claim
from aliquot.dialects.local.pods import ContainerPlan, PodPlan, expand, plan_of
from aliquot.model.claim import Claim
from aliquot.model.containers.environment import with_granted
from aliquot.model.containers.launch import ContainerLaunch, LaunchSpec
from aliquot.model.containers.localpod import ContainerState, LocalPod
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import TenantEnvironment
from aliquot.services.machine.requests import RunRequest

# Variables that a container must not inherit from the shell that applied it.
_FOREIGN = (*OF_A_TENANT, POD_VARIABLE, CONTAINER_VARIABLE)
_NO_CARD = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def manifest_of(pod: LocalPod) -> JsonObject:
    """The applied manifest with the uid of the Pod."""
    return {**pod.manifest, "metadata": {**pod.manifest["metadata"], "uid": pod.uid}}


def plan(pod: LocalPod) -> PodPlan:
    """The plan of the containers. The manifest was validated when it was applied."""
    found = plan_of(pod.manifest)
    if isinstance(found, Invalid):
        raise ValueError(found.sentence())
    return found


def claim_of(pod: LocalPod) -> Claim | None:
    """Its claim, with its tenant id as uid; None: it requests no card."""
    found = accepted_claim(manifest_of(pod))
    if found is None:
        return None
    # CPU and memory of the machine are not booked.
    return replace(found, uid=pod.tenant, name=pod.key, cpu_milli=0, memory_mib=0)


def run_request_of(pod: LocalPod, claim: Claim) -> RunRequest:
    """The claim as a run request, as far as possible; for display."""
    part = claim.containers[0] if claim.containers else None
    words = next((container.command for container in pod.state.containers if not container.init), ())
    milli = None if part is None else part.slice.greedy_milli or part.slice.core_milli
    return RunRequest(
        words or (pod.name,),
        pod.key,
        claim.app_class,
        None if milli is None else milli // 10,
        None if part is None else part.slice.memory_mib or None,
        1 if part is None or part.count is None else part.count,
    )


def states(pod: LocalPod, node: str, grant: Grant | None, logs: str) -> tuple[ContainerState, ...]:
    """The states of its containers before any is started."""
    return tuple(
        ContainerState(
            container.name,
            container.image,
            _command(pod, container, node, grant)[0],
            f"{logs}/{container.name}.log",
            container.init,
        )
        for container in plan(pod).containers
    )


def launch_spec(
    pod: LocalPod, grant: Grant | None, claim: Claim | None, node: Node, environment: TenantEnvironment, logs: str
) -> LaunchSpec:
    """What its supervisor starts. `environment` is that of the tenant's processes."""
    found = plan(pod)
    containers = [_container(pod, container, grant, claim, node, environment, logs) for container in found.containers]
    return LaunchSpec(found.restart_policy, found.grace, containers)


def _container(
    pod: LocalPod,
    container: ContainerPlan,
    grant: Grant | None,
    claim: Claim | None,
    node: Node,
    environment: TenantEnvironment,
    logs: str,
) -> ContainerLaunch:
    command, own = _command(pod, container, node.name, grant)
    base = {name: value for name, value in pod.applier.environment.items() if name not in _FOREIGN}
    marks = {POD_VARIABLE: pod.uid, CONTAINER_VARIABLE: f"{pod.uid}/{container.name}", "HOSTNAME": pod.name}
    cards = _cards(container, grant)
    if claim is None or grant is None or not cards:
        every = with_granted({**base, **own}, fixed={**marks, **_NO_CARD}, front={})
    else:
        of_dialect = dialects.render_env(claim, grant, node, container.name)
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(cards)}
        fixed = {**environment.fixed, **of_dialect, **seen, **marks}
        every = with_granted({**base, **own}, fixed=fixed, front=environment.front)
    folders = [folder for folder in (container.folder, pod.applier.folder) if folder]
    return ContainerLaunch(
        name=container.name,
        init=container.init,
        sidecar=container.sidecar,
        command=list(command),
        env=every,
        folders=folders,
        log=f"{logs}/{container.name}.log",
    )


def _command(
    pod: LocalPod, container: ContainerPlan, node: str, grant: Grant | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    return expand(container, manifest_of(pod)["metadata"], node, has_card=bool(_cards(container, grant)))


def _cards(container: ContainerPlan, grant: Grant | None) -> list[str]:
    """UUIDs of the cards that the container may use."""
    if grant is None:
        return []
    found = next((granted for granted in grant.containers if granted.name == container.name), None)
    return [] if found is None else [share.uuid for share in found.shares]
