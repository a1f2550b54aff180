"""Small values, manifests and hypothesis strategies."""
