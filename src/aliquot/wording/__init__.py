"""HOW IS IT SAID? Every sentence about a refusal, a request or an amount, made from data. Pure.

    amounts.py    "10 GiB", "30%", "2m05s"
    reasons.py    the one table from Reason to words, in three lengths, and the codes inside kube-scheduler's messages
    shortage.py   why a run of one machine waits
    refusals.py   why no node of a cluster takes a Pod
    groups.py     what a waiting PodGroup has and lacks
    requests.py   what a Pod asks for
    promises.py   what a Pod was promised
    nodes.py      what had to be assumed about a node, and why it is closed
    messages.py   the dashboards' sentences, each with its code and values
    runoptions.py what options of `aliquot run` allow
    states.py     what a tenant does on a card

`aliquot run` loads runoptions, and the first three where it waits: nothing heavy in there.
"""
