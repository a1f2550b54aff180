"""WHAT WOULD HAPPEN?  The same placement and the same arbiter, in no time at all.

trace.py     nodes and Pods from CSV files in the openb format, or generated
arrivals.py  the order in which Pods come
replay.py    place them one after the other and count
gpu.py       a card, processes with work on it, and the arbiter that holds them to their shares
"""
