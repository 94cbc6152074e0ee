"""Many sites trained at once, their parameters stacked: what the engine "batched" is made of.

K = sites of a chunk, a = those of them that have a step left (a prefix: most steps first), S = steps,
B = rows of a batch.
"""
