"""The tenants of one machine: running, queued and booked.

machine       all of it: the state of the daemon without its event loop
members       which processes belong to a tenant
groupmembers  who is in which group
runfiles      a run's name, folder and log
"""
