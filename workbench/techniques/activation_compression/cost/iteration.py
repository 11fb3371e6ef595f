"""Seconds of one training iteration, and where they go (tables 2 to 4, 6, 7 and 12).

A pass on a stage takes what the device needs or what launching its kernels needs, overlapped. m micro-batches run 1F1B:
m - 1 slots of the slowest stage on top of one pass through all, that is m - 1 + pp slots where all are alike. A fused
code is computed together with the row-parallel layer in front of it: x·(W·E) in place of (x·W)·E, exactly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.cluster import FittedMachine

from ..method import Family, method
from .layer import all_reduce_s, encoded_tensor_s, head_times, layer_compute_s, send_s
from .paper import paper_machine
from .setting import ALL_REDUCES_PER_LAYER, SUMMABLE, Setting

__all__ = ["IterationTime", "boundary_times", "iteration_time"]

ROW_PARALLEL_INPUTS = (1, 4)  # of h: the output of attention, the second product of the MLP


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationTime:
    """Where an iteration's seconds go, in the columns of tables 4 and 7."""

    forward_s: float  # forward passes, with encoding, decoding and tensor communication
    backward_s: float  # backward passes, with their communication and a learned code's gradients
    optimizer_s: float  # the update
    waiting_and_pipeline_s: float  # waiting for other stages, and messages between them
    encode_s: float  # of forward_s: encoding for tensor communication
    decode_s: float  # of forward_s: decoding after it
    tensor_s: float  # of forward_s: tensor communication

    @property
    def total_s(self) -> float:
        """Seconds of the whole iteration; encode, decode and tensor communication are parts of forward."""
        return self.forward_s + self.backward_s + self.optimizer_s + self.waiting_and_pipeline_s


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """One micro-batch on one stage; the fields mean what IterationTime's do."""

    forward_s: float
    backward_s: float
    encode_s: float
    decode_s: float
    tensor_s: float

    @property
    def pass_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def iteration_time(setting: Setting, machine: FittedMachine | None = None) -> IterationTime:
    """Predict one training iteration.

    Args:
        setting: model, method, mesh and machine.
        machine: rates and links; by default those of the paper's machine that the setting names (`nvlink`), fitted to
            the cells in `paper.CALIBRATION`.

    Raises:
        ValueError: for a setting that spans hosts on a machine without a network.
    """
    machine = paper_machine(nvlink=setting.nvlink) if machine is None else machine
    stages = [_stage_time(setting, machine, stage) for stage in range(setting.pp)]
    boundaries = boundary_times(setting, machine)
    optimizer_s = machine.optimizer_s + machine.optimizer_s_per_parameter * _parameters_of_a_rank(setting)
    exchanged_s = sum(there + back for there, back in boundaries)
    return IterationTime(
        **_shown(stages, setting.num_micro_batches),
        optimizer_s=optimizer_s,
        waiting_and_pipeline_s=exchanged_s + _waiting_s(stages, boundaries, setting.num_micro_batches),
    )


def boundary_times(setting: Setting, machine: FittedMachine) -> tuple[tuple[float, float], ...]:
    """Return the seconds of one micro-batch's message and of its gradient, boundary by boundary."""
    times = []
    for boundary in range(setting.pp - 1):
        compressed = setting.is_compressed((boundary + 1) * setting.layers_per_stage)
        there = setting.encoded_bytes() if compressed else setting.activation_bytes()
        back = setting.boundary_gradient_bytes() if compressed else setting.activation_bytes()
        times.append((send_s(setting, machine, boundary, there), send_s(setting, machine, boundary, back)))
    return tuple(times)


def _slot_s(stages: Sequence[StageTime], boundaries: Sequence[tuple[float, float]]) -> float:
    """Return the seconds between two micro-batches in a full pipeline: the slowest stage and its exchanges."""
    exchanges = [0.0, *(max(pair) for pair in boundaries), 0.0]
    return max(stage.pass_s + exchanges[number] + exchanges[number + 1] for number, stage in enumerate(stages))


def _waiting_s(stages: Sequence[StageTime], boundaries: Sequence[tuple[float, float]], num_micro_batches: int) -> float:
    """Return how long the last stage waits: while the pipeline fills and drains, and for a slower stage in between."""
    if num_micro_batches == 1:
        return 0.0
    slower_s = max(0.0, _slot_s(stages, boundaries) - stages[-1].pass_s)
    return sum(stage.pass_s for stage in stages[:-1]) + (num_micro_batches - 1) * slower_s


def _shown(stages: Sequence[StageTime], num_micro_batches: int) -> dict[str, float]:
    counted = stages if num_micro_batches == 1 else [stages[-1]] * num_micro_batches
    return {name: sum(getattr(stage, name) for stage in counted) for name in StageTime.__dataclass_fields__}


def _parameters_of_a_rank(setting: Setting) -> float:
    return setting.workload.layer_parameters * setting.layers_per_stage / setting.tp


