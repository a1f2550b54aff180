"""The operating system: processes, cgroups, mounts, home folders, the control socket, logs.

No process is known by its pid alone: with its start time (process/processes.py), or by a pidfd (peers.py).
"""
