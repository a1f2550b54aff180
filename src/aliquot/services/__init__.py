"""What runs: one package per program, so that `ls services` lists the programs.

scheduler   `aliquot scheduler`, the scheduler extender and webhook of a cluster
agent       `aliquot agent`, the device plugins and tenants of one node
machine     `aliquot up`, the daemon of one machine without Kubernetes
runtime     holds tenants to their shares on the cards; used by agent and machine
proof       tries on an idle card whether the driver's control has an effect; started by machine and agent
mover       keeps memory that left the cards in memory of the host, and brings it back; started by machine and agent
dashboard   what the dashboards of machine and scheduler share
explain     answers where Pods would go, from what kubectl prints
doctor      looks for what is wrong, and says what to do
uninstall   takes everything of ours off a cluster and its nodes
burn        the sample workload
daemon      what every long-running program of ours has

A service joins the packages below it and has no rules of its own. pyproject.toml lists who may import whom.
"""