def _stage_time(setting: Setting, machine: FittedMachine, stage: int) -> StageTime:
    messages = ALL_REDUCES_PER_LAYER * setting.encoded_layers(stage)
    plain = ALL_REDUCES_PER_LAYER * setting.layers_per_stage - messages
    full_s = all_reduce_s(setting, machine, stage, setting.activation_bytes())
    tensor_s = plain * full_s + (messages * encoded_tensor_s(setting, machine, stage) if messages else 0.0)
    codec = _codec_time(setting, machine, messages, *_boundary_codecs(setting, stage))
    compute_s = setting.layers_per_stage * layer_compute_s(setting, machine)
    compute_s -= setting.encoded_layers(stage) * spared_s(setting, machine)
    head_s, head_backward_s = head_times(setting, machine) if stage == setting.pp - 1 else (0.0, 0.0)
    forward_s = compute_s + tensor_s + codec.device_s + head_s
    sums, elements = setting.encoder_sums(stage)
    backward_s = machine.backward_over_forward * compute_s + head_backward_s + codec.backward_s
    backward_s += (plain + messages) * full_s
    backward_s += sums * all_reduce_s(setting, machine, stage, elements * setting.value_bytes) if sums else 0.0
    forward_launch_s = _launch_s(setting, machine, collectives=plain + messages) + codec.launch_s
    backward_launch_s = _launch_s(setting, machine, collectives=plain + messages + sums, backward=True)
    return StageTime(
        forward_s=codec.sample_s + machine.overlapped_s(forward_s, forward_launch_s),
        backward_s=machine.overlapped_s(backward_s, backward_launch_s + codec.backward_launch_s),
        encode_s=codec.tensor_encode_s,
        decode_s=codec.tensor_decode_s,
        tensor_s=tensor_s,
    )


def _launch_s(setting: Setting, machine: FittedMachine, *, collectives: int, backward: bool = False) -> float:
    layers = setting.layers_per_stage * (machine.backward_over_forward if backward else 1.0)
    return layers * machine.layer_launch_s + (collectives if setting.tp > 1 else 0) * machine.collective_launch_s


def _boundary_codecs(setting: Setting, stage: int) -> tuple[int, int]:
    """Return how many boundary messages a stage encodes, and how many it decodes: 0 or 1 of each."""
    encodes = stage < setting.pp - 1 and setting.is_compressed((stage + 1) * setting.layers_per_stage)
    decodes = stage > 0 and setting.is_compressed(stage * setting.layers_per_stage)
    return int(encodes), int(decodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecTime:
    """What the codec of one stage costs one micro-batch, in seconds: on the device, in launching, on the CPU."""

    device_s: float
    launch_s: float
    sample_s: float
    backward_s: float
    backward_launch_s: float
    tensor_encode_s: float
    tensor_decode_s: float


def _codec_time(setting: Setting, machine: FittedMachine, messages: int, encodes: int, decodes: int) -> CodecTime:
    family = method(setting.method).family
    cost = machine.codec(family)
    elements, sent = setting.micro_batch * setting.sequence * setting.hidden, setting.sent_elements()
    gathered = 1 if family in SUMMABLE else setting.tp  # messages that a rank decodes for each that it sends
    encode_s, decode_s = cost.encode_s(elements, sent), cost.decode_s(elements, sent)
    sample_s = cost.sample_s(elements, sent)
    reduced_s = messages * (fused_encode_s(setting, machine) if setting.is_fused else encode_s)  # before an all-reduce
    encoded, decoded = messages + encodes, messages * gathered + decodes
    both = messages + (encodes + decodes) / 2  # a stage runs one half of a boundary's codec
    return CodecTime(
        device_s=reduced_s + encodes * encode_s + decoded * decode_s,
        launch_s=both * cost.launch_s + decoded * cost.launch_s_per_decoded,
        sample_s=encoded * sample_s,
        backward_s=cost.backward_ratio * (reduced_s + messages * decode_s + (both - messages) * (encode_s + decode_s)),
        backward_launch_s=both * cost.backward_launch_s,
        tensor_encode_s=reduced_s + messages * sample_s,
        tensor_decode_s=messages * gathered * decode_s,
    )


# --- fused codes


def spared_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds of one layer's two full-size row-parallel products, forward, which a fused code never runs."""
    if not setting.is_fused:
        return 0.0
    rows, inputs = setting.micro_batch * setting.sequence, sum(ROW_PARALLEL_INPUTS) * setting.hidden / setting.tp
    return 2 * rows * inputs * setting.hidden / machine.flops_per_s


def fused_encode_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds of forming one fused code, the mean of a layer's two: W·E, and x·(W·E)."""
    rows, h = setting.micro_batch * setting.sequence, setting.hidden
    total_s = 0.0
    for widths in ROW_PARALLEL_INPUTS:
        inputs = widths * h / setting.tp
        total_s += _narrow_product_s(setting, machine, inputs) + inputs / h * _narrow_product_s(setting, machine, rows)
    return total_s / ALL_REDUCES_PER_LAYER


def _narrow_product_s(setting: Setting, machine: FittedMachine, rows: float) -> float:
    """Return the seconds of a product [rows, h] x [h, c]."""
    columns = setting.encoder_elements / setting.hidden
    fitted_s = machine.codec(Family.AUTOENCODER).encode_s(rows * setting.hidden, rows * columns)
    return max(fitted_s, 2 * rows * setting.hidden * columns / machine.flops_per_s)
