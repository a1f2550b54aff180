"""WHERE DOES IT GO?  Board, fit, score, choose, book: pure, no IO, no clock, no chance.

    columns.py   the board's numpy columns and their space
    board.py     every card of the cluster as numpy columns, changed one row at a time
    rooms.py     how far cards may be booked beyond their memory
    demand.py    a claim reduced to what a vector operation can compare with cards
    fit.py       which nodes and cards would do, and every reason why the others would not
    verdicts.py  the one reason that keeps a claim from each node, for thousands of nodes at a time
    seat.py      which cards of one node each container gets
    policies.py  binpack, spread, and the online/offline rule of qGPU
    workload.py  what kind of Pods come here, learned from those seen
    packing.py   fgd and dense: where least is spoiled for the Pods still to come
    potential.py what a node is still good for, as one number
    waste.py     how much of what is free is of no use to the Pods seen
    prices.py    what each remainder of a card is worth, for dense
    reserve.py   room that dense keeps for Pods of several cards
    choose.py    the best node for a claim, with scores kept per shape
    why.py       why a decision took its cards: what ruled the others out
    groups.py    places for several claims at once, or for none
    attempts.py  pauses of a group that held places in vain
    book.py      who holds what: assume, confirm, forget, expire
    victims.py   who has to go for a more important Pod
    reservations.py  room kept for a Pod while its victims leave
    crowding.py  one node, in plain numbers: would a Pod take a card beyond what it has

The same code serves the scheduler, one machine, and the simulator.
"""

# Here, where it costs nothing to read: the command line offers them before numpy is loaded. choose.POLICIES makes them.
POLICY_NAMES = ("binpack", "spread", "fgd", "dense")
