"""Looks for what is wrong here. `site` and `locate` read; the others are pure checks, one subject each."""
