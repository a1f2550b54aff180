"""A node around an agent: kubelet, API server, Pods and claims, without cards."""
