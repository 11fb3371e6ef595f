"""Espresso: which gradients to compress, where, and how to send them, in data-parallel training.

Paper: Z. Wang, "Zen, Espresso, Cupcake, Gemini" (doctoral thesis), chapter 4; Espresso, EuroSys 2023.

Claim: whether compressing a gradient pays depends on what it overlaps with. A decision tree has every way to compress
and synchronise one tensor; a timeline gives the iteration time of a strategy; and a greedy search over tensors finds
one within a few per cent of the optimum in milliseconds.

Where to find it
- the decision tree (section 4.5, figure 4.8): `method.options`
- algorithms 4.1 and 4.2 (section 4.7): `method.search`
- what tasks take, and F(S), the iteration time (section 4.6): `cost`
- a gradient on its way: `method.exchange` on virtual ranks, `runtime` on real ones, as a hook of DDP
- two lines for a model of your own: `planning.plan`, `runtime.compress_gradients`

How the text was understood: a bubble is a time in which no link works because the next tensor is not ready for its
first communication; an operation takes one start-up whatever its number of ranks; the CPUs of a machine serve its GPUs
one after the other; messages take nothing of a GPU, because section 4.3 lets compression alone compete with
computation. Of CPUs that compute, messages take what `measure_cluster` finds. On real ranks a gradient that is not
compressed is sent alone, as the paper's systems do, and each part of a shuffle is encoded by itself, where the model of
costs counts one encoding.
"""

from .calibration import measure_cluster
from .planning import Plan, plan
from .runtime import BUCKET_MB, compress_gradients

__all__ = ["BUCKET_MB", "Plan", "compress_gradients", "measure_cluster", "plan"]
