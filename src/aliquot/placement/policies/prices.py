"""What the free part of a card is worth: dual prices of the cutting-stock problem over the observed mix.

Cards are the stock, Pods the pieces cut from them. The linear program's dual gives each size of Pod a price such that
no way of filling a card is worth more than the card; a remainder is then worth the best that could still be put in
it. An 810 Pod leaves 190 that almost no Pod fills: the price knows.

The program has about twenty rows, so forty lines of revised simplex with column generation (Gilmore and Gomory, 1961)
do it in milliseconds; a solver library would be the heaviest dependency of the project.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Floats, Ints

GRAIN = 10  # milli-GPU: sizes are rounded up and remainders down to it
_CAPACITY = CORE_MILLI // GRAIN
_SCALE = 1 << 20  # prices become multiples of 1/2**20: sums of floats are then exact, in any order
_EPSILON = 1e-9
_NO_PIECE = -1
_ROUNDS = 2_000  # columns brought in at most; some 100 are needed


def remainder_values(pieces: Mapping[int, int]) -> Floats:
    """Worth of every remainder 0..1000 milli, a whole card being 1000, for pieces of milli -> how many."""
    demand: dict[int, int] = {}
    for milli, times in sorted(pieces.items()):
        if 0 < milli <= CORE_MILLI and times > 0:
            size = -(-milli // GRAIN)
            demand[size] = demand.get(size, 0) + times
    if not demand:
        return np.zeros(CORE_MILLI + 1)
    sizes = np.array(sorted(demand), np.int64)
    wanted = np.array([demand[int(size)] for size in sizes], float)
    values, _ = _knapsack(sizes, _dual_prices(sizes, wanted / wanted.sum()))
    grains = np.rint(values * (CORE_MILLI * _SCALE)) / _SCALE
    return grains[np.arange(CORE_MILLI + 1) // GRAIN]


def _dual_prices(sizes: Ints, wanted: Floats) -> Floats:
    """Prices y >= 0 that maximise wanted . y with no filling of a card worth more than 1."""
    basis = np.diag((_CAPACITY // sizes).astype(float))
    cost = np.ones(len(sizes))
    prices = np.linalg.solve(basis.T, cost)
    for _ in range(_ROUNDS):
        if prices.min() < -_EPSILON:  # making too many of a size costs nothing, so no price is negative
            entering, entering_cost = -np.eye(len(sizes))[int(prices.argmin())], 0.0
        else:
            values, best = _knapsack(sizes, prices)
            if values[-1] <= 1.0 + _EPSILON:
                break
            entering, entering_cost = best, 1.0
        amounts = np.linalg.solve(basis, wanted)
        along = np.linalg.solve(basis, entering)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(along > _EPSILON, np.maximum(amounts, 0.0) / along, np.inf)
        leaving = int(ratio.argmin())
        if not np.isfinite(ratio[leaving]):
            break
        basis[:, leaving] = entering
        cost[leaving] = entering_cost
        prices = np.linalg.solve(basis.T, cost)
    return np.maximum(prices, 0.0)


def _knapsack(sizes: Ints, prices: Floats) -> tuple[Floats, Floats]:
    """(the best worth within every capacity, how many of each size fill a whole card best)."""
    pieces = list(zip(sizes.tolist(), prices.tolist(), strict=True))
    worth, taken = [0.0], [_NO_PIECE]  # by room
    for room in range(1, _CAPACITY + 1):
        best, which = worth[-1], _NO_PIECE
        for at, (size, price) in enumerate(pieces):
            if size > room:
                break
            if worth[room - size] + price > best + _EPSILON:
                best, which = worth[room - size] + price, at
        worth.append(best)
        taken.append(which)
    filling = np.zeros(len(sizes))
    room = _CAPACITY
    while room:
        at = taken[room]
        if at == _NO_PIECE:
            room -= 1
        else:
            filling[at] += 1
            room -= int(sizes[at])
    return np.array(worth), filling
