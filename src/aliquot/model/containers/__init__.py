"""Containers: edits that a runtime applies, the environment of a tenant's processes, Pods of local processes."""
