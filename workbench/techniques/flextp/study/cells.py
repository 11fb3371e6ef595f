"""Which trainings a figure of accuracy needs, each with every argument said, so that equal ones are run once.

What: `compared_by_seed` lists what a figure compares, the Baseline of every seed first; `training_cells` turns it into
arguments of `train_vit`. All figures share their Baselines, and whatever else is equal.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V.
Simplified: nobody drops or migrates where nobody straggles, so that is the Baseline, as is any Baseline under
stragglers: they cost it time alone. A test says that both are trained bit for bit alike.
Left out: what the arguments mean (`variant`, `accuracy`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from .accuracy import train_vit
from .variant import Variant

__all__ = ["compared_by_seed", "training_cells"]


def compared_by_seed(compared: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """List what is compared, with the Baseline before it, seed by seed.

    Args:
        compared: fields of `Variant`, each.
        seeds: one run each.
    """
    return [{**each, "seed": seed} for seed in seeds for each in ({"solution": "Baseline"}, *compared)]


def training_cells(wanted: Sequence[Mapping[str, Any]], **recipe: Any) -> list[dict[str, Any]]:
    """Say every argument of `train_vit` for everything that is wanted.

    Args:
        wanted: of `compared_by_seed`.
        recipe: arguments that all have in common.

    Returns:
        One cell for everything wanted, in its order; some may be equal.

    Raises:
        ValueError: for an argument that `train_vit` does not have.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(train_vit).parameters.items()}
    return [_cell(defaults, {**recipe, **each}) for each in wanted]


def _cell(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(given) - set(defaults)):
        raise ValueError(f"{unknown[0]} is given, must be among {', '.join(defaults)}")
    said = {**defaults, **given}
    if _is_plain(said):
        said |= {name: defaults[name] for name in _VARIANT if name in defaults}
    elif said["everywhere"] or said["dropped"]:
        said |= {"skewness": (), "moves": False}  # a constant plan follows nobody's times
    return {**said, "skewness": list(said["skewness"]), "dropped": list(said["dropped"])}


_VARIANT = tuple(field.name for field in fields(Variant))


def _is_plain(said: Mapping[str, Any]) -> bool:
    """Return whether every product is computed whole, by the rank that owns it."""
    nobody_straggles = all(skewness == 1 for skewness in said["skewness"])
    drops_anyway = said["everywhere"] or any(said["dropped"])
    return said["solution"] == "Baseline" or (nobody_straggles and not drops_anyway)
