"""Catalogue: the machines of the five papers, by name.

What: `catalogue.names()` lists them, `catalogue["activation-compression/p3.8xlarge"]` picks one, and
`catalogue.of("atp")` picks those of one paper.
Source: the section or table that each object names; vendors' data sheets where it says so.
Simplified: see machines_of_papers and machines_of_thesis.
Left out: machines that the papers mention but do not run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from workbench.cluster.machines import Topology
from workbench.cluster.machines_of_papers import PAPER_MACHINES
from workbench.cluster.machines_of_thesis import THESIS_MACHINES

__all__ = ["Catalogue", "catalogue"]


class Catalogue(Mapping):
    """Topologies by name; a name is `paper/machine`."""

    def __init__(self, topologies: tuple[Topology, ...]) -> None:
        by_name = {topology.name: topology for topology in topologies}
        if len(by_name) != len(topologies):
            raise ValueError("Catalogue.topologies: names must be unique")
        self._by_name = MappingProxyType(by_name)

    def __getitem__(self, name: str) -> Topology:
        try:
            return self._by_name[name]
        except KeyError:
            raise ValueError(f"machine is {name!r}: it must be one of {', '.join(self.names())}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._by_name))

    def of(self, paper: str) -> tuple[Topology, ...]:
        """Return the machines of one paper, such as "atp".

        Raises:
            ValueError: the catalogue has none of that paper.
        """
        found = tuple(self._by_name[name] for name in self.names() if name.split("/")[0] == paper)
        if not found:
            papers = sorted({name.split("/")[0] for name in self})
            raise ValueError(f"paper is {paper!r}: it must be one of {', '.join(papers)}")
        return found


catalogue = Catalogue(PAPER_MACHINES + THESIS_MACHINES)
