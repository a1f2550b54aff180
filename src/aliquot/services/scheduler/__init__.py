"""`aliquot scheduler`: places Pods, binds them and keeps nodes labelled.

kube-scheduler -> ports -> verbs -> cluster -> candidates -> placement. `cluster` holds what the API server said and
what we decided; it has no IO and no clock. Only `binder`, `pendingpods`, `nodeupkeep` and `preemption` write, and only
on the leader. `groups` plans Pods that start together.
"""
