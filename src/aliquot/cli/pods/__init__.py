"""Commands for manifests on one machine, as kubectl has them."""
