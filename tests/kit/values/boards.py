"""Any board and any claim, for property tests: small numbers, so that they often come close to each other."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Claim, Role, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.withheld import MIG_MODE
from aliquot.placement.board import Board, Occupant
from kit.values.builders import GIB, a_board, a_claim, a_container, a_node, a_slice, whole_node

offers = st.sampled_from(list(Offer))
slices = st.one_of(
    st.builds(a_slice, st.integers(0, 20), st.none() | st.integers(0, 110), st.none() | st.integers(1, 100)),
    st.builds(Slice, memory_percent=st.integers(1, 100)),
    st.just(Slice(memory_percent=100, exclusive=True)),
)


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    """Any claim, its own or a whole node's."""
    if draw(st.integers(0, 9)) == 0:
        return whole_node()
    containers = [
        a_container(
            draw(slices), draw(st.integers(1, 3)), role=draw(st.sampled_from(list(Role))), name=f"c{at}", index=at
        )
        for at in range(draw(st.integers(1, 3)))
    ]
    containers.sort(key=lambda container: container.role is Role.MAIN)
    return a_claim(
        *containers,
        offer=draw(offers),
        together=draw(st.booleans())
        and len({container.count for container in containers}) == 1
        and not any(container.slice.exclusive for container in containers),  # no dialect stacks on a whole card
        models=draw(st.sampled_from([None, None, frozenset({"A"})])),
        cpu_milli=draw(st.sampled_from([0, 500, 3000])),
        memory_mib=draw(st.sampled_from([0, 512, 4096])),
        park_after=draw(st.none() | st.just(30.0)),
        group=draw(st.sampled_from(["", "", "team"])),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    """A node of that name, with up to four cards."""
    cards = tuple(
        Card(
            index,
            draw(st.sampled_from([8, 16, 24])) * GIB,
            healthy=draw(st.integers(0, 5)) > 0,
            model=draw(st.sampled_from(["", "A"])),
            max_slices=draw(st.none() | st.integers(0, 4)),
            withheld=draw(st.sampled_from([None, None, None, MIG_MODE])),
            oversubscribe=draw(st.sampled_from([1.0, 1.0, 1.5, 2.0, 8.0])),
        )
        for index in range(draw(st.integers(0, 4)))
    )
    cpu = draw(st.none() | st.integers(0, 4000))
    others = draw(st.sampled_from([(), (), (), ("nvidia.com/gpu",)]))
    offered = frozenset[Offer]() if others else draw(st.frozensets(offers))
    pool = draw(st.sampled_from([0, 4, 16, 100])) * GIB
    runs_groups = draw(st.booleans())
    return Node(name, cards, offered, cpu_milli=cpu, memory_mib=cpu, others=others, pool_mib=pool, together=runs_groups)


@st.composite
def occupants(draw: st.DrawFn) -> Occupant:
    """What some Pod takes, on cards that the node has or not."""
    usage = st.builds(
        Usage,
        st.integers(0, 26).map(lambda gib: gib * GIB),
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.just(1),
        st.integers(0, 1),
    )
    return Occupant(
        draw(st.dictionaries(st.integers(0, 5), usage, max_size=2)),
        draw(st.sampled_from(AppClass)),
        draw(st.sampled_from([None, "owner"])),
        whole_node=draw(st.integers(0, 9)) == 0,
        cpu_milli=draw(st.sampled_from([0, 700])),
        memory_mib=draw(st.sampled_from([0, 700])),
        of_node=draw(st.booleans()),
        parkable=draw(st.booleans()),
    )


NAMES = ("n0", "n1", "n2", "n3")
Change = Callable[[Board, list[tuple[str, Occupant]]], None]


def _set(node: Node) -> Change:
    def change(board: Board, held: list[tuple[str, Occupant]]) -> None:
        board.set_node(node)

    return change


def _drop(name: str) -> Change:
    return lambda board, held: board.drop_node(name)


def _take(name: str, occupant: Occupant) -> Change:
    def change(board: Board, held: list[tuple[str, Occupant]]) -> None:
        board.take(name, occupant)
        held.append((name, occupant))

    return change


def _release(at: int) -> Change:
    def change(board: Board, held: list[tuple[str, Occupant]]) -> None:
        if held:
            board.release(*held.pop(at % len(held)))

    return change


# Functions of a board and of what is held on it, so that the same changes can be made to two boards.
changes = st.one_of(
    st.sampled_from(NAMES).flatmap(nodes).map(_set),
    st.sampled_from(NAMES).map(_drop),
    st.builds(_take, st.sampled_from(NAMES), occupants()),
    st.integers(0, 9).map(_release),
)


@st.composite
def boards(draw: st.DrawFn) -> Board:
    """A board after some changes, with at least one node."""
    board = Board()
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)):
        board.set_node(draw(nodes(name)))
    held: list[tuple[str, Occupant]] = []
    for change in draw(st.lists(changes, max_size=6)):
        change(board, held)
    return board


card_sizes = st.lists(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=4), min_size=1, max_size=6)


def a_cluster(sizes: list[list[int]]) -> Board:
    """Nodes n0, n1, ... with cards of those GiB and some CPU: most Pods of `arriving` fit several of them."""
    return a_board(*(a_node(f"n{at}", *cards, cpu_milli=16_000, memory_mib=64 * GIB) for at, cards in enumerate(sizes)))


@st.composite
def arriving(draw: st.DrawFn) -> list[Claim]:
    """qGPU Pods of every app-class, of one to three containers, some of one owner, in the order they come."""
    coming = []
    for at in range(draw(st.integers(1, 25))):
        app_class = draw(st.sampled_from([AppClass.NORMAL, AppClass.NORMAL, AppClass.ONLINE, AppClass.OFFLINE]))
        greedy = 30 if app_class is AppClass.OFFLINE else None
        containers = [
            a_container(
                a_slice(draw(st.integers(1, 24)), None if greedy else draw(st.none() | st.integers(5, 99)), greedy),
                draw(st.integers(1, 3)),
                name=f"c{place}",
                index=place,
            )
            for place in range(draw(st.sampled_from([1, 1, 1, 2, 3])))
        ]
        coming.append(
            a_claim(
                *containers,
                name=f"p{at}",
                app_class=app_class,
                offer=Offer.QGPU if app_class is AppClass.NORMAL else Offer.QGPU_MIXED,
                owner=draw(st.sampled_from([None, "a", "b"])),
                cpu_milli=draw(st.sampled_from([0, 1000, 4000, 8000])),
            )
        )
    return coming
