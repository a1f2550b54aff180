"""What kube-scheduler and Kubernetes' controllers would do with a manifest, for commands that run without them. Pure.

manifests.py   the Pods that a manifest makes
conditions.py  kube-scheduler's own conditions for a Pod on a node
podterms.py    other resources, host ports, and which Pods are near
podfields.py   names and texts that the API server does not take
shapes.py      JSON of any shape, read as what it should be
"""
