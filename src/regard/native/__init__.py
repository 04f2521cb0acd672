"""The C++ library in `csrc`, compiled once for each instruction set by setup.py: finding, loading and calling it."""
