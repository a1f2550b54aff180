"""The cluster's page of the dashboard: the cards in order, what changed since the last tick, details of a node or Pod."""
