"""The cards: one loop and thread each (`cardloop`), with its parts:

    occupants   tenants and contexts that are on the card
    reading     what they do, from the pages; `spending` divides the card's time among them. Pure
    performing  the arbiter's orders, by the driver or at the gate
    heartbeat   the promise on the pages that pauses will be ended
    findings    what is wrong with a context
    standing    how tenants stand on the card
    trace       who came, left and had the card, for the timelines
    work        what tenants did there, for trials on an idle card

Beside the loops: `health` and `meter` ask NVML, each in threads of its own.
"""
