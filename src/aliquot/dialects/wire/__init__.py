"""Kubernetes' own forms, as structs and patches: objects, extender, events, leases, CDI, what another plugin says.

webhook/  our admission webhook, as the API server sees it
install/  our own objects in a cluster

JSON becomes structs by `objectreading`, which never raises: a field of a wrong type is an `Invalid`.
"""
