"""Puts our objects on a cluster, waits until they are ready, rolls back, and takes everything away again."""
