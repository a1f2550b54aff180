"""WHAT WOULD HAPPEN?  The same placement, on a trace of Pods, in no time at all.

trace.py     nodes and Pods from CSV files in the openb format, or generated
arrivals.py  the order in which Pods come
replay.py    place them one after the other and count
"""
