"""Looks for what is wrong with an installation. `site` and `locate` read; the others are pure checks, one subject each."""
