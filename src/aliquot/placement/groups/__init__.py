"""Pods that start together. Pure.

planning.py  places for several claims at once, or for none
attempts.py  pauses of a group that held places in vain
"""
