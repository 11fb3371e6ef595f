"""The fleet as its owner sees it: started, spoken to, and ended with the owner."""

from types import MappingProxyType

from workbench.launch.nursery_process import NurseryProcess

__all__ = ["FleetProcess"]


class FleetProcess(NurseryProcess):
    """A running fleet; as a nursery, but for the program."""

    _program = "workbench.launch.machines.fleet"
    # A lost store is told by us, not by a C++ stack.
    _defaults = MappingProxyType({"TORCH_CPP_LOG_LEVEL": "ERROR"})
