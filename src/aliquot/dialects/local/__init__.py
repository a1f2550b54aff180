"""Manifests on one machine: the accepted objects, the Pods they create and their status."""
