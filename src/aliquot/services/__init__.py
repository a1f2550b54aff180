"""WHAT RUNS?  What joins the rooms: dialects on one side, placement on the other. No rules of its own.

snapshot.py  a cluster as it stands at one moment, and where Pods would go on it
"""
