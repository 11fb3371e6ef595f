"""Zen: sparse gradients summed over ranks with evenly loaded links, by hashing their indices.

Paper: Z. Wang, "Zen, Espresso, Cupcake, Gemini" (doctoral thesis), chapter 3; Zen, OSDI 2025.

Claim: most gradients of an embedding are zero, in other rows on other ranks. The least is sent if each rank adds one
partition of the indices and then hands it to all, and if the partitions are equally full. A hash function makes them so
whatever the indices, and a bitmap over each partition's indices says which are there.

Where to find it
- hierarchical hashing (algorithm 3.2), and the strawman (3.1): `method.hashing`
- the hash bitmap (algorithm 3.3, theorem 3.3) and other formats: `method.formats`
- overlap, densification, skewness, imbalance (definitions 3.3 to 3.6): `method.sparsity`; density: `cost.Sparsity`
- the space of schemes, and theorem 3.1 by enumeration: `method.schemes`
- times of the schemes (sections 3.2.4 and 3.2.5): `cost`
- the schemes on real ranks, and the hook of DDP: `runtime`
- which scheme wins, by density, ranks and bandwidth: `advice`

How the text was understood: all-reduce and rivals send what their papers say, each message from rank to rank. A server
sends indices where a bitmap would be longer. Partitions are made by counting, which gives the same sets as algorithm
3.2; on two cores it is faster. On a GPU the kernel of algorithm 3.2 and the hook of one rank are tested; NCCL between
GPUs and several streams are not.
"""

from workbench.parallel.hooks import BUCKET_MB

from .advice import advise
from .runtime.hook import SparseSynchroniser, all_reduce_sparse, synchronise

__all__ = ["BUCKET_MB", "SparseSynchroniser", "advise", "all_reduce_sparse", "synchronise"]
