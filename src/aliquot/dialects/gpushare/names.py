"""The names that gpushare's peers use: resources, annotations, labels; the unit of gpu-mem and the numbers of cards."""

from __future__ import annotations

from enum import StrEnum

from aliquot.dialects.nodes import MOST_CARDS

DIALECT = "gpushare"
MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
CORE = "aliyun.com/gpu-core.percentage"
RESOURCES = (MEMORY, COUNT, CORE)

INDEX = "ALIYUN_COM_GPU_MEM_IDX"
CARD_SIZE = "ALIYUN_COM_GPU_MEM_DEV"
POD_TOTAL = "ALIYUN_COM_GPU_MEM_POD"
CONTAINER_TOTAL = "ALIYUN_COM_GPU_MEM_CONTAINER"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ALLOCATION = "scheduler.framework.gpushare.allocation"
ANNOTATIONS = (COUNT, ALLOCATION, INDEX, CARD_SIZE, POD_TOTAL, ASSIGNED, ASSUME_TIME)
MARKS = (COUNT,)  # annotations, and here labels too, that are part of what a Pod requests

NODE_LABEL = "gpushare"
CGPU_LABEL = "cgpu"  # of ACK before it had the next one, which "true" became there as "cgpu"
ACK_LABEL = "ack.node.gpu.schedule"  # what ACK's nodes have instead
ACK_PLACEMENT = "ack.node.gpu.placement"
LABELS = (NODE_LABEL, CGPU_LABEL, ACK_LABEL, ACK_PLACEMENT)
ACK_SHARED = ("cgpu", "core_mem", "share", "mps")  # values of ACK_LABEL
ACK_WHOLE = ("default", "topology")  # others: cards that ACK hands out whole, under another name than ours
CONFIG_NAMESPACE = "kube-system"  # of the ConfigMaps that take cards out of use


class MemoryUnit(StrEnum):
    """The unit of gpu-mem: --memory-unit of the device plugin."""

    GIB = "GiB"
    MIB = "MiB"

    @property
    def mib(self) -> int:
        """The unit in MiB."""
        return 1024 if self is MemoryUnit.GIB else 1


def card_number(text: str) -> int | None:
    """A card number in the peers' form; None for anything else."""
    number = int(text) if len(text) <= 4 and text.isascii() and text.isdigit() else MOST_CARDS
    return number if number < MOST_CARDS else None
