"""Real nodes on this machine: containerd, kubelet and network, in namespaces."""
