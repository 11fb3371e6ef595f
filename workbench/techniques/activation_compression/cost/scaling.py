"""The paper's own model of larger models and clusters (equations 1 to 3).

The paper fits alpha, beta, gamma and w and does not print them. Here alpha is four devices' data-sheet peak, beta a
layer's four ring all-reduces among four ranks of the local machine, gamma what A2 costs there (table 4), w 10 Gbit/s
shared by the four ranks of a node.

Legend: B `batch`, sequences of one micro-batch; s `sequence`, tokens; h `hidden`, elements; e `code_size`, elements;
m `num_micro_batches`; n `num_nodes`, one pipeline stage each; L `layers`, of the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from workbench.cluster import FittedMachine, catalogue

from ..method import Family
from .layer import all_reduce_s
from .paper import paper_machine
from .setting import ALL_REDUCES_PER_LAYER, Setting

__all__ = ["TENSOR_RANKS", "ScalingModel", "cluster_speedup", "communication_s", "flops"]
__all__ += ["layer_seconds_by_definition", "layer_speedup", "machine_scaling", "v100_scaling"]

TENSOR_RANKS = 4  # table 10
THRESHOLD_ELEMENTS = 409_600  # d, section 4.7, as printed
SMALL_S = 0.2e-3  # c, section 4.7; the unit is inferred
CODE_SIZE = 100  # e, section 4.7
VALUE_BYTES = 2  # fp16


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingModel:
    """The constants of equations 1 to 3."""

    alpha_s_per_flop: float  # of a layer's FLOPs, over all tensor-parallel ranks
    beta_s_per_element: float  # of a message longer than the threshold
    gamma_s_per_element: float  # of encoding and decoding, an element of the activation
    bandwidth_elements_per_s: float  # w, between nodes
    small_s: float = SMALL_S  # c, of a message up to the threshold
    threshold_elements: float = THRESHOLD_ELEMENTS  # d
    code_size: int = CODE_SIZE  # e

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}; it must be above 0")


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
    cluster = catalogue["activation-compression/4x-p3.8xlarge"]
    model = machine_scaling(
        paper_machine(nvlink=False),
        flops_per_s=cluster.host.device.fp16_flops_per_s,
        network_bytes_per_s=cluster.network.bandwidth_bytes_per_s,
    )
    return replace(model, small_s=SMALL_S, threshold_elements=THRESHOLD_ELEMENTS)


def machine_scaling(
    machine: FittedMachine, *, flops_per_s: float | None = None, network_bytes_per_s: float | None = None
) -> ScalingModel:
    """Return the constants of four tensor-parallel ranks of a machine, a node, and of nodes like it.

    The machine gives beta by the layer's four all-reduces, c by four of one element, gamma by what A2 costs in a layer;
    d is where c and beta meet. `flops_per_s` of one device and `network_bytes_per_s` of a node, which its ranks share,
    are the machine's where they are not given; its link serves where it has no network.
    """
    ranks, elements = Setting(tp=TENSOR_RANKS, pp=1), Setting().workload.elements
    whole_s, least_s = (all_reduce_s(ranks, machine, 0, size) for size in (Setting().activation_bytes(), VALUE_BYTES))
    codec, code = machine.codec(Family.AUTOENCODER), Setting(method="A2").sent_elements()
    coded_s = codec.encode_s(elements, code) + codec.decode_s(elements, code)
    network = network_bytes_per_s or (machine.network or machine.link).bandwidth_bytes_per_s
    all_reduces = 2 * ALL_REDUCES_PER_LAYER
    beta_s = all_reduces * (whole_s / elements)
    small_s = all_reduces * (machine.collective_launch_s + least_s)
    return ScalingModel(
        alpha_s_per_flop=1 / (TENSOR_RANKS * (flops_per_s or machine.flops_per_s)),
        beta_s_per_element=beta_s,
        gamma_s_per_element=ALL_REDUCES_PER_LAYER * (1 + codec.backward_ratio) * coded_s / elements,
        bandwidth_elements_per_s=network / VALUE_BYTES / TENSOR_RANKS,
        small_s=small_s,
        threshold_elements=small_s / beta_s,
    )
