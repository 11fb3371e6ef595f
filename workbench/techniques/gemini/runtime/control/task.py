"""What a training's operator is asked to do.

Source: ours.
Left out: checks, which `Training` makes.
"""

from dataclasses import dataclass

from .faults import Fault
from .member import Timing

__all__ = ["Task"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is to be trained, on what."""

    program: bytes  # function, arguments and keyword arguments, packed
    names: tuple[str, ...]  # machines by number
    standby_names: tuple[str, ...]  # machines without a number
    ranks_per_machine: int  # how many ranks each has
    etcd_url: str | None  # of an etcd server, or None for the embedded store
    prefix: str  # of this training's keys in etcd
    has_hosts: bool  # whether machine i is on shaped host i
    timing: Timing  # of heartbeats and leases
    faults: tuple[Fault, ...]  # what is to be killed
    replacement_s: float  # seconds until the operator has a new machine
    memory_limit_bytes: int | None  # what a machine may keep for its ranks
