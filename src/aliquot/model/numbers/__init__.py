"""Numbers: Kubernetes quantities, the bounds of what may be asked for, the seconds until the next attempt."""
