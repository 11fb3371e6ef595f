"""Seconds of one training iteration, and where they go (tables 2 to 4, 6, 7 and 12); where compression begins to pay.

A pass on a stage takes what the device needs or what launching its kernels needs, overlapped. m micro-batches run 1F1B:
m - 1 slots of the slowest stage on top of one pass through all, that is m - 1 + pp slots where all are alike. A fused
code is computed together with the row-parallel layer in front of it: x·(W·E) in place of (x·W)·E, exactly the same.

Last comes the paper's own model of larger models and clusters (equations 1 to 3), whose constants it fits and does not
print. Here alpha is four devices' data-sheet peak, beta a layer's four ring all-reduces among four ranks of the local
machine, gamma what A2 costs there (table 4), w 10 Gbit/s shared by the four ranks of a node.

Legend: B `batch`, sequences of one micro-batch; s `sequence`, tokens; h `hidden`, elements; e `code_size`, elements;
m `num_micro_batches`; n `num_nodes`, one pipeline stage each; L `layers`, of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from workbench.checks import require_positive
from workbench.cluster import FittedMachine, bisected, catalogue

from ..method import Family
from .paper import paper_machine
from .setting import (
    ALL_REDUCES_PER_LAYER,
    SUMMABLE,
    Setting,
    all_reduce_s,
    encoded_tensor_s,
    head_times,
    layer_compute_s,
    send_s,
)

__all__ = ["TENSOR_RANKS", "VALUE_BYTES", "IterationTime", "ScalingModel", "boundary_times", "break_even_bytes_per_s"]
__all__ += ["break_even_map", "cluster_speedup", "communication_s", "flops", "iteration_time"]
__all__ += ["layer_seconds_by_definition", "layer_speedup", "machine_scaling", "speedup_at", "v100_scaling"]

PARTS = ("forward", "backward", "encode", "decode", "tensor")  # what every stage takes part in
ROW_PARALLEL_INPUTS = (1, 4)  # times h: the output of attention, the second product of the MLP


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationTime:
    """Where an iteration's seconds go, in the columns of tables 4 and 7."""

    forward_s: float  # forward passes, with encoding, decoding and tensor communication
    backward_s: float  # backward passes, with their communication and a learned code's gradients
    optimizer_s: float = 0.0  # the update
    waiting_and_pipeline_s: float = 0.0  # waiting for other stages, and messages between them
    encode_s: float  # part of forward_s: encoding for tensor communication
    decode_s: float  # part of forward_s: decoding after it
    tensor_s: float  # part of forward_s: tensor communication

    @property
    def pass_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def total_s(self) -> float:
        """Seconds of the whole iteration; encode, decode and tensor communication are parts of forward."""
        return self.forward_s + self.backward_s + self.optimizer_s + self.waiting_and_pipeline_s


def iteration_time(setting: Setting, machine: FittedMachine | None = None) -> IterationTime:
    """Predict one training iteration.

    A machine that is not given is the paper's that the setting names (`nvlink`), fitted to `paper.CALIBRATION`. A
    setting that spans hosts on a machine without a network is refused.
    """
    machine = paper_machine(nvlink=setting.nvlink) if machine is None else machine
    stages = [_stage_time(setting, machine, stage) for stage in range(setting.pp)]
    boundaries = boundary_times(setting, machine)
    exchanged_s, waits_s = sum(there + back for there, back in boundaries), 0.0
    shown = stages
    if setting.num_micro_batches > 1:
        # The last stage waits while the pipeline fills and drains, and for a slower stage and its exchanges in between.
        last, exchanges = stages[-1], [0.0, *(max(pair) for pair in boundaries), 0.0]
        slots = (stage.pass_s + exchanges[place] + exchanges[place + 1] for place, stage in enumerate(stages))
        slower_s = max(0.0, max(slots) - last.pass_s)
        waits_s = sum(stage.pass_s for stage in stages[:-1]) + (setting.num_micro_batches - 1) * slower_s
        shown = [last] * setting.num_micro_batches
    parameters = setting.workload.layer_parameters * setting.layers_per_stage / setting.tp  # on one rank
    return IterationTime(
        **{f"{part}_s": sum(getattr(stage, f"{part}_s") for stage in shown) for part in PARTS},
        optimizer_s=machine.optimizer_s + machine.optimizer_s_per_parameter * parameters,
        waiting_and_pipeline_s=exchanged_s + waits_s,
    )


