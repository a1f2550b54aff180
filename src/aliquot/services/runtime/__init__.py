"""Holds tenants to their shares: registration of their processes, one loop per card that sets time slices and pauses
(`cardloop`), proof that these have an effect (`proving`), health and audit of the cards.

The decisions are in `arbiter`.
"""
