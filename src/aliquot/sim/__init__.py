"""WHAT WOULD HAPPEN?  The scheduler's own placement, replayed over a trace.

trace.py     nodes and Pods from CSV files in the openb format, or generated
arrivals.py  the order in which Pods come
replay.py    place them one after the other and count
churn.py     let them come and go at a steady load; allocation, and waiting time by size
"""
