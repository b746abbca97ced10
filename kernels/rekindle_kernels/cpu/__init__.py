"""Native kernels for CPUs, in C++ through XLA's foreign function interface."""
