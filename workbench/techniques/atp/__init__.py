"""ATP: tensor parallelism on a two-dimensional mesh of devices, chosen for the links there are.

Paper: S. Cheng, Z. Liu, J. Du, Y. You, "ATP: Adaptive Tensor Parallelism for Foundation Models", 2023.

Claim: cutting weights twice, by columns and rows over the axes of a mesh (d1, d2), sends less over the slow links of a
hierarchy; the best mesh follows from a matrix of bandwidths. Chunks of the batch hide messages behind computation.

Where to find it
- column-first and row-first linears (section 3.2): `workbench.parallel.linear.MeshLinear`, of which the one-dimensional
  linears are the case (N, 1)
- a transformer block on a mesh, and chunks that overlap (sections 3.2.1, 4.1): `runtime.block`
- equation 2, and exact bytes beside it: `cost`
- the hierarchical communication matrix, equations 3 and 4, IC1 to IC6: `method.matrix`
- the search (section 3.5), and with start-ups and sequence parallelism: `method.search`
- a matrix from the ranks there are: `runtime.measure`
- one line for a Hugging Face GPT-2 or BERT: `parallelize`; blocks in their place, and checks of what ranks must have in
  common: `runtime.on_mesh`
- beyond the paper, for trainings of one's own: plain checkpoints (`full_state_dict`, `load_full_state_dict`), norms and
  infinities of whole gradients (`clip_grad_norm_`, `parallel.gradients`), and data parallelism beside the mesh
  (`open_mesh(d1, d2, replicas=...)`)
- rivals: Megatron-LM is mesh (N, 1) and `workbench.parallel.transformer`; 2-D and 2.5-D are `runtime.summa`

How the text was understood: f1 and f3 sum over axis 2 forward and over axis 1 backward, as the equations have it and
the prose does not. Each rank has its own heads in the attention core, cut and joined over axis 2. Norms exchange a mean
and a variance of each position over axis 2, which the text does not mention. Embeddings and heads stay whole on every
rank.
"""

from .method import PRESETS, search, search_exactly
from .runtime import clip_grad_norm_, full_state_dict, load_full_state_dict, measure, open_mesh, parallelize

__all__ = ["PRESETS", "clip_grad_norm_", "full_state_dict", "load_full_state_dict", "measure", "open_mesh"]
__all__ += ["parallelize", "search", "search_exactly"]
