"""Answers "where would my Pods go, and why not" from what kubectl prints, on the scheduler's own `Cluster`."""
