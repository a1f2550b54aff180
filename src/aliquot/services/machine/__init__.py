"""`aliquot up`: the daemon of one machine. `aliquot run` -> control -> tenants -> queue -> placement -> runtime.

A process is known by its pid and start time, a caller by a pidfd (docs/security.md, "How a process is named"). A
booking ends with its last process (tenants/members.py); processes are looked for in a thread (sweeper.py).
"""
