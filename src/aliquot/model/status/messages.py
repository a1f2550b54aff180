"""The sentences of the dashboard's API.

They travel as data, a code with the values it mentions, so that the page can word them in any language; `text` is the
same in English. `detail` holds words of others (a driver, a rule of a manifest), which nobody translates.
"""

from __future__ import annotations

from msgspec import Struct

from aliquot.model.decoding.opencode import OpenCode
from aliquot.model.reason import Reason
from aliquot.model.status.machine import RequestStatus
from aliquot.model.tenant import FindingKind


class MessageCode(OpenCode):
    """What a message says."""

    # why a Pod or a run waits
    NO_ROOM = "no-room"  # refusals: what the nearest card lacks; count: other cards without room
    ROOM_RESERVED = "room-reserved"  # name: whose turn is first
    QUEUED = "queued"  # position, of
    NO_FITTING_NODE = "no-fitting-node"  # count: of nodes; refusals, each with its nodes; more: reasons left out
    NO_NODE = "no-node"
    FITS_ON = "fits-on"  # node: kube-scheduler has another reason, or tries it soon
    NOT_TRIED = "not-tried"  # kube-scheduler has not tried it yet
    TRIED = "tried"
    WORKING = "working"  # the reason is being worked out
    # of a PodGroup, name: namespace/name; of: members that it needs; names: the role that is short, if it is a role
    GROUP_WAITS = "group-waits"  # count: placed; number: would fit; more: not created yet; wants: of one without room
    GROUP_PAUSES = "group-pauses"  # count: members that came to a place that was held; number: seconds without holds
    GROUP_FINISHED = "group-finished"
    GROUP_INVALID = "group-invalid"  # detail: the rule that it breaks
    # of a Pod that asks by ResourceClaims
    CLAIM_WAITS = "claim-waits"  # name: of the claim
    CLAIM_MISSING = "claim-missing"  # name: of the claim, or of its entry in the Pod
    CLAIM_NOWHERE = "claim-nowhere"  # no node hands out cards by claims
    SCHEDULER_SAID = "scheduler-said"  # detail: why kube-scheduler found no node
    INVALID_POD = "invalid-pod"  # name: the field; detail: the whole sentence
    # why a Pod or a run is where it is
    REQUESTS = "requests"  # wants, dialect
    PROMISED = "promised"  # wants: of each card; count: of cards; names: class and policy
    PAUSED = "paused"  # card; name: the tenant that has it; number: seconds that online work took in all
    CLAIM_HOLDS = "claim-holds"  # name: of the claim; node, cards; names: of the Pods that use it
    PLACED = "placed"  # cards, node
    NODE_GONE = "node-gone"  # node
    OFFERS = "offers"  # node, names
    CHOSEN_BY = "chosen-by"  # name: the priority, or online, offline, whole-node
    SHARED_WITH = "shared-with"  # card, count
    POLICY = "policy"  # name
    GUESSED = "guessed"  # detail
    # what is wrong with a node or a card
    CORDONED = "cordoned"
    NOT_READY = "not-ready"
    AGENT_AWAY = "agent-away"
    OTHER_PLUGIN = "other-plugin"  # names: the resources and DRA drivers that hand out the node's cards
    CARDS_OUT = "cards-out"  # count
    FINDINGS = "findings"
    INVALID_NODE = "invalid-node"  # name: the field; detail: the whole sentence
    CLAIM_UNREADABLE = "claim-unreadable"  # name: of the claim; detail: what is wrong with it
    ASSUMED = "assumed"  # name: the NoteKind; names: its source and other; number; count: its other_number
    XID = "xid"  # number
    DRIVER_SILENT = "driver-silent"  # detail
    WITHHELD = "withheld"  # name: the WithheldCode; names: the Pod that holds the card, its resource; more: holders
    OUT = "out"  # the scheduler does not know more
    # findings: see FindingKind; number: the pid; name: the tenant; detail
    STRANGER = "stranger"
    TRESPASSER = "trespasser"
    UNREGISTERED = "unregistered"
    SLICE = "slice"
    REFUSED = "refused"
    INERT = "inert"
    PAGE = "page"
    SILENT = "silent"
    OVERUSE = "overuse"
    ENDED = "ended"
    # what holds tenants to their shares: see ControlLevel; name: the ControlReason
    CONTROL_PROVEN = "control-proven"
    CONTROL_UNPROVEN = "control-unproven"
    CONTROL_GATE = "control-gate"


class Refused(Struct, omit_defaults=True):
    """Why a card, or `nodes` nodes like `example`, do not take a Pod. Units of `wanted` and `had`: model/reason.py."""

    reason: Reason
    text: str
    nodes: int
    example: str | None  # null on a machine: `card` says where
    never: bool = False  # even an empty card or node would not do
    own: bool = False  # the Pod itself wants the card or node to itself; otherwise another Pod has it
    wanted: int | None = None
    had: int | None = None
    percent: float | None = None  # memory that was asked for as a part of the card
    card: int | None = None
    node: str | None = None
    dialect: str | None = None
    requires: str | None = None  # what makes a node serve the dialect
    detail: str | None = None


class Message(Struct, omit_defaults=True):
    """A sentence. MessageCode tells which fields a code has."""

    code: MessageCode
    text: str
    node: str | None = None
    card: int | None = None
    cards: list[int] | None = None
    count: int | None = None
    position: int | None = None
    of: int | None = None
    more: int | None = None
    name: str | None = None
    names: list[str] | None = None
    number: int | None = None
    dialect: str | None = None
    detail: str | None = None
    wants: list[RequestStatus] | None = None
    refusals: list[Refused] | None = None


FINDINGS = {kind: MessageCode[kind.name] for kind in FindingKind}


class Wants(Struct):
    """What a Pod or a run asks for."""

    text: str
    requests: list[RequestStatus]
