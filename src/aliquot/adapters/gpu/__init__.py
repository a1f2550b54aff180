"""The cards: NVML, CUDA, NVIDIA's resource manager, the page and socket shared with the shim, simulated cards."""
