"""ATP on real ranks: measured links, blocks on a mesh, Hugging Face models, and the rivals' SUMMA."""

from .block import BlockConfig, Mesh, MeshBlock, MeshNorm, open_mesh
from .measure import Measured, measure
from .parallelize import parallelize

__all__ = ["BlockConfig", "Measured", "Mesh", "MeshBlock", "MeshNorm", "measure", "open_mesh", "parallelize"]
