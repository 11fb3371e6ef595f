"""Clusters: what the machines are, how long collectives take on them, and how to fit that to measurements.

What: devices, links, hosts and topologies with a source for every number; the papers' machines by name
(`catalogue.names()`, `catalogue["gemini/16x-p4d"]`); time and bytes of collectives; least-squares fits.
Source: the papers, vendors' data sheets and backends' sources, where each object says so.
Simplified: the alpha-beta model; see each module.
Left out: congestion, and differences between machines of one kind.
"""

from workbench.cluster.collectives import (
    Algorithm,
    Backend,
    Collective,
    CollectiveBytes,
    CollectiveCost,
    algorithm_of,
    collective_bytes,
    collective_cost,
    collective_time_s,
)
from workbench.cluster.fitting import Fit, Sample, fit
from workbench.cluster.framing import gloo_header_bytes
from workbench.cluster.links import Link
from workbench.cluster.machines import Device, Host, Topology, Wiring
from workbench.cluster.named import Catalogue, catalogue

__all__ = [
    "Algorithm",
    "Backend",
    "Catalogue",
    "Collective",
    "CollectiveBytes",
    "CollectiveCost",
    "Device",
    "Fit",
    "Host",
    "Link",
    "Sample",
    "Topology",
    "Wiring",
    "algorithm_of",
    "catalogue",
    "collective_bytes",
    "collective_cost",
    "collective_time_s",
    "fit",
    "gloo_header_bytes",
]
