"""ATP on numbers alone: interconnects and the search for a mesh."""

from .matrix import PRESETS, Bandwidths, HierarchicalCommMatrix, Layer
from .search import Strategy, meshes, search, search_by_torch, search_exactly

__all__ = ["PRESETS", "Bandwidths", "HierarchicalCommMatrix", "Layer", "Strategy", "meshes", "search"]
__all__ += ["search_by_torch", "search_exactly"]
