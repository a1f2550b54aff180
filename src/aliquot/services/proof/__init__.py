"""Proves the control of a card by its effect: two contexts of our own compete on an idle card, one is favoured by its
slice, then the other is paused, and what they get done must change.

    load.py     the process of one of the two: it keeps its queue full and counts
    contest.py  starts the two, treats them, and measures
    selftest.py `aliquot probe`: the same, and latency, shares, caps, switching and memory limits, measured
    startup.py  when that is done: while a card is idle, once per model, driver and boot

The verdict is `arbiter/proof.py`.
"""
