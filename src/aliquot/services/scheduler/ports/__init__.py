"""The scheduler's ports: kube-scheduler's verbs, the webhook and what others may read, with their certificates."""
