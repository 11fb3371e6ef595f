"""From finished cells to rows: scores, what is left of the uncompressed one, and bytes.

Source: tables 5, 8, 15, 16 and figure 4 of "Does compressing activations help model parallel training?", which print
scores in per cent.
Simplified: a score of a seed is compared with the uncompressed one of the same seed, which saw the same examples in
the same order; rows of several seeds are later merged into mean, smallest and largest.
Left out: tests of significance; what a run can decide (`deciding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

__all__ = [
    "BASELINE",
    "CLOSE_POINTS",
    "PER_CENT",
    "feedback_rows",
    "layer_rows",
    "mean_rows",
    "precision_rows",
    "score_rows",
    "shorter_rows",
    "sources",
    "told_by_layers",
]

Values = Mapping[str, Any]  # what a cell returned

BASELINE = "w/o"
PER_CENT = 100.0
CLOSE_POINTS = 3.0  # of a score: as near as section 4.3 asks of what preserves accuracy
DIGITS = 3  # of a share or place, so that a claim can name it
TOLD_SHORTER = ("score", "train_loss", "points_lost", "points_below")
AVERAGED = ("relative_score", "constant_share", "message_share", "sent_share")


def score_rows(cells: Iterable[Values], keys: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Turn cells into rows for a record.

    Args:
        cells: what `fine_tune` returned, in any order.
        keys: further entries of a cell that tell rows apart, such as "layer_share".

    Returns:
        For each cell `score` (%), `chance` (%), bytes a step and seconds; where the uncompressed cell of the same task
        and seed is among them also `relative_score`, `points_lost`, `constant_share` (what a constant answer keeps of
        the score), and of the bytes at compressed sites `message_share` and, with the gradients of learned codes, which
        no smaller batch makes smaller, `sent_share`. Over the seeds `points_below`: the mean of the points lost, 0 for
        a gain.
    """
    cells = list(cells)
    plain = {(cell["task"], cell["seed"]): cell for cell in cells if cell["method"] == BASELINE}
    rows = []
    for cell in cells:
        said = {name: cell[name] for name in ("task", "method", "seed", *keys)}
        found = [*_own(cell), *_beside(cell, plain.get((cell["task"], cell["seed"])))]
        rows += [{"quantity": name, **said, "value": value, "unit": unit} for name, value, unit in found]
    return rows + _points_below(rows, ("task", "method", *keys))


def _own(cell: Values) -> Iterator[tuple[str, float, str]]:
    yield "score", PER_CENT * cell["score"], "%"
    yield from ((name, PER_CENT * score, "%") for name, score in cell["scores"].items())
    yield "chance", PER_CENT * cell["chance"], "%"
    yield "train_loss", cell["train_loss"], "1"
    yield from ((name, cell[name], "B") for name in cell if name.endswith("_bytes"))
    yield "cell_s", cell["seconds"], "s"


def _beside(cell: Values, plain: Values | None) -> Iterator[tuple[str, float, str]]:
    """Compare a cell with the uncompressed one of its task and seed."""
    if plain is None or cell["method"] == BASELINE:
        return
    yield "points_lost", PER_CENT * (plain["score"] - cell["score"]), "%"
    if plain["score"] > 0:
        yield "relative_score", cell["score"] / plain["score"], "1"
        yield "constant_share", cell["chance"] / plain["score"], "1"
    if cell["layers"] == plain["layers"]:
        sent, whole = cell["compressed_site_bytes"], plain["compressed_site_bytes"]
        yield "message_share", sent / whole, "1"
        yield "sent_share", (sent + cell["encoder_gradient_bytes"]) / whole, "1"


