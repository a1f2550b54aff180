"""What kube-scheduler and Kubernetes' controllers would do with a manifest, for commands that run without them. Pure.

conditions.py  kube-scheduler's own conditions for a Pod on a node, and the Pods that a manifest makes
podterms.py    other resources, host ports, and which Pods are near
"""
