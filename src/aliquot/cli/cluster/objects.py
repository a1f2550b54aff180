"""Reads through kubectl what decides where Pods go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from aliquot.adapters.kubernetes.kubectl import CONFIG_MAPS, Kubectl, KubectlError, Trouble, both
from aliquot.dialects import dra, podgroups
from aliquot.model.decoding.openjson import JsonObject


def cluster_objects(kubectl: Kubectl) -> list[JsonObject]:
    """All that decides where Pods go: Nodes, Pods, PodGroups, ResourceSlices, ResourceClaims, sick cards' ConfigMaps.

    Raises KubectlError.
    """
    nodes, pods = both(kubectl)
    slices = kubectl.resource_slices()
    try:
        sick = kubectl.items(CONFIG_MAPS, "ConfigMap")
    except KubectlError as error:  # most users may not; the cards' own health is still known
        click.echo(
            f"note: {CONFIG_MAPS} cannot be read, so cards taken out there are not known: {error.text}", err=True
        )
        sick = []
    claims = _claims(kubectl) if hands_out_claims([*nodes, *slices]) else []
    return [*nodes, *pods, *sick, *slices, *claims, *_pod_groups(kubectl)]


def _claims(kubectl: Kubectl) -> list[JsonObject]:
    try:
        return kubectl.resource_claims()
    except KubectlError as error:
        if error.trouble is not Trouble.FORBIDDEN:
            raise
        click.echo(f"note: ResourceClaims cannot be read, so cards held by them are not known: {error.text}", err=True)
        return []


def hands_out_claims(objects: Iterable[JsonObject]) -> bool:
    """Whether claims may hold cards of ours: a node is labelled for it, or was and its slices are still there."""
    return any(
        dra.LABEL in (obj["metadata"].get("labels") or {}) or (obj.get("spec") or {}).get("driver") == dra.DRIVER
        for obj in objects
    )


def _pod_groups(kubectl: Kubectl) -> Iterator[JsonObject]:
    """PodGroups of every API that the cluster serves and we may read. Raises KubectlError."""
    try:
        groups = kubectl.get("/apis").get("groups") or ()
        for group in groups:
            api, served = group.get("name"), {version.get("version") for version in group.get("versions") or ()}
            version = next((version for version in podgroups.VERSIONS.get(api, ()) if version in served), None)
            if version is None:
                continue
            kinds = kubectl.get(f"/apis/{api}/{version}").get("resources") or ()
            if any(kind.get("name") == podgroups.RESOURCE for kind in kinds):
                items = kubectl.items(f"/apis/{api}/{version}/{podgroups.RESOURCE}", podgroups.KIND)
                yield from ({**item, "apiVersion": f"{api}/{version}"} for item in items)
    except KubectlError as error:
        if error.trouble not in (Trouble.NOT_FOUND, Trouble.FORBIDDEN):
            raise
