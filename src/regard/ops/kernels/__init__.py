"""How a request is served: one file a kernel, and one that chooses."""
