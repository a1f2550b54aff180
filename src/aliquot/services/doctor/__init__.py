"""Finds what is wrong with an installation. `site`, `locate` and `verify` read; the others are pure checks."""
