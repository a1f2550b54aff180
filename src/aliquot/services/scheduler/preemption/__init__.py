"""Evicting Pods for more important ones.

offered.py       answers kube-scheduler's `preempt`: where a node's totals are short, it evicts
evictor.py       where only a card is short, kube-scheduler asks nobody: we evict, through the Eviction API
tenants.py       which Pods of a node may be evicted for another one
reservations.py  the room that is kept for a Pod while its victims leave
"""
