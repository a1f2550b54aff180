"""Kubernetes' own forms, as structs and patches: extender, admission, webhooks, events, leases, CDI, what we deploy."""
