"""One machine without GPUs: its daemon, Pods and dashboard."""
