"""The first lists of Nodes and Pods, requested before most of the scheduler is loaded: the API server works on them
meanwhile. So this module imports little."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.adapters.kubernetes.listing import request_pages
from aliquot.adapters.kubernetes.paging import PagesAhead

AGENT = "aliquot-scheduler"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
_NODE_PAGE, _POD_PAGE = 2000, 5000  # objects, 10 to 15 MB: with smaller pages the API server works longer on a list


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


def request_first_lists(kube: Kube) -> FirstLists:
    """Begin to list both. Pods are read after the Nodes, so they come second where the API server is slow."""
    return FirstLists(request_pages(kube, NODES, limit=_NODE_PAGE), request_pages(kube, PODS, limit=_POD_PAGE))
