"""Finds what is wrong with an installation. `site`, `locate` and `verify` read; the others are pure checks.

JSON of the API server or of kubectl ends at the edge (cli/cluster/doctor.py, `verify`, `locate`). Checks get the
structs of dialects/wire, and an `Invalid` where an object cannot be read, which is a finding.
"""
