"""Integer kernels as a CPU without VNNI computes them."""
