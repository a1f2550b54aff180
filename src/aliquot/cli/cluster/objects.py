"""Reads through kubectl what decides where Pods go."""

from __future__ import annotations

from typing import Any

import click

from aliquot.adapters.kubernetes.kubectl import CONFIG_MAPS, Kubectl, KubectlError, both


def cluster_objects(kubectl: Kubectl) -> list[dict[str, Any]]:
    """All that decides where Pods go: Nodes, Pods, ResourceSlices, sick cards' ConfigMaps. Raises KubectlError."""
    nodes, pods = both(kubectl)
    slices = kubectl.resource_slices()
    try:
        sick = kubectl.items(CONFIG_MAPS, "ConfigMap")
    except KubectlError as error:  # most users may not; the cards' own health is still known
        click.echo(
            f"note: {CONFIG_MAPS} cannot be read, so cards taken out there are not known: {error.text}", err=True
        )
        sick = []
    return [*nodes, *pods, *sick, *slices]