def boundary_times(setting: Setting, machine: FittedMachine) -> tuple[tuple[float, float], ...]:
    """Return the seconds of one micro-batch's message and of its gradient, boundary by boundary."""
    times = []
    for boundary in range(setting.pp - 1):
        there, back = setting.boundary_bytes((boundary + 1) * setting.layers_per_stage)
        times.append((send_s(setting, machine, boundary, there), send_s(setting, machine, boundary, back)))
    return tuple(times)


def _stage_time(setting: Setting, machine: FittedMachine, stage: int) -> IterationTime:
    """Return the time of one micro-batch on one stage."""
    layers, is_last = setting.layers_per_stage, stage == setting.pp - 1
    messages = ALL_REDUCES_PER_LAYER * setting.encoded_layers(stage)
    reductions = ALL_REDUCES_PER_LAYER * layers  # a pass
    full_s = all_reduce_s(setting, machine, stage, setting.activation_bytes())
    tensor_s = (reductions - messages) * full_s + messages * encoded_tensor_s(setting, machine, stage)

    # Coding: of each reduction in this stage, and one half of the codec of each boundary beside it.
    cost = machine.codec(setting.family)
    elements, sent = setting.workload.elements, setting.sent_elements()
    encodes = int(not is_last and setting.is_compressed((stage + 1) * layers))
    decodes = int(stage > 0 and setting.is_compressed(stage * layers))
    gathered = 1 if setting.family in SUMMABLE else setting.tp  # messages that a rank decodes for each that it sends
    encode_s, decode_s = cost.encode_s(elements, sent), cost.decode_s(elements, sent)
    sample_s = cost.sample_s(elements, sent)
    reduced_s = messages * (_fused_encode_s(setting, machine) if setting.is_fused else encode_s)
    decoded = messages * gathered + decodes
    both = messages + (encodes + decodes) / 2
    coding_s = reduced_s + encodes * encode_s + decoded * decode_s
    coding_backward_s = reduced_s + messages * decode_s + (both - messages) * (encode_s + decode_s)

    compute_s = layers * layer_compute_s(setting, machine)
    if setting.is_fused:  # the full-size row-parallel products of encoded layers never run
        rows, inputs = setting.micro_batch * setting.sequence, sum(ROW_PARALLEL_INPUTS) * setting.hidden / setting.tp
        compute_s -= setting.encoded_layers(stage) * (2 * rows * inputs * setting.hidden / machine.flops_per_s)
    head_s, head_backward_s = head_times(setting, machine) if is_last else (0.0, 0.0)
    forward_s = compute_s + tensor_s + coding_s + head_s
    sums, gradient_elements = setting.encoder_sums(stage)
    gradient_bytes = gradient_elements * setting.value_bytes
    backward_s = machine.backward_over_forward * compute_s + head_backward_s + cost.backward_ratio * coding_backward_s
    backward_s += reductions * full_s
    backward_s += sums * all_reduce_s(setting, machine, stage, gradient_bytes)

    collectives, backward_collectives = (reductions, reductions + sums) if setting.tp > 1 else (0, 0)
    launch_s = layers * machine.layer_launch_s + collectives * machine.collective_launch_s
    launch_s += both * cost.launch_s + decoded * cost.launch_s_per_decoded
    backward_launch_s = layers * machine.backward_over_forward * machine.layer_launch_s
    backward_launch_s += backward_collectives * machine.collective_launch_s + both * cost.backward_launch_s
    return IterationTime(
        forward_s=(messages + encodes) * sample_s + machine.overlapped_s(forward_s, launch_s),
        backward_s=machine.overlapped_s(backward_s, backward_launch_s),
        encode_s=reduced_s + messages * sample_s,
        decode_s=messages * gathered * decode_s,
        tensor_s=tensor_s,
    )


