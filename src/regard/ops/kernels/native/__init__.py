"""Native kernels for CPUs: C++ in `csrc`, compiled once for each instruction set by setup.py."""
