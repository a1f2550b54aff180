"""What the agent reports to the API server: the Node's inventory and amounts, annotations of Pods, events."""
