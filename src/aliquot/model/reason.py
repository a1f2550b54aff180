"""The codes of refusals. `aliquot run` imports them: no dataclasses here."""

from __future__ import annotations

from aliquot.model.decoding.opencode import OpenCode


class Reason(OpenCode):
    """What was short. `wanted` and `had` of a Refusal are in the unit given here."""

    # about one card
    MEMORY = "memory"  # GPU memory, MiB
    CORE = "core"  # compute, milli-GPU
    GREEDY = "core-greedy"  # offline compute, milli-GPU
    SLICES = "slices"  # how many share the card
    HOST_POOL = "host-pool"  # host memory for what is booked beyond the card, MiB
    EXCLUSIVE = "exclusive"  # one of the two wants the card for itself; the number of shares on it
    HEALTH = "health"  # the card is sick or gone
    WITHHELD = "withheld"  # MIG mode is on, or a Pod of another plugin holds the card
    MODEL = "model"  # another GPU model, or another card by its UUID, was asked for
    # about a node
    CARDS = "cards"  # cards that fit, of those wanted
    CONTAINERS = "containers"  # each container alone would fit, together they do not
    MODE = "mode"  # the node does not serve this dialect or this way of use
    OTHER_PLUGIN = "other-plugin"  # another device plugin or DRA driver hands out the node's cards
    TOGETHER = "together"  # the node's agent starts no MPS servers for groups of Pods
    MIXED = "mixed"  # the node does not mix online and offline Pods
    QGPU_NODE = "qgpu-node"  # the node serves qGPU, and so offers no whole cards
    WHOLE_NODE = "whole-node"  # one of the two wants the node for itself; the number of Pods on it
    CPU = "cpu"  # milli-CPU
    HOST_MEMORY = "host-memory"  # MiB
    INVALID = "invalid-node"  # the node breaks a rule of its dialect; `had` is the sentence
    UNKNOWN_NODE = "unknown-node"  # the scheduler has not seen the node yet
    INVALID_POD = "invalid-pod"  # the Pod breaks a rule of its dialect, on every node
    GROUP = "group"  # members of its PodGroup that have a place, or would have one, of those needed
    # said by Kubernetes itself, not by us
    UNSCHEDULABLE = "unschedulable"
    NOT_READY = "not-ready"
    TAINT = "taint"
    SELECTOR = "selector"
