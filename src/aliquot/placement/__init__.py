"""WHERE DOES IT GO?  Board, fit, score, choose, book: pure, no IO, no clock, no chance.

    columns.py   the board's numpy columns and their space
    board.py     every card of the cluster as numpy columns, changed one row at a time
    remaining.py what is left of each card, worked out from what is taken
    rooms.py     how far cards may be booked beyond their memory
    demand.py    a claim reduced to what a vector operation can compare with cards
    fit.py       which nodes and cards would do, and every reason why the others would not
    verdicts.py  the one reason that keeps a claim from each node, for thousands of nodes at a time
    seat.py      which cards of one node each container gets
    policies/    binpack, spread, fgd, dense: which of the nodes that fit, and which of its cards
    choose.py    the best node for a claim, with scores kept per shape
    book.py      who holds what: assume, confirm, forget, expire
    groups/      places for Pods that start together
    preemption/  who has to go for a more important Pod, and the room kept for it
    crowding.py  one node, in plain numbers: would a Pod take a card beyond what it has

The same code serves the scheduler, one machine, and the simulator.
"""

# Here, where it costs nothing to read: the command line offers them before numpy is loaded. choose.POLICIES makes them.
POLICY_NAMES = ("binpack", "spread", "fgd", "dense")
