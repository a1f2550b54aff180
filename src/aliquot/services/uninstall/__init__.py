"""Takes everything of ours off a cluster and its nodes."""
