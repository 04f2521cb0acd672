"""What Triton compiles: passes over tiles of a weight matrix, and the rules that they evaluate. It imports Triton.

A tile holds the weights of some queries and keys. ``at = (b, h, row, place, k)`` says which: ``row`` is the index of
the query in the matrix and ``place`` the one that positions count from, which differ in a selection of rows. Indices
broadcast to the tile: (queries, 1) and (1, keys), or (1, queries) and (keys, 1) in passes over blocks of keys, which
work on the transposed tile. They are always inside of the matrix, so that rules load without a check.

Scores are in units of log 2, so that a weight is ``exp2(score - lse)``.
"""
