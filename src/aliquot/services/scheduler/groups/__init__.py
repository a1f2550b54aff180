"""PodGroups in the scheduler: no member gets a card before enough of them can have one.

    admission   whether a member may go now, and where: plans all of them together. Pure
    following   follows PodGroups of every API that the cluster serves
    gathering   a bind waits here until enough members have come to theirs
    waiting     on the leader: what a waiting group lacks, its retries, and Pods that name a group that is not there

`roster`, beside this folder, has the groups and their members: what the API server said, as part of `cluster`.
Nothing is kept but holds on the cluster's ledger and pauses, which expire: a new leader plans again
from Pods and PodGroups.
"""
