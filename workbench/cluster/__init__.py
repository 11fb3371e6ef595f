"""Clusters: what the machines are, how long collectives take on them, and how to fit that to measurements.

What: devices, links, hosts and topologies with a source for every number; the papers' machines by name.
Source: the papers, and vendors' data sheets where an object says so.
Simplified: the alpha-beta model; see each module.
Left out: congestion, and differences between machines of one kind.
"""

from workbench.cluster.links import Link
from workbench.cluster.machines import Device, Host, Topology, Wiring

__all__ = ["Device", "Host", "Link", "Topology", "Wiring"]
