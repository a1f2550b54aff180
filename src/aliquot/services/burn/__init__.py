"""The sample workload: kernels of a fixed amount of work, and what came of them."""
