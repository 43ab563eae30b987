"""Who computes: the interface, the reference (numpy meanings) and the CPU (compiled kernels)."""
