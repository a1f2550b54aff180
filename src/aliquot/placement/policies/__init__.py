"""Which of the nodes that fit, and which of its cards. Pure.

ranking.py    binpack, spread, what a Pod itself prefers, and the online/offline rule of qGPU
packing.py    fgd and dense: where least is spoiled for the Pods still to come
workload.py   what kind of Pods come here, learned from those seen
potential.py  what a node is still good for, as one number
prices.py     what each remainder of a card is worth, for dense
reserve.py    room that dense keeps for Pods of several cards
waste.py      how much of what is free is of no use to the Pods seen
"""
