"""Dynamic Resource Allocation: a node's cards as ResourceSlices, and an allocated ResourceClaim as our grant. Pure.

Not a dialect of Pods: kube-scheduler itself chooses the cards, by the slices that the agent publishes on nodes with
`LABEL`, and the kubelet asks the agent to prepare the claim. A claim is one tenant, however many Pods share it.
"""

from __future__ import annotations

DRIVER = "aliquot.dev"  # also the domain of the devices' attributes in CEL
LABEL = "aliquot.dev/dra"  # of a Node, by its owner; "true": its cards are allocated by claims and by nothing else
LABELS = (LABEL,)
DIALECT = "claims"  # instead of a dialect: kube-scheduler gives the cards to ResourceClaims

GROUP = "/apis/resource.k8s.io/v1"  # Kubernetes 1.34 and newer
SLICES = f"{GROUP}/resourceslices"
CLAIMS = f"{GROUP}/resourceclaims"

DEVICE_CLASSES = ("aliquot.dev", "online.aliquot.dev", "offline.aliquot.dev")  # that the chart makes
MEMORY, CORE = "memory", "core"  # the capacities of a card: bytes, and percent of its compute
