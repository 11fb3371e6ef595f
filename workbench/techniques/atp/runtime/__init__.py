"""ATP on real ranks: measured links, blocks on a mesh, Hugging Face models, and the rivals' SUMMA."""

from workbench.parallel.gradients import clip_grad_norm_

from .block import BlockConfig, Mesh, MeshBlock, MeshNorm, open_mesh
from .measure import Measured, measure
from .parallelize import parallelize
from .whole import full_state_dict, load_full_state_dict

__all__ = ["BlockConfig", "Measured", "Mesh", "MeshBlock", "MeshNorm", "clip_grad_norm_", "full_state_dict"]
__all__ += ["load_full_state_dict", "measure", "open_mesh", "parallelize"]
