"""The search for the best mesh (section 3.5); a second search adds start-ups and sequence parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.checks import require_counts

from .equations import Workload, equation2_terms, exact_time_s, messages
from .matrix import HierarchicalCommMatrix

__all__ = ["Strategy", "meshes", "search", "search_by_torch"]
__all__ += ["require_meshes", "search_exactly"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """A mesh, and the predicted communication time of a training step."""

    d1: int
    d2: int
    axis2_s: float  # equation 2's first term: 7h / (d1 B2)
    axis1_s: float  # equation 2's second term: 2h / (d2 B1)
    startup_s: float = 0.0  # start-ups of all messages
    repeated_s: float = 0.0  # work that the ranks of axis 1 repeat
    sequence_parallel: bool = False

    @property
    def name(self) -> str:
        """The paper's name: ATP-i for DeviceMesh(N / i, i)."""
        return f"ATP-{self.d2}" + (", sequence parallel" if self.sequence_parallel else "")

    @property
    def total_s(self) -> float:
        """Sum of all terms."""
        return self.axis1_s + self.axis2_s + self.startup_s + self.repeated_s


def meshes(num_devices: int) -> list[tuple[int, int]]:
    """Return all meshes (d1, d2) of N devices, (N, 1) first."""
    require_counts(1, num_devices=num_devices)
    return [(num_devices // d2, d2) for d2 in range(1, num_devices + 1) if num_devices % d2 == 0]


def require_meshes(num_devices: int, work: Workload) -> list[tuple[int, int]]:
    """Return the meshes that divide heads and hidden size; ValueError if none does."""
    fitting = [mesh for mesh in meshes(num_devices) if work.divides(*mesh)]
    if not fitting:
        raise ValueError(f"num_devices is {num_devices}; it must divide heads {work.heads} and hidden {work.hidden}")
    return fitting


def _require(matrix: HierarchicalCommMatrix, num_devices: int, work: Workload) -> list[tuple[int, int]]:
    if num_devices != matrix.num_devices:
        raise ValueError(f"num_devices is {num_devices}; the matrix {matrix.name} has {matrix.num_devices}")
    return require_meshes(num_devices, work)


def search(matrix: HierarchicalCommMatrix, num_devices: int, workload: Workload) -> list[Strategy]:
    """Return all meshes, the fastest first, by equations 2 to 4.

    Args:
        matrix: The interconnect, such as a preset or the result of `measure`.
        num_devices: N, the number of devices of the matrix.
        workload: The model and its batch.

    Raises:
        ValueError: if the matrix has another number of devices, or if no mesh divides heads and hidden size.

    Source: section 3.5.
    """
    strategies = []
    tokens = workload.num_layers * workload.batch * workload.sequence * workload.value_bytes
    for d1, d2 in _require(matrix, num_devices, workload):
        rates = matrix.algorithm(d1, d2)
        axis2, axis1 = equation2_terms(tokens, workload.hidden, d1, d2)
        axis1_s, axis2_s = axis1 / rates.b1_bytes_per_s, axis2 / rates.b2_bytes_per_s
        strategies.append(Strategy(d1=d1, d2=d2, axis1_s=axis1_s, axis2_s=axis2_s))
    return sorted(strategies, key=lambda strategy: strategy.total_s)


def search_exactly(
    matrix: HierarchicalCommMatrix,
    num_devices: int,
    workload: Workload,
    *,
    sequence_parallel: Sequence[bool] = (False, True),
) -> list[Strategy]:
    """Return all strategies, the fastest first, by exact bytes, counted rings, start-ups and repeated work.

    This goes beyond the paper. `sequence_parallel` lists the values to search; see `search` for the other arguments.
    """
    strategies = []
    for d1, d2 in _require(matrix, num_devices, workload):
        for cuts in (cuts for cuts in sequence_parallel if not cuts or workload.sequence % d1 == 0):
            axis1, axis2, startup = exact_time_s(workload, matrix, d1, d2, sequence_parallel=cuts)
            repeated = workload.num_layers * workload.repeated_s_per_value * workload.num_values / d2
            strategies.append(
                Strategy(
                    d1=d1,
                    d2=d2,
                    axis1_s=axis1,
                    axis2_s=axis2,
                    startup_s=startup,
                    repeated_s=repeated / (d1 if cuts else 1),
                    sequence_parallel=cuts,
                )
            )
    if not strategies:
        raise ValueError(f"sequence is {workload.sequence}; no mesh of {num_devices} devices divides it")
    return sorted(strategies, key=lambda strategy: strategy.total_s)


TORCH_BYTES_PER_S, TORCH_BETWEEN = 87.7 * 2**30, 0.22  # within a host, and its share between hosts
TORCH_FIXED_S, TORCH_HOP_S, TORCH_HOP_BETWEEN_S = 6.6e-6, 0.6e-6, 2.7e-6


def search_by_torch(num_devices: int, workload: Workload, devices_per_host: int) -> list[Strategy]:
    """Return all meshes, the fastest first, by torch's topology model, the choice without measurements.

    The model has one rate and one start-up within a host, and others between hosts. An axis crosses hosts if its
    devices, together with those of the axes inside it, are more than a host has.

    Source: torch 2.13, `torch.distributed.tensor._collective_utils`: its constants, for Ampere or Hopper.
    """
    require_counts(1, devices_per_host=devices_per_host)
    strategies = []
    for d1, d2 in require_meshes(num_devices, workload):
        seconds, startup_s = {1: 0.0, 2: 0.0}, 0.0
        for message in messages(workload, d1, d2):
            size, reach = (d1, d1 * d2) if message.axis == 1 else (d2, d2)
            is_between, hops = reach > devices_per_host, message.kind.rounds * (size - 1)
            startup_s += TORCH_FIXED_S + hops * (TORCH_HOP_BETWEEN_S if is_between else TORCH_HOP_S)
            rate = TORCH_BYTES_PER_S * (TORCH_BETWEEN if is_between else 1.0)
            seconds[message.axis] += message.num_bytes * hops / size / rate
        strategies.append(Strategy(d1=d1, d2=d2, axis1_s=seconds[1], axis2_s=seconds[2], startup_s=startup_s))
    return sorted(strategies, key=lambda strategy: strategy.total_s)
