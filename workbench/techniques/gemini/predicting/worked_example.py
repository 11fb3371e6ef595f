"""The schemes of figures 6.4 and 6.5 on an iteration small enough to follow: two layers, round numbers.

Source: thesis, chapter 6 (Gemini), sections 6.5.1 and 6.5.2; the numbers are ours. Copying to host memory is as fast as
the network, as section 6.5.2 has it.
Simplified: a step is a second; a layer computes for four of them and a message takes one, as do 32 MiB of a checkpoint.
Left out: start-up time of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.timeline import Kind

from ..method.interleaving import CheckpointTraffic, InterleavedIteration, Phase, Scheme, interleave

__all__ = ["STEP_S", "WORKED_EXAMPLE", "WorkedExample", "example_iterations", "predict_schemes"]

STEP_S = 1.0  # a column of the grid; whole seconds, so that chunks come out whole as well
MEBIBYTE = 2**20
BUFFER_BYTES = 32 * MEBIBYTE  # that arrive, or are copied, in one step

Rows = list[dict[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkedExample:
    """An iteration and a checkpoint.

    phases: of two layers, forward and backward.
    traffic: eight buffers' worth through two buffers, with room for just these.
    update_s: of the optimizer.
    """

    phases: tuple[Phase, ...]
    traffic: CheckpointTraffic
    update_s: float


def _layer(label: str, kind: Kind) -> Phase:
    scatter_s = STEP_S if kind is Kind.BACKWARD else 0.0
    return Phase(label=label, gather_s=STEP_S, compute_s=4 * STEP_S, scatter_s=scatter_s, kind=kind)


WORKED_EXAMPLE = WorkedExample(
    phases=(
        _layer("F0", Kind.FORWARD),
        _layer("F1", Kind.FORWARD),
        _layer("B1", Kind.BACKWARD),
        _layer("B0", Kind.BACKWARD),
    ),
    traffic=CheckpointTraffic(
        checkpoint_bytes=8 * BUFFER_BYTES,
        bandwidth_bytes_per_s=BUFFER_BYTES / STEP_S,
        copy_bytes_per_s=BUFFER_BYTES / STEP_S,
        reserved_bytes=2 * BUFFER_BYTES,
        num_buffers=2,
        safety=1.0,
        free_bytes=2 * BUFFER_BYTES,
    ),
    update_s=STEP_S,
)


def example_iterations(schemes: Sequence[str], example: WorkedExample = WORKED_EXAMPLE) -> list[InterleavedIteration]:
    """Return the example's iteration under each scheme.

    Args:
        schemes: names of `Scheme`.
        example: what is sent beside what.

    Raises:
        ValueError: if there is no such scheme.
    """
    return [interleave(example.phases, example.traffic, scheme, update_s=example.update_s) for scheme in schemes]


def predict_schemes(schemes: Sequence[str], example: WorkedExample = WORKED_EXAMPLE) -> Rows:
    """Return what the schemes come to.

    Args:
        schemes: names of `Scheme`.
        example: what is sent beside what.

    Returns:
        Rows, key scheme: iteration_s, overhead in % of the baseline, idle_s of the network, buffer_bytes,
        out_of_memory (1 or 0).
    """
    (baseline,) = example_iterations([Scheme.BASELINE], example)
    rows: Rows = []
    for found in example_iterations(schemes, example):
        rows += scheme_rows(found, baseline.iteration_s)
    return rows


def scheme_rows(found: InterleavedIteration, baseline_s: float) -> Rows:
    """Return the rows of one iteration, as `predict_schemes` does."""
    values = (
        ("iteration_s", found.iteration_s, "s"),
        ("overhead", 100 * (found.iteration_s / baseline_s - 1), "%"),
        ("idle_s", found.idle_s, "s"),
        ("buffer_bytes", found.buffer_bytes, "B"),
        ("out_of_memory", int(found.is_out_of_memory), "1"),
    )
    return [
        {"quantity": name, "scheme": str(found.scheme), "value": value, "unit": unit} for name, value, unit in values
    ]
