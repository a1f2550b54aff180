"""Room for a more important Pod. Pure.

victims.py       who has to go
reservations.py  room kept for the Pod while its victims leave
"""
