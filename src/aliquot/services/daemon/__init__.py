"""What every long-running program of ours has: home and lock, control socket, HTTP, metrics, events, tasks, pace."""
