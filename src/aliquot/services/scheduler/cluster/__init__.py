"""What the scheduler knows and has decided: `state` of the whole cluster, from `nodes` and `pods`. No IO, no clock."""

from aliquot.services.scheduler.cluster.nodes import booked_on
from aliquot.services.scheduler.cluster.pods import Pending, Placed
from aliquot.services.scheduler.cluster.state import NEVER, Cluster

__all__ = ["NEVER", "Cluster", "Pending", "Placed", "booked_on"]