def _fused_encode_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds of forming one fused code, the mean of a layer's two: W·E, and x·(W·E)."""
    rows, hidden = setting.micro_batch * setting.sequence, setting.hidden
    columns, cost = setting.encoder_elements / hidden, machine.codec(Family.AUTOENCODER)

    def narrow_product_s(num_rows: float) -> float:  # [num_rows, h] x [h, c]
        fitted_s = cost.encode_s(num_rows * hidden, num_rows * columns)
        return max(fitted_s, 2 * num_rows * hidden * columns / machine.flops_per_s)

    total_s = 0.0
    for widths in ROW_PARALLEL_INPUTS:
        inputs = widths * hidden / setting.tp
        total_s += narrow_product_s(inputs) + inputs / hidden * narrow_product_s(rows)
    return total_s / ALL_REDUCES_PER_LAYER


# --- where compression begins to pay

SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e3, 1e15  # the search; no link of today lies outside
NUM_BISECTIONS = 80  # halvings of the logarithm: the place is exact to rounding


def speedup_at(machine: FittedMachine, setting: Setting, bandwidth_bytes_per_s: float) -> float:
    """Return the time without compression over the time with it, where a machine's link has this bandwidth."""
    linked = machine.with_bandwidth(bandwidth_bytes_per_s)
    return iteration_time(replace(setting, method="w/o"), linked).total_s / iteration_time(setting, linked).total_s


def break_even_bytes_per_s(machine: FittedMachine, setting: Setting) -> float:
    """Find the bandwidth below which a method pays, on the paper's machine or on your own.

    It is 0 where even the slowest link gains nothing (a message that is larger than what it replaces), infinity where
    even the fastest does.
    """

    def pays(bandwidth: float) -> bool:
        return speedup_at(machine, setting, bandwidth) > 1

    if not pays(SLOWEST_BYTES_PER_S):
        return 0.0
    if pays(FASTEST_BYTES_PER_S):
        return math.inf
    return bisected(pays, SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S, NUM_BISECTIONS)


def break_even_map(
    machine: FittedMachine, setting: Setting, *, micro_batches: Sequence[int], code_sizes: Sequence[int]
) -> dict[tuple[int, int], float]:
    """Find the break-even bandwidth, bytes/s, by batch B and code size c, which replace those of the setting."""
    return {
        (batch, size): break_even_bytes_per_s(machine, replace(setting, micro_batch=batch, code_size=size))
        for size in code_sizes
        for batch in micro_batches
    }


# --- the paper's model of larger models and clusters

TENSOR_RANKS = 4  # table 10
THRESHOLD_ELEMENTS = 409_600  # d, section 4.7, as printed
SMALL_S = 0.2e-3  # c, section 4.7; the unit is inferred
CODE_SIZE = 100  # e, section 4.7
VALUE_BYTES = 2  # fp16


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingModel:
    """The constants of equations 1 to 3."""

    alpha_s_per_flop: float  # per FLOP of a layer, over all tensor-parallel ranks
    beta_s_per_element: float  # per element of a message longer than the threshold
    gamma_s_per_element: float  # encoding and decoding, per element of the activation
    bandwidth_elements_per_s: float  # w, between nodes
    small_s: float  # c, of a message up to the threshold
    threshold_elements: float  # d
    code_size: int = CODE_SIZE  # e

    def __post_init__(self) -> None:
        require_positive(**{field.name: getattr(self, field.name) for field in fields(self)})


def flops(batch: int, sequence: int, hidden: int) -> float:
    """Return the FLOPs of one layer, 96·B·s·h² + 16·B·s²·h: forward, backward, and forward again (section 4.7)."""
    return 96 * batch * sequence * hidden**2 + 16 * batch * sequence**2 * hidden


