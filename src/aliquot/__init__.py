"""Aliquot: share NVIDIA GPUs between many Pods, or many processes on one box."""

__version__ = "0.1.0"
