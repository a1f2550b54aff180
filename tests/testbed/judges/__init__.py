"""What tests check a cluster by, without asking our programs."""
