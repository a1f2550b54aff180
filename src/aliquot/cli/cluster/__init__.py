"""Commands that run on a cluster (scheduler, agent) and that look at one (explain, doctor, kubectl plugins)."""
