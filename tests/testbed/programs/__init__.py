"""Our own programs on a cluster."""
