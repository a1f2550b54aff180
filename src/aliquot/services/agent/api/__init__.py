"""What the agent answers: status, metrics and the dashboard's view of its node, by HTTP and by its control socket."""
