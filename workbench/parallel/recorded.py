"""A tensor-parallel group that records its collectives, from this rank's entry until the result is there.

The k-th action of one rank belongs to the k-th of all others: the latest start ends the waiting, the rest is transfer.
"""

import torch.distributed as dist

from workbench.parallel.groups import ProcessTensorGroup
from workbench.timeline import Kind, Recorder

__all__ = ["RecordedTensorGroup"]


class RecordedTensorGroup(ProcessTensorGroup):
    """Real ranks whose collectives are recorded.

    Args:
        process_group: An initialised torch process group; None is the default one.
        recorder: Takes an action of kind COMMUNICATE for each collective, labelled with its name.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None, *, recorder: Recorder):
        super().__init__(process_group)
        self.watch = lambda collective: recorder.during(collective, Kind.COMMUNICATE)
