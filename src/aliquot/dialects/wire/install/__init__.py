"""Our own objects in a cluster: what is installed, the record of it, and what is left on Nodes. Pure."""
