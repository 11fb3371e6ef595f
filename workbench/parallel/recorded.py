"""A tensor-parallel group that notes when its collectives run.

What: every all-reduce and all-gather becomes one action of a recorder, from the moment
this rank is ready for it until its result is there. Ranks of one group run the same
collectives in the same order, so the k-th action of one rank belongs to the k-th of all
others: the latest start ends the waiting, and what remains is transfer.
Simplified: a blocking collective only, as in `ProcessTensorGroup`.
Left out: virtual ranks, which transfer nothing.
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
