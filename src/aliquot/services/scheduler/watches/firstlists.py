"""The first lists of Nodes and Pods, requested before most of the scheduler is loaded: the API server works on them
meanwhile. So this module imports little."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import Kube, headers_of
from aliquot.adapters.kubernetes.kubeconfig import Server
from aliquot.adapters.kubernetes.listing import request_pages
from aliquot.adapters.kubernetes.paging import PagesAhead
from aliquot.adapters.kubernetes.receiving import Receiver, start_receiving

AGENT = "aliquot-scheduler"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
_NODE_PAGE, _POD_PAGE = 2000, 5000  # objects, 10 to 15 MB: with smaller pages the API server works longer on a list

_NODES_YIELD, _PODS_YIELD = 5, 15  # niceness: Pods are applied after the Nodes


@dataclass(frozen=True, slots=True)
class FirstLists:
    """The first lists of Nodes and Pods; None: not requested yet."""

    nodes: PagesAhead | None = None
    pods: PagesAhead | None = None

    def close(self) -> None:
        """The rest of the pages is not needed."""
        for pages in (self.nodes, self.pods):
            if pages is not None:
                pages.close()


@dataclass(frozen=True, slots=True)
class Started:
    """What is under way already when the scheduler is made."""

    kube: Kube
    lists: FirstLists


@dataclass(frozen=True, slots=True)
class Received:
    """Who receives the first lists of Nodes and Pods beside this process; None: this process itself."""

    nodes: Receiver | None = None
    pods: Receiver | None = None

    def close(self) -> None:
        """The rest of the pages is not needed."""
        for receiver in (self.nodes, self.pods):
            if receiver is not None:
                receiver.close()


def receive_first_lists(server: Server) -> Received:
    """Begin to receive both in processes of their own. To be called before there are threads and an event loop."""
    headers = headers_of(server, AGENT)
    nodes = start_receiving(server, headers, NODES, limit=_NODE_PAGE, yields=_NODES_YIELD)
    pods = start_receiving(server, headers, PODS, limit=_POD_PAGE, beside=nodes, yields=_PODS_YIELD)
    return Received(nodes, pods)


def request_first_lists(kube: Kube, received: Received | None = None) -> FirstLists:
    """Begin to list both. Pods are read after the Nodes, so they come second where the API server is slow."""
    received = received or Received()
    nodes = request_pages(kube, NODES, limit=_NODE_PAGE, protobuf=True, received=received.nodes)
    return FirstLists(nodes, request_pages(kube, PODS, limit=_POD_PAGE, protobuf=True, received=received.pods))
