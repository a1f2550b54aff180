"""WHAT RUNS?  What joins the rooms: dialects on one side, placement on the other. No rules of its own.

snapshot.py    a cluster as it stands at one moment, and where Pods would go on it
reasons.py     why a Pod fits nowhere, in a few lines or one sentence

The daemon of one machine:

local.py       from first to last: what it joins, a quiet end
premises.py    its home and its lock
door.py        its loop: the control socket, the ends of processes
conversing.py  a daemon's side of the control socket, whichever daemon it is
node.py        who runs, who waits, what is booked
asks.py        what `aliquot run` asks for, from JSON to a claim
queue.py       who waits for room, and who is next
status.py      how the machine stands, as one JSON object
metrics.py     the same in Prometheus's words
lookout.py     what NVML tells of the cards, once a second
localpods.py   Pods on the machine: what was applied, whom that wants, who runs
watching.py    the end of a process, heard as soon as it happens
podcontrol.py  which Pods there should be: a function of what is wanted and what is there
poddesk.py     what is asked about Pods on the control socket
podmaking.py   Pods as they are made, and made anew
podplaces.py   from a Pod and what it was given to what its keeper is told
podreports.py  what a Pod's keeper tells, into how the Pod stands
podstatus.py   the Pods as JSON
podturns.py    Pods ask for room in the order in which they were made
keeper.py      the process that runs the containers of one Pod
course.py      what the containers of a Pod do next
arbiterd.py    tenants' processes register; each card's loop holds them to their shares
reception.py   who comes in at the tenants' doors, and what they say
grouping.py    which cards a process's channel groups are on
cardworker.py  one card's loop: activity to the arbiter, orders to the hardware
seats.py       who is on a card: contexts and tenants
cardhealth.py  which cards are well, and why the others are not
patrol.py      who is on the cards that is nobody's, and what the driver takes beside allocations

The scheduler of a Kubernetes cluster:

scheduler.py   from first to last: what follows the API server, what answers, what only the leader does
following.py   what the reflectors tell, into the cluster
cluster.py     the live cluster: what the API server told, what we decided, and the board of both
nodeasking.py  which nodes would take a Pod, and which is the best of them
answers.py     what kube-scheduler's verbs and the peers' tools are answered
extender.py    the HTTP door
binder.py      from a decision to a bound Pod: one write, and whatever becomes of it
election.py    who of several binds
preemption.py  who would have to go for an important Pod
waiting.py     Pods that wait: told why, tried again when there is room
nodekeeper.py  nodes' taints, labels and conditions
farewells.py   agents that are about to go: no Pod is sent to their node any more
events.py      what `kubectl describe` shows
unending.py    parts that run as long as the process does, and its end
pace.py        how fast we may write beside the work that matters
webhook.py     what the API server asks before it takes a Pod
rotation.py    when the webhook's keys are renewed, and in which order
serving.py     how we serve HTTP: quietly
calls.py       how often each verb was called, and how long it took
schedulermetrics.py  the scheduler in Prometheus's words
overview.py    the cluster for people

The dashboard of either:

dashboard.py   from its socket to its end
panel.py       its HTTP: the page, JSON and events
access.py      who may look
assets.py      the page's files
hub.py         who looks, and what all of them are told
history.py     the last ten minutes, and the last day
picture.py     what is shown, whatever it is of
machinepicture.py  one machine, live
machinepods.py     its runs and Pods: what they got, why they wait
wants.py           what a Pod wants, in a few words
lacking.py         what it waits for
timelines.py       who held its cards in the last minute
clusterpicture.py  a cluster, as what changed
clusterlayout.py   its nodes and cards in order, a byte for each card
clusterdetails.py  one node, one Pod, and why
agentasking.py     what a node's agent sees there, asked while somebody looks

The agent of a node of a Kubernetes cluster:

agent.py       from first to last: what follows the API server and the kubelet, and what is done once a second
assembly.py    its parts, made for a real node
movingin.py    what its container lacks of the host, fetched where it may be
plugins.py     our device plugins at the kubelet, there whenever it is
usher.py       whose a container's devices are, and what its Pod was given
guests.py      Pods that another device plugin let in before us
doorway.py     how a container gets to its tenant's folder: CDI, or mounts
fixtures.py    what every container gets: the shim, and what stands in for a driver
podtenants.py  Pods as tenants of the arbiter
shelf.py       the Pods of the node
holdings.py    who holds which devices, while a card is out
nodeclerk.py   the Node: its labels, its inventory, events
tidying.py     its memory, which is to stay as it is
leaving.py     its end, when it is told to: no Pod is lost on the way
counting.py    what the kubelet asks, counted and timed
agentstatus.py   how the agent stands, as one JSON object
agentmetrics.py  the same in Prometheus's words
agenthttp.py     the HTTP door: alive, ready, metrics
agentlive.py     the node live, for the cluster's dashboard
agentdoor.py     the control socket, for `aliquot top`, `ps` and `doctor` on the node

Putting it on a cluster, and taking it away:

installing.py    our objects: what is there, what is applied, until it stands; back where it does not
uninstalling.py  programs, what stands on nodes, everything else

The sample workload:

burn.py        kernels that are a fixed amount of work, and what became of them
burngates.py   when they begin and end
"""
