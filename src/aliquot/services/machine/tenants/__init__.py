"""The tenants of one machine: running, queued and booked.

machine       all of it: the state of the daemon without its event loop
admission     a run requests a slice: it starts, waits or is refused
registry      the tenants that run, with everything that each has
recovery      adopts the living ones after a restart of the daemon
members       which processes belong to a tenant
groupmembers  who is in which group
runfiles      a run's name, folder and log
"""
