"""Counting what the paper's setting says: parameters, and all-reduces of an iteration and of a training.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections II-B and V-A.
Simplified: all-reduces are counted on a model as deep as the paper's and much narrower: width does not change them.
Left out: bytes; the one all-reduce of a loss.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType

import torch

from workbench.models import vit_config
from workbench.models.vit import ViTForImageClassification
from workbench.models.vit_config import ViTConfig
from workbench.parallel import VirtualTensorGroup
from workbench.parallel.traffic import Phase

from .epochs import MODELS, Rows

__all__ = ["count_all_reduces", "count_setting"]

CONFIGS = MappingProxyType({"ViT-1B": vit_config.VIT_1B, "ViT-3B": vit_config.VIT_3B})
BOTH = "forward and backward"
PAPERS_PER_ITERATION = 48  # section II-B


def count_setting(num_epochs: int, iterations_per_epoch: int) -> Rows:
    """Count.

    Args:
        num_epochs: of a training.
        iterations_per_epoch: as the paper's example assumes.

    Returns:
        Rows, key model: parameters; iterations_per_epoch of CIFAR-10 with the paper's batch; key counted:
        all_reduces_per_iteration ("forward", "forward and backward"), all_reduces_of_training (these, and "48 an
        iteration", the paper's own factor).
    """
    rows: Rows = []
    for name, config in CONFIGS.items():
        model = ViTForImageClassification(config, device="meta")
        count = sum(parameter.numel() for parameter in model.parameters())
        rows.append({"quantity": "parameters", "model": name, "value": count, "unit": "1"})
        iterations = MODELS[name].num_iterations
        rows.append({"quantity": "iterations_per_epoch", "model": name, "value": iterations, "unit": "1"})
    forward, backward = count_all_reduces(CONFIGS["ViT-1B"].num_layers)
    counts = {"forward": forward, BOTH: forward + backward}
    rows += _all_reduce_rows("all_reduces_per_iteration", counts)
    totals = counts | {f"{PAPERS_PER_ITERATION} an iteration": PAPERS_PER_ITERATION}
    num_iterations = num_epochs * iterations_per_epoch
    return rows + _all_reduce_rows(
        "all_reduces_of_training", {name: each * num_iterations for name, each in totals.items()}
    )


def count_all_reduces(num_layers: int) -> tuple[int, int]:
    """Run an iteration of a narrow Vision Transformer on two virtual ranks and count: (forward, backward)."""
    small = {"hidden_size": 16, "num_heads": 2, "mlp_size": 32, "image_size": 8, "patch_size": 4}
    group = VirtualTensorGroup(2)
    model = ViTForImageClassification(ViTConfig(num_layers=num_layers, **small), group)
    model(torch.zeros(1, 3, 8, 8)).sum().backward()
    phases = Counter(message.phase for message in group.traffic)
    return phases[Phase.FORWARD], phases[Phase.BACKWARD]


def _all_reduce_rows(quantity: str, counts: dict[str, int]) -> Rows:
    keys = {"model": "ViT-1B"}
    return [
        {"quantity": quantity, **keys, "counted": counted, "value": value, "unit": "1"}
        for counted, value in counts.items()
    ]
