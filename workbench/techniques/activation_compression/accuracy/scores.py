"""From finished cells to rows: scores, what is left of the uncompressed one, bytes, and what is at chance.

Source: tables 5, 8, 15, 16 and figure 4 of "Does compressing activations help model parallel training?", which print
scores in per cent.
Simplified: a score of a seed is compared with the uncompressed one of the same seed, which saw the same examples in
the same order; rows of several seeds are later merged into mean, smallest and largest.
Left out: tests of significance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from workbench.reproduction.claims import Claim

__all__ = [
    "AVERAGED",
    "BASELINE",
    "PER_CENT",
    "chance_reasons",
    "feedback_rows",
    "layer_rows",
    "mean_rows",
    "not_comparable",
    "precision_rows",
    "score_rows",
    "sources",
]

Values = Mapping[str, Any]  # what a cell returned

BASELINE = "w/o"
PER_CENT = 100.0
AVERAGED = ("relative_score", "constant_share", "message_share", "sent_share")
CHANCE_ERRORS = 2.0  # standard errors by which an uncompressed score must lie above chance


def score_rows(cells: Iterable[Values], keys: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Turn cells into rows for a record.

    Args:
        cells: what `fine_tune` returned, in any order.
        keys: further entries of a cell that tell rows apart, such as "num_layers_compressed".

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
            "quantity": "points_below", **dict(zip(keys, said, strict=True)), "unit": "%", "value": max(0.0, fmean(lost)),
            "low": max(0.0, min(lost)), "high": max(0.0, max(lost)),
        }
        for said, lost in groups.items()
    ]  # fmt: skip


def layer_rows(cells: Iterable[Values], along: str) -> list[dict[str, Any]]:
    """Turn cells that differ in the compressed layers into rows of `score_rows`, told apart by one number.

    Args:
        cells: what `fine_tune` returned under one method, uncompressed ones among them.
        along: "num_layers" (0 without compression) or "first_layer" (none without compression).

    Returns:
        Rows without the column of the method, since they differ in it nowhere else.
    """
    told = []
    for cell in cells:
        layers = [] if cell["method"] == BASELINE else cell["layers"]
        told.append({**cell, "num_layers": len(layers), "first_layer": layers[0] if layers else None})
    return [{name: value for name, value in row.items() if name != "method"} for row in score_rows(told, (along,))]


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
    ]  # fmt: skip


def precision_rows(cells: Iterable[Values], in_fp32: Iterable[Values]) -> list[dict[str, Any]]:
    """Compare uncompressed cells with those of the same task and seed in fp32.

    Args:
        cells: in another precision.
        in_fp32: the controls.

    Returns:
        `precision_points` (%): what fp32 scores more, by task and seed.
    """
    plain = {(cell["task"], cell["seed"]): cell for cell in cells if cell["method"] == BASELINE}
    return [
        {
            "quantity": "precision_points", "task": exact["task"], "method": BASELINE, "seed": exact["seed"],
            "unit": "%", "value": PER_CENT * (exact["score"] - plain[exact["task"], exact["seed"]]["score"]),
        }
        for exact in in_fp32
    ]  # fmt: skip


def sources(cells: Iterable[Values]) -> list[dict[str, str]]:
    """Return where the text and the weights of all cells came from, each source once."""
    distinct = {tuple(source.items()): source for cell in cells for source in cell["data"]}
    return list(distinct.values())


def not_comparable(
    cells: Iterable[Values], claims: Iterable[Claim], printed: Sequence[pd.DataFrame] = ()
) -> dict[str, str]:
    """Say which claims this run cannot decide, whatever the methods do.

    A claim about a task that the uncompressed encoder is at chance on. An order of scores that are all at chance. A
    share of the score to be kept whose tolerance is less than a standard error of the score; that a constant answer
    would keep, too; or that the paper prints twice, the two further apart than any one value can be near to both.

    Args:
        cells: what `fine_tune` returned.
        claims: of the item; one about a single task says it in `where`.
        printed: the paper's relative scores (task, method, value): first the item's own table, then those in which the
            same setting is printed again.

    Returns:
        Name of a claim -> reason.
    """
    cells = list(cells)
    at_chance, plain = chance_reasons(cells), _by_task(cell for cell in cells if cell["method"] == BASELINE)
    found = {}
    for claim in claims:
        task = claim.where.get("task")
        if task not in plain:
            continue
        reason = at_chance.get(task) or _order_at_chance(claim, _by_task(cells)[task])
        if not reason and claim.quantity == "relative_score":
            reason = _undecidable_share(claim, plain[task], [_printed(table, claim) for table in printed])
        if reason:
            found[claim.name] = reason
    return found


def chance_reasons(cells: Iterable[Values]) -> dict[str, str]:
    """Say for which tasks the uncompressed encoder is no better than a constant answer.

    Args:
        cells: what `fine_tune` returned.

    Returns:
        Task -> reason, for tasks whose mean uncompressed score lies less than two standard errors above chance. The
        error is that of a share of as many rows, for correlations 1/sqrt(rows).
    """
    found = {}
    for task, plain in _by_task(cell for cell in cells if cell["method"] == BASELINE).items():
        if _is_at_chance(plain):
            found[task] = (
                f"without compression this encoder scores {_mean(plain):.1%} on {task}, a constant answer "
                f"{plain[0]['chance']:.1%} (standard error {_error(plain[0]):.1%}): at chance, there is nothing to lose"
            )
    return found


def _by_task(cells: Iterable[Values]) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = {}
    for cell in cells:
        found.setdefault(cell["task"], []).append(cell)
    return found


def _mean(cells: Sequence[Values]) -> float:
    return fmean(cell["score"] for cell in cells)


def _error(cell: Values) -> float:
    """Return the standard error of a score: of a share of as many rows, for correlations 1/sqrt(rows)."""
    chance, rows = cell["chance"], cell["num_validation"]
    return math.sqrt(chance * (1 - chance) / rows) if chance > 0 else 1 / math.sqrt(rows)


def _is_at_chance(cells: Sequence[Values]) -> bool:
    return _mean(cells) <= cells[0]["chance"] + CHANCE_ERRORS * _error(cells[0])


def _order_at_chance(claim: Claim, cells: Sequence[Values]) -> str:
    """Give a reason where all that an order compares is at chance."""
    along, order = getattr(claim, "along", ""), getattr(claim, "order", ())
    groups = [[cell for cell in cells if cell.get(along) == key and _fits(cell, claim)] for key in order]
    if not groups or not all(group and _is_at_chance(group) for group in groups):
        return ""
    scores = " and ".join(f"{_mean(group):.1%}" for group in groups)
    return f"{scores} are at chance, where a constant answer scores {cells[0]['chance']:.1%}: no order can be seen"


def _fits(cell: Values, claim: Claim) -> bool:
    return all(cell.get(name) == key for name, key in claim.where.items())


def _printed(table: pd.DataFrame, claim: Claim) -> float | None:
    found = table[(table.task == claim.where["task"]) & (table.method == claim.where["method"])].value
    return float(found.iloc[0]) if len(found) else None


def _undecidable_share(claim: Claim, plain: Sequence[Values], printed: Sequence[float | None]) -> str:
    """Give a reason why a share of the score within a tolerance of the paper's would mean nothing."""
    score, error = _mean(plain), _error(plain[0])
    if claim.abs < error / score:
        return (
            f"the tolerance, {claim.abs:.2f} of the score, is less than the score's standard error, {error:.1%} of "
            f"{score:.1%}: {error / score:.2f}"
        )
    constant = plain[0]["chance"] / score
    target = printed[0] if printed else None
    if target is not None and abs(constant - target) <= claim.abs:
        return f"a constant answer keeps {constant:.2f} of the score, which is within the tolerance of {target:.2f}"
    known = [value for value in printed if value is not None]
    if known and max(known) - min(known) > 2 * claim.abs:
        return (
            f"the paper prints this twice, as {min(known):.2f} and {max(known):.2f}: no value is within the tolerance "
            f"of both"
        )
    return ""
