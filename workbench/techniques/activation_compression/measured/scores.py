"""From finished cells to rows: scores, losses against the uncompressed score, and bytes.

A score of a seed is compared with the uncompressed score of the same seed, which saw the same examples in the same
order. By section 4.3 of the paper a method preserves accuracy that loses at most 3 points, except on CoLA and RTE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from workbench.rows import value_row
from workbench.study.training import PER_CENT, chance_of_accuracy, is_at_chance, loss_rows, points_below_rows, steps_row

__all__ = ["BASELINE", "QUANTITIES_PER_BYTE", "at_chance", "feedback_rows"]
__all__ += ["layer_rows", "mean_rows", "precision_rows", "pretraining_rows", "score_rows", "shorter_rows"]
__all__ += ["with_layers"]

Values = Mapping[str, Any]  # the results of a cell
Rows = list[dict[str, Any]]

BASELINE = "w/o"
DIGITS = 3  # decimals of a share or place, so that a claim can name it
SHORTER = ("score", "train_loss", "points_lost", "points_below")
AVERAGED = ("relative_score", "constant_share", "message_share", "sent_share")
QUANTITIES_PER_BYTE = ("score", "chance", "num_steps", "points_lost", "relative_score", "message_share", "sent_share")
"""What a record of score against bytes holds."""


def score_rows(cells: Iterable[Values], keys: Sequence[str] = ()) -> Rows:
    """Return rows of cells in any order.

    For each cell `score` (%), `chance` (%), steps, bytes a step and seconds. Where the uncompressed cell of its task
    and seed is among them also `relative_score`, `points_lost`, `constant_share` (of the score, kept by a constant
    answer), and of the bytes at compressed sites `message_share` and, with the gradients of learned codes, which no
    smaller batch makes smaller, `sent_share`. Over the seeds `points_below`.
    """
    cells = list(cells)
    baselines = {(cell["task"], cell["seed"]): cell for cell in cells if cell["method"] == BASELINE}
    rows: Rows = []
    for cell in cells:
        of_cell = {name: cell[name] for name in ("task", "method", "seed", *keys)}
        in_per_cent = {"score": cell["score"], **cell["scores"], "chance": cell["chance"]}
        rows += [value_row(name, PER_CENT * share, "%", **of_cell) for name, share in in_per_cent.items()]
        rows.append(value_row("train_loss", cell["train_loss"], **of_cell))
        rows += [value_row(name, cell[name], "B", **of_cell) for name in cell if name.endswith("_bytes")]
        rows.append(value_row("cell_s", cell["seconds"], "s", **of_cell))
        if "num_steps" in cell:
            rows.append(steps_row(cell["num_steps"], **of_cell))
        plain = baselines.get((cell["task"], cell["seed"]))
        if plain is None or cell["method"] == BASELINE:
            continue
        rows += loss_rows(cell["score"], plain["score"], **of_cell)
        if plain["score"] > 0:
            rows.append(value_row("constant_share", cell["chance"] / plain["score"], **of_cell))
        if cell["layers"] == plain["layers"]:
            sent, whole = cell["compressed_site_bytes"], plain["compressed_site_bytes"]
            rows.append(value_row("message_share", sent / whole, **of_cell))
            rows.append(value_row("sent_share", (sent + cell["encoder_gradient_bytes"]) / whole, **of_cell))
    return rows + points_below_rows(rows)


def with_layers(cells: Iterable[Values]) -> Rows:
    """Add to each cell which layers are compressed, in numbers that mean the same for encoders of any depth.

    `layer_share` is the share of all layers; `place` is 0 where the compressed layers are the first, 1 where they are
    the last, None where neither can be said. Uncompressed cells must be among them: these name the last layer.
    """
    cells = list(cells)
    depth = 1 + max(layer for cell in cells for layer in cell["layers"])
    placed = []
    for cell in cells:
        layers = [] if cell["method"] == BASELINE else cell["layers"]
        free = depth - len(layers)
        place = round(layers[0] / free, DIGITS) if layers and free else None
        placed.append({**cell, "layer_share": round(len(layers) / depth, DIGITS), "place": place})
    return placed


def layer_rows(cells: Iterable[Values], along: str) -> Rows:
    """Return rows of cells of `with_layers` under one method, told apart by "layer_share" or "place"."""
    return [{name: value for name, value in row.items() if name != "method"} for row in score_rows(cells, (along,))]


def feedback_rows(cells: Sequence[Values], with_feedback: Sequence[Values]) -> Rows:
    """Return rows told apart by `error_feedback`: cells without (0), uncompressed ones included, and with it (1)."""
    baselines = [cell for cell in cells if cell["method"] == BASELINE]
    off = score_rows([{**cell, "error_feedback": 0} for cell in cells], ("error_feedback",))
    on = score_rows([{**cell, "error_feedback": 1} for cell in [*baselines, *with_feedback]], ("error_feedback",))
    return off + [row for row in on if row["method"] != BASELINE]


def mean_rows(rows: Iterable[Values], tasks: Iterable[str]) -> Rows:
    """Average rows of `score_rows` over some tasks, by method and seed; the uncompressed encoder keeps 1."""
    counted = set(tasks)
    groups: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        if row["task"] in counted and row["quantity"] in AVERAGED:
            groups.setdefault((f"mean_{row['quantity']}", row["method"], row["seed"]), []).append(row["value"])
    seeds = dict.fromkeys(seed for _, _, seed in groups)
    for quantity in AVERAGED:
        groups |= {(f"mean_{quantity}", BASELINE, seed): [1.0] for seed in seeds if quantity != "constant_share"}
    return [
        value_row(quantity, sum(values) / len(values), method=method, seed=seed)
        for (quantity, method, seed), values in groups.items()
    ]


def shorter_rows(cells: Iterable[Values]) -> Rows:
    """Return scores, losses and points lost of cells with fewer epochs, their quantities with "shorter_" in front."""
    rows = [row for row in score_rows(cells) if row["quantity"] in SHORTER]
    return [{**row, "quantity": f"shorter_{row['quantity']}"} for row in rows]


def precision_rows(cells: Iterable[Values], in_fp32: Iterable[Values]) -> Rows:
    """Return `precision_points`, by which fp32 scores above the last uncompressed cell of its task and seed."""
    baselines = {(cell["task"], cell["seed"]): cell["score"] for cell in cells if cell["method"] == BASELINE}
    rows = []
    for control in in_fp32:
        task, seed = control["task"], control["seed"]
        if (task, seed) not in baselines:
            raise ValueError(f"a control in fp32 on {task} has no uncompressed cell with seed {seed} beside it")
        points = PER_CENT * (control["score"] - baselines[task, seed])
        rows.append(value_row("precision_points", points, "%", task=task, method=BASELINE, seed=seed))
    return rows


def pretraining_rows(results: Iterable[Values]) -> Rows:
    """Return `pretraining_loss` of results of `pretrain_then_fine_tune`."""
    return [
        value_row("pretraining_loss", result["pretraining_loss"], method=result["method"], seed=result["seed"])
        for result in results
    ]


def at_chance(cells: Iterable[Values]) -> list[tuple[str, str]]:
    """List pairs (task, method) that are no better than a constant answer, the mean over their seeds.

    F1 hides how little a method knows where most answers are yes; there accuracy decides.
    """
    groups: dict[tuple[str, str], list[Values]] = {}
    for cell in cells:
        groups.setdefault((cell["task"], cell["method"]), []).append(cell)
    nothing_learned = []
    for key, group in groups.items():
        score, chance = fmean(cell["score"] for cell in group), group[0]["chance"]
        if group[0]["metric"] == "f1":
            score, chance = fmean(cell["scores"]["accuracy"] for cell in group), chance_of_accuracy(chance)
        if is_at_chance(score, chance, group[0]["num_validation"]):
            nothing_learned.append(key)
    return nothing_learned
