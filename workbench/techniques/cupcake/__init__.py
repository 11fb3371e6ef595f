"""Cupcake: which gradients to fuse into one group, to be compressed and sent at once, in data-parallel training.

Paper: Z. Wang, "Zen, Espresso, Cupcake, Gemini" (doctoral thesis), chapter 5; Cupcake, MLSys 2023.

Claim: encoding takes about as long for a small tensor as for one of 4 MB, so compressing tensor by tensor costs more
than it saves. Fusing tensors saves encodings but delays their sending; a search finds the best fusion in seconds.

Where to find it
- the problem and equation 5.1 (section 5.3.1): `method.problem`
- algorithm 5.1, its two prunings, and brute force (section 5.3.2): `method.search`
- the same optimum by dynamic programming, in milliseconds: `method.optimal`
- rules to compare with (section 5.4): `method.rivals`
- what a group takes, and the iteration with every rule: `cost`
- groups on their way: `runtime`, as a hook of DDP, and by definition on virtual ranks
- one line for a model of your own: `planning.fuse`; what fusion has left to gain on it: `advice.headroom`

How the text was understood: the device encodes a group as soon as it has computed its last gradient, before it goes on.
Decoding, which the paper leaves out, begins when all groups are encoded. A message on an all-gather takes one start-up.
"""

from workbench.parallel.hooks import BUCKET_MB

from .advice import headroom
from .plan import Plan
from .planning import fuse, measure_costs
from .runtime import exchange

__all__ = ["BUCKET_MB", "Plan", "exchange", "fuse", "headroom", "measure_costs"]
