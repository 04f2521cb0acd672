"""The native kernel: requests as calls of the C++ library in `regard.native`."""
