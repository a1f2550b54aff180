"""Evicting Pods for more important ones.

offered.py      answers kube-scheduler's `preempt`: where a node's totals are short, it evicts
evictor.py      evicts through the Eviction API where only a card is short: kube-scheduler finds nothing to evict then
promises.py     the room that is promised to a Pod: kept while its victims leave, and given up when nothing comes of it
evictions.py    trial and real evictions, their events, and how long a refused one is not tried again
evictionapi.py  the calls: Eviction, nominatedNodeName, and the touch that has kube-scheduler try a Pod again
tenants.py      which Pods of a node may be evicted for another one

How room is reserved in the ledger: placement/preemption/reservations.py.
"""
