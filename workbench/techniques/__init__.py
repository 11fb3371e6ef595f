"""One room a technique: `method` (tensors), `runtime` (ranks), `cost` (time and bytes)."""
