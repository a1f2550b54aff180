"""The device plugins: which devices are offered to the kubelet, and who holds them. Allocate: agent/allocation.py."""
