"""WHAT IS SEEN?  Commands and views: reading files, printing tables, drawing. No rules.

main.py       the command `aliquot`, and every way out of it
reference.py  all commands on one page: docs/cli.md

One machine:

run.py        a command on a slice of a card: what is asked for; loads nothing heavy
granting.py   from the request to the grant: the daemon, the queue, every way to be refused
becoming.py   the exec, in the foreground or in the background
starting.py   the daemon, started in the background when it is needed
waiting.py    why a run waits, in one line
amounts.py    memory and time as people type them
up.py         the daemon by hand, and its end
simulated.py  cards that are not there
ps.py         who runs and who waits
top.py        what each card and each tenant does
stop.py       one run, by its name: its end
policy.py     how tenants share the cards
apply.py      the Pods of a manifest, as local processes
applying.py   from the files to the daemon: what of them runs here, and what is wrong where
settling.py   how Pods come up, until all run
get.py        Pods, workloads and nodes: tables, manifests, what changes
describe.py   all that is known of one of them, and why it is where it is
delete.py     their end
logs.py       the output of a Pod or of a run
kinds.py      kubectl's words for what there is
completing.py what a shell may complete of them
podviews.py   Pods, workloads and nodes: who is meant, and a row for each
selecting.py  `-l`: labels as kubectl selects by them
listening.py  where a dashboard listens, and its token
dashboard.py  where to look at it
asking.py     asking the daemon, and what to say when it says no
burn.py       the sample workload
demo/         the two-minute story of `aliquot demo`

Clusters:

scheduler.py        the scheduler extender: its flags and its configuration file
agent.py            the agent of one node: its flags
serving.py          the dialects that either serves
peers.py            what the peers' programs are told, as ours are
installshim.py      the shim on the host, for the containers of the agent
install.py          our objects on a cluster, and the next version of them
installoptions.py   what both may be told
verifying.py        whether what was installed answers
uninstall.py        all of it taken away again, from nodes too
steps.py            how far that is, and what to do when it is interrupted
explain.py          where Pods would go, or every reason why not
clusterview.py      `kubectl aliquot`: nodes, cards, Pods, and who waits why
inspecting.py       `kubectl inspect gpushare`, to the byte as the peer prints it
tabwriter.py        columns as Go lays them out, which that takes
doctor.py           what is wrong with the installation, each with its fix
installchecks.py    is what was installed there, ready, and of one release
schedulerchecks.py  is the scheduler there, asked, and its webhook trusted
nodechecks.py       do nodes advertise what their labels say
podchecks.py        do annotations and reality agree, and who waits
agentchecks.py      is the agent of this node there, with all that it needs
holdingchecks.py    do specs, folders and the kubelet agree with what Pods were granted
nodeside.py         what those two look at, read from this node
findings.py         what the checks find, as data
whereabouts.py      in which namespace the scheduler runs
wiring.py           `aliquot manifests`: how kube-scheduler is told of us
kubectl.py          the cluster as the user's own kubectl sees it
simulate.py         what a policy makes of a trace
manifests.py        the files people hand us, as Kubernetes objects with line and column
values.py           YAML as plain values
errors.py           what goes wrong before any work is done
plot.py             line charts as SVG
tables.py           plain columns
"""
