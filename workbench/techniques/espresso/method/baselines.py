"""The systems that Espresso is compared with, as strategies under the same F, and the crippled search spaces.

Each baseline has one way to compress and compresses every tensor from a size on (section 4.8.1). A crippled space
leaves one of the four dimensions out (section 4.8.6).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from workbench.compression.costs import Processor

from .job import Job
from .options import Comm, Decomp, Option, Phase, Routine, compression_options
from .search import choose_options, find_strategy, offload

__all__ = ["ALL", "BASELINES", "MYOPIC", "ON_CPUS", "ON_GPUS", "SPACES", "Baseline", "baseline_strategy"]
__all__ += ["crippled_strategy", "options_of"]

ALL, MYOPIC = "All compression", "Myopic compression"  # the spaces without dimension 1
ON_GPUS, ON_CPUS = "GPU compression", "CPU compression"  # those without dimension 2

DIVISIBLE = "intra.reduce-scatter comp.{0} inter.alltoall* decomp.{0} comp.{0} inter.allgather* decomp.{0} "
DIVISIBLE += "intra.allgather"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A system, whose threshold in elements the authors' release states by model."""

    name: str
    option: Option


# HiPress compresses on GPUs and aggregates compressed parts on servers; HiTopKComm gathers what all machines selected;
# BytePS-Compress compresses on CPUs, on workers and on servers.
BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "hipress": Baseline("HiPress", Option.parse(DIVISIBLE.format("gpu"))),
        "hitopkcomm": Baseline(
            "HiTopKComm", Option.parse("intra.reduce-scatter comp.gpu inter.allgather* decomp.gpu intra.allgather")
        ),
        "byteps-compress": Baseline("BytePS-Compress", Option.parse(DIVISIBLE.format("cpu"))),
    }
)


def baseline_strategy(
    job: Job, baseline: Baseline, threshold_elements: int, sizes: Sequence[int] = ()
) -> tuple[Option, ...]:
    """Return the strategy that compresses every tensor of at least so many elements in the baseline's way.

    `sizes` are those of the tensors that the job's gradients are pieces of; by default its gradients are whole.
    """
    sizes = sizes or job.gradients.num_elements
    return tuple(baseline.option if size >= threshold_elements else job.uncompressed for size in sizes)


def _is_inter_only(option: Option) -> bool:
    inside = (task for task in option.tasks if isinstance(task, Comm) and task.phase is not Phase.INTER)
    return option.is_compressed and not option.is_flat and not any(task.is_compressed for task in inside)


def _sends(option: Option, *routines: Routine) -> bool:
    return routines == tuple(
        task.routine for task in option.tasks if isinstance(task, Comm) and task.phase is Phase.INTER
    ) and all(task.is_compressed for task in option.tasks if isinstance(task, Comm) and task.phase is Phase.INTER)


def _alltoall_twice(option: Option) -> bool:
    sent = [(t.phase, t.routine, t.is_compressed) for t in option.tasks if isinstance(t, Comm)]
    wanted = [(Phase.INTRA, Routine.ALL_TO_ALL, True), (Phase.INTER, Routine.ALL_TO_ALL, True)]
    wanted += [(Phase.INTER, Routine.ALL_GATHER, True), (Phase.INTRA, Routine.ALL_GATHER, True)]
    return sent == wanted and isinstance(option.tasks[2], Decomp)


SPACES: Mapping[str, Callable[[Option], bool]] = MappingProxyType(
    {
        ON_GPUS: lambda option: option.processors <= {Processor.GPU},
        ON_CPUS: lambda option: option.processors <= {Processor.CPU},
        "Inter Allgather": lambda option: _is_inter_only(option) and _sends(option, Routine.ALL_GATHER),
        "Inter Alltoall": lambda option: (
            _is_inter_only(option) and _sends(option, Routine.ALL_TO_ALL, Routine.ALL_GATHER)
        ),
        "Alltoall+Alltoall": _alltoall_twice,
    }
)
"""Crippled spaces of section 4.8.6 that restrict which options there are."""


def options_of(space: str) -> tuple[Option, ...]:
    """Return the compressed options of a crippled space."""
    return tuple(option for option in compression_options() if option.is_compressed and SPACES[space](option))


def crippled_strategy(job: Job, space: str) -> tuple[Option, ...]:
    """Return what Espresso's algorithms find for a job in a crippled space: `ALL`, `MYOPIC` or one of `SPACES`.

    Without dimension 2, algorithm 4.1 has the options of one processor, and 4.2 has nothing to move.
    """
    if space == MYOPIC:
        return _myopic(job)
    if space == ALL:
        return offload(job, choose_options(job, options_of(ON_GPUS), must_compress=True).strategy).strategy
    if space in (ON_GPUS, ON_CPUS):
        return choose_options(job, options_of(space)).strategy
    return find_strategy(Job(job.gradients, job.machines, job.codec, options_of(space))).strategy


def _myopic(job: Job) -> tuple[Option, ...]:
    """Give each tensor the option whose tasks take the least seconds in total: no tensor knows of another."""
    options = (job.uncompressed, *(option for option in job.options if option.is_compressed))
    total_s = np.array([job.seconds(option).sum(axis=0) for option in options])  # [options, sizes]
    best = dict(zip(job.sizes, total_s.argmin(axis=0).tolist(), strict=True))
    return tuple(options[best[size]] for size in job.gradients.num_elements)