def _points_below(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Average the points lost over the seeds; a gain on average is no loss."""
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        if row["quantity"] == "points_lost":
            groups.setdefault(tuple(row[name] for name in keys), []).append(row["value"])
    return [
        {
            "quantity": "points_below",
            **dict(zip(keys, said, strict=True)),
            "unit": "%",
            "value": max(0.0, fmean(lost)),
            "low": max(0.0, min(lost)),
            "high": max(0.0, max(lost)),
        }
        for said, lost in groups.items()
    ]


def told_by_layers(cells: Iterable[Values]) -> list[dict[str, Any]]:
    """Add to each cell which of the layers are compressed, in numbers that mean the same for encoders of any depth.

    Args:
        cells: what `fine_tune` returned under one encoder, uncompressed ones among them: these name the last layer.

    Returns:
        Cells with `layer_share`, of all layers, and `place`: 0 where the compressed layers are the first, 1 where they
        are the last, None where that is not to be told.
    """
    cells = list(cells)
    depth = 1 + max(layer for cell in cells for layer in cell["layers"])
    return [{**cell, **_position([] if cell["method"] == BASELINE else cell["layers"], depth)} for cell in cells]


def _position(layers: Sequence[int], depth: int) -> dict[str, float | None]:
    free = depth - len(layers)
    place = round(layers[0] / free, DIGITS) if layers and free else None
    return {"layer_share": round(len(layers) / depth, DIGITS), "place": place}


def layer_rows(cells: Iterable[Values], along: str) -> list[dict[str, Any]]:
    """Turn cells that differ in the compressed layers into rows of `score_rows`, told apart by one number.

    Args:
        cells: of `told_by_layers`, under one method, uncompressed ones among them.
        along: "layer_share" or "place".

    Returns:
        Rows without the column of the method, since they differ in it nowhere else.
    """
    return [{name: value for name, value in row.items() if name != "method"} for row in score_rows(cells, (along,))]


def feedback_rows(cells: Sequence[Values], with_feedback: Sequence[Values]) -> list[dict[str, Any]]:
    """Turn cells without and with error feedback into rows of `score_rows`, told apart by `error_feedback` (0 or 1).

    Args:
        cells: without, uncompressed ones among them.
        with_feedback: of the same tasks, methods and seeds.
    """
    plain = [cell for cell in cells if cell["method"] == BASELINE]
    off = score_rows([{**cell, "error_feedback": 0} for cell in cells], ("error_feedback",))
    on = score_rows([{**cell, "error_feedback": 1} for cell in [*plain, *with_feedback]], ("error_feedback",))
    return off + [row for row in on if row["method"] != BASELINE]


def mean_rows(rows: Iterable[Mapping[str, Any]], tasks: Iterable[str]) -> list[dict[str, Any]]:
    """Average over tasks, seed by seed: what a method keeps of the score, and of the bytes.

    Args:
        rows: of `score_rows`.
        tasks: those that count; no rows where there are none.

    Returns:
        The means of `AVERAGED` by method and seed, 1 for the uncompressed encoder.
    """
    wanted, groups = set(tasks), {}
    for row in rows:
        if row["task"] in wanted and row["quantity"] in AVERAGED:
            groups.setdefault((f"mean_{row['quantity']}", row["method"], row["seed"]), []).append(row["value"])
    seeds = dict.fromkeys(seed for _, _, seed in groups)
    for quantity in AVERAGED:
        groups |= {(f"mean_{quantity}", BASELINE, seed): [1.0] for seed in seeds if quantity != "constant_share"}
    return [
        {"quantity": quantity, "method": method, "seed": seed, "value": sum(values) / len(values), "unit": "1"}
        for (quantity, method, seed), values in groups.items()
    ]


def shorter_rows(cells: Iterable[Values]) -> list[dict[str, Any]]:
    """Turn cells that were trained for fewer epochs than the others into rows of their own.

    Args:
        cells: what `fine_tune` returned, uncompressed ones among them.

    Returns:
        Of the rows of `score_rows` the scores, losses and points lost, their quantities with "shorter_" in front.
    """
    rows = [row for row in score_rows(cells) if row["quantity"] in TOLD_SHORTER]
    return [{**row, "quantity": f"shorter_{row['quantity']}"} for row in rows]


def precision_rows(cells: Iterable[Values], in_fp32: Iterable[Values]) -> list[dict[str, Any]]:
    """Compare uncompressed cells with those of the same task and seed in fp32.

    Args:
        cells: in another precision; of several of a task and seed the last.
        in_fp32: the controls.

    Returns:
        `precision_points` (%): what fp32 scores more, by task and seed.

    Raises:
        ValueError: for a control that has no such cell beside it.
    """
    plain = {(cell["task"], cell["seed"]): cell for cell in cells if cell["method"] == BASELINE}
    in_fp32 = list(in_fp32)
    if alone := [cell for cell in in_fp32 if (cell["task"], cell["seed"]) not in plain]:
        task, seed = alone[0]["task"], alone[0]["seed"]
        raise ValueError(f"a control in fp32 on {task} has no uncompressed cell with seed {seed} beside it")
    return [
        {
            "quantity": "precision_points",
            "task": exact["task"],
            "method": BASELINE,
            "seed": exact["seed"],
            "unit": "%",
            "value": PER_CENT * (exact["score"] - plain[exact["task"], exact["seed"]]["score"]),
        }
        for exact in in_fp32
    ]


def sources(cells: Iterable[Values]) -> list[dict[str, str]]:
    """Return where the text and the weights of all cells came from, each source once."""
    distinct = {tuple(source.items()): source for cell in cells for source in cell["data"]}
    return list(distinct.values())
