"""Figure 5 and table 10: larger models and clusters, by the paper's own model.

Source: "Does compressing activations help model parallel training?", section 4.7, through `cost.scaling`.
Simplified: as there. The text calls m the size of a micro-batch; equation 3 needs their number, batch / 16.
Left out: the measured points of figure 5, which the paper shows as pictures alone.

Units: milliseconds at the edge; speedups are pure numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cost import (
    FittedMachine,
    ScalingModel,
    cluster_speedup,
    layer_seconds_by_definition,
    layer_speedup,
    machine_scaling,
)
from .cost.scaling import communication_s, flops

__all__ = ["TABLE_10", "figure_5_rows", "fixed_cluster_rows", "table_10_on", "table_10_rows"]

Rows = list[dict[str, Any]]
TABLE_10 = (
    (6144, 40, 1, 1024),
    (8192, 48, 2, 1536),
    (10240, 60, 4, 1792),
    (12288, 80, 8, 2304),
    (16384, 96, 16, 2176),
    (20480, 105, 35, 2528),
    (25600, 128, 64, 3072),
)
"""Hidden size, layers, nodes, global batch: the settings of table 10."""

MICRO_BATCH, SEQUENCE = 16, 128  # table 10's caption; section 4.7's d = 16·128·100
PRINTED_PRODUCT = MICRO_BATCH * SEQUENCE * 100  # what the text says d is
MANY_NODES = 10**9


def table_10_rows(model: ScalingModel) -> Rows:
    """Predict table 10, and what its last setting would gain with ever more nodes.

    Returns:
        Rows: speedup; speedup_with_m_16, for the text's other reading of m; layer_speedup, of one layer; keys hidden,
        layers, num_nodes, batch. limit_over_h_e: the speedup with very many nodes over h/e.
    """
    rows: Rows = []
    for hidden, layers, num_nodes, batch in TABLE_10:
        keys = {"hidden": hidden, "layers": layers, "num_nodes": num_nodes, "batch": batch}
        shape = {"batch": MICRO_BATCH, "sequence": SEQUENCE, "hidden": hidden}
        cluster = {**shape, "layers": layers, "num_nodes": num_nodes}
        found = {
            "speedup": cluster_speedup(model, num_micro_batches=batch / MICRO_BATCH, **cluster),
            "speedup_with_m_16": cluster_speedup(model, num_micro_batches=MICRO_BATCH, **cluster),
            "layer_speedup": layer_speedup(model, **shape),
        }
        rows += [{"quantity": name, **keys, "value": value, "unit": "1"} for name, value in found.items()]
    many = cluster | {"num_nodes": MANY_NODES}
    limit = cluster_speedup(model, num_micro_batches=batch / MICRO_BATCH, **many) / (hidden / model.code_size)
    return [*rows, {"quantity": "limit_over_h_e", "hidden": hidden, "layers": layers, "value": limit, "unit": "1"}]


def table_10_on(machine: FittedMachine) -> Rows:
    """Predict table 10 for nodes of four ranks of a machine, by the paper's own model.

    Returns:
        Rows: table_10_speedup; key hidden, which tells the table's settings apart.
    """
    rows = table_10_rows(machine_scaling(machine))
    speedups = ((row["hidden"], row["value"]) for row in rows if row["quantity"] == "speedup")
    return [
        {"quantity": "table_10_speedup", "hidden": hidden, "value": value, "unit": "1"} for hidden, value in speedups
    ]


def fixed_cluster_rows(model: ScalingModel, hiddens: Sequence[int], nodes: Sequence[int]) -> Rows:
    """Predict the speedup as the model grows on a cluster that does not.

    Returns:
        Rows: fixed_cluster_speedup; keys hidden, num_nodes.
    """
    return [
        {
            "quantity": "fixed_cluster_speedup",
            "hidden": hidden,
            "num_nodes": num_nodes,
            "value": cluster_speedup(
                model,
                batch=MICRO_BATCH,
                sequence=SEQUENCE,
                hidden=hidden,
                layers=40,
                num_nodes=num_nodes,
                num_micro_batches=64,
            ),
            "unit": "1",
        }
        for num_nodes in nodes
        for hidden in hiddens
    ]


def figure_5_rows(model: ScalingModel, hiddens: Sequence[int]) -> Rows:
    """Predict figure 5: one layer on four tensor-parallel ranks, by hidden size.

    Returns:
        Rows: computation_ms (a), communication_ms (b), overhead_ms (c), layer_speedup (d), key hidden;
        threshold_elements, the product the text gives for d; pieces_at_threshold, beta·d over c.
    """
    rows: Rows = []
    for hidden in hiddens:
        shape = {"batch": MICRO_BATCH, "sequence": SEQUENCE, "hidden": hidden}
        elements = MICRO_BATCH * SEQUENCE * hidden
        times = {
            "computation_ms": model.alpha_s_per_flop * flops(**shape),
            "communication_ms": communication_s(model, elements),
            "overhead_ms": model.gamma_s_per_element * elements,
            "layer_ms": layer_seconds_by_definition(model, compressed=False, **shape),
        }
        rows += [
            {"quantity": name, "hidden": hidden, "value": 1e3 * value, "unit": "ms"} for name, value in times.items()
        ]
        rows.append(
            {"quantity": "layer_speedup", "hidden": hidden, "value": layer_speedup(model, **shape), "unit": "1"}
        )
    meeting = model.beta_s_per_element * model.threshold_elements / model.small_s
    return rows + [
        {"quantity": "threshold_elements", "value": PRINTED_PRODUCT, "unit": "element"},
        {"quantity": "pieces_at_threshold", "value": meeting, "unit": "1"},
    ]
