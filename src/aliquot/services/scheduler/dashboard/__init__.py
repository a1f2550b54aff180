"""The dashboard of a cluster: the cards in order, what changed since the last tick, one node or Pod in detail."""