def communication_s(model: ScalingModel, elements: float) -> float:
    """Return T_comm of a message: c up to d elements, beta an element above."""
    return model.small_s if elements <= model.threshold_elements else model.beta_s_per_element * elements


def layer_seconds_by_definition(
    model: ScalingModel, *, batch: int, sequence: int, hidden: int, compressed: bool
) -> float:
    """Return T of one layer (equation 1), or T_AE where its activations travel as codes (below it), term by term."""
    computation_s = model.alpha_s_per_flop * flops(batch, sequence, hidden)
    if not compressed:
        return computation_s + communication_s(model, batch * sequence * hidden)
    overhead_s = model.gamma_s_per_element * batch * sequence * hidden
    return computation_s + communication_s(model, batch * sequence * model.code_size) + overhead_s


def layer_speedup(model: ScalingModel, *, batch: int, sequence: int, hidden: int) -> float:
    """Return T / T_AE (equation 2, figure 5d), which tends to 1 as the hidden size grows."""
    shape = {"batch": batch, "sequence": sequence, "hidden": hidden}
    plain, coded = (layer_seconds_by_definition(model, compressed=compressed, **shape) for compressed in (False, True))
    return plain / coded


def cluster_speedup(
    model: ScalingModel,
    *,
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    num_nodes: int,
    num_micro_batches: float,
) -> float:
    """Return the speedup of a pipeline over n nodes, which tends to h/e as n grows and all else stays.

    Source: equation 3; (m - 1)/n + 1 layers' worth of L is m - 1 + n slots of L/n layers.
    """
    shape = {"batch": batch, "sequence": sequence, "hidden": hidden}
    repeats = (num_micro_batches - 1) / num_nodes + 1
    plain, coded = (
        repeats * layers * layer_seconds_by_definition(model, compressed=compressed, **shape)
        + (num_nodes - 1) * batch * sequence * columns / model.bandwidth_elements_per_s
        for compressed, columns in ((False, hidden), (True, model.code_size))
    )
    return plain / coded


def v100_scaling() -> ScalingModel:
    """Return the constants from facts about the paper's machines; see the module for each."""
    cluster, local = catalogue["activation-compression/4x-p3.8xlarge"], paper_machine(nvlink=False)
    at_peak = replace(local, flops_per_s=cluster.host.device.fp16_flops_per_s, network=cluster.network)
    return replace(machine_scaling(at_peak), small_s=SMALL_S, threshold_elements=THRESHOLD_ELEMENTS)


def machine_scaling(machine: FittedMachine) -> ScalingModel:
    """Return the constants of four tensor-parallel ranks of a machine, a node, and of nodes like it.

    The machine gives beta by the layer's four all-reduces, c by four of one element, gamma by what A2 costs in a layer;
    d is where c and beta meet. A node's ranks share its network; the link serves where there is none.
    """
    ranks, elements = Setting(tp=TENSOR_RANKS, pp=1), Setting().workload.elements
    whole_s, least_s = (all_reduce_s(ranks, machine, 0, size) for size in (Setting().activation_bytes(), VALUE_BYTES))
    codec, code = machine.codec(Family.AUTOENCODER), Setting(method="A2").sent_elements()
    coded_s = codec.encode_s(elements, code) + codec.decode_s(elements, code)
    network = machine.network or machine.link
    all_reduces = 2 * ALL_REDUCES_PER_LAYER
    beta_s = all_reduces * (whole_s / elements)
    small_s = all_reduces * (machine.collective_launch_s + least_s)
    return ScalingModel(
        alpha_s_per_flop=1 / (TENSOR_RANKS * machine.flops_per_s),
        beta_s_per_element=beta_s,
        gamma_s_per_element=ALL_REDUCES_PER_LAYER * (1 + codec.backward_ratio) * coded_s / elements,
        bandwidth_elements_per_s=network.bandwidth_bytes_per_s / VALUE_BYTES / TENSOR_RANKS,
        small_s=small_s,
        threshold_elements=small_s / beta_s,
    )
