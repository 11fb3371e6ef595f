"""One room a technique: `method` (tensors), `runtime` (ranks), `cost` (time and bytes)."""

from workbench.checkout import find_root

# Rooms of the root in use come after those of this package: `workbench new technique` writes them there.
__path__ = list(dict.fromkeys([*__path__, str(find_root() / "workbench" / "techniques")]))
