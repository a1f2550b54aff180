"""Pods without Kubernetes: `aliquot apply` stores objects, controllers decide which Pods there should be, and one
supervisor process per Pod runs its containers. Nothing outside `machine` needs this package.
"""
