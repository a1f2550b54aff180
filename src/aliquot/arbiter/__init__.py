"""WHOSE TURN IS IT?  Tenants, their activity and the time in; orders out. Pure: no IO, no clock, no chance.

    orders.py   the few things that can be ordered of a context: a slice, a pause, a resume, a wake-up call
    roster.py   who is on the card: tenants, their contexts, who was active lately
    slices.py   how long each context may run at a stretch, by policy
    turns.py    who may run at all where only one may: rotation by weight, windows by quota
    debts.py    what newcomers had before they could be paused, and how their tenants pay for it
    pieces.py   who goes next where tenants wait for each piece of their work
    gaps.py     how long online work keeps an idle card, learned from its own gaps
    card.py     one card: from who is there and what they do to the orders, and when to look again
    differing.py  what was ordered before, and which orders lead from there to what shall be
    proof.py    whether slices and pauses have an effect, by two contexts of our own on an idle card
    account.py  what share of the card each context had
    bill.py     who pays for its time: tenants, idle, unknown, unmeasured
    timeline.py who held the card in the last minute
    residency.py  whose memory is on the card, who leaves and who returns
    overuse.py  who uses more memory than its limit, and which processes are ended for it

A *context* is one process on one card: the hardware's unit (its channel group) is not the promise's unit (the tenant).
The same code runs in the node's daemon and in the tests' virtual time.
"""
