"""What is seen: commands and their output. Heavy imports stay inside the commands, so that `aliquot --help` is instant.

run       `aliquot run`, which becomes the command it runs
machine   the daemon of one machine and its runs: up, down, ps, top, stop, policy, burn
cluster   programs and tools of a cluster: scheduler, agent, explain, doctor, uninstall, kubectl plugins
demo      the two-minute demonstration
options   options that several commands share
"""
