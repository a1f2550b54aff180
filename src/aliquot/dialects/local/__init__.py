"""Manifests on one machine: which objects we accept, the Pods they make, how their status is shown."""
