"""Clusters: the machines, the time and bytes of collectives on them, and fitting both to measurements."""

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
    gloo_header_bytes,
)
from workbench.cluster.fitted import CodecCost, FittedMachine, lists_population
from workbench.cluster.fitting import Fit, Sample, bisected, fit
from workbench.cluster.machines import GIGABIT_BYTES_PER_S, Device, Host, Link, Machines, Topology
from workbench.cluster.papers import Catalogue, catalogue
from workbench.cluster.presets import preset

__all__ = ["GIGABIT_BYTES_PER_S", "Algorithm", "Backend", "Catalogue", "CodecCost", "Collective", "CollectiveBytes"]
__all__ += ["CollectiveCost", "Device", "Fit", "FittedMachine", "Host", "Link", "Machines", "Sample", "Topology"]
__all__ += ["algorithm_of", "bisected", "catalogue", "collective_bytes", "collective_cost"]
__all__ += ["collective_time_s", "fit", "gloo_header_bytes", "lists_population", "preset"]
