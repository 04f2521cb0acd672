"""Kernels, one per file; `dispatch` chooses among them."""
