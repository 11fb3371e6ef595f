"""From finished cells to rows and to the answer in sentences: scores, losses against the uncompressed score, and bytes.

A score of a seed is compared with the uncompressed score of the same seed, which saw the same examples in the same
order. By section 4.3 of the paper a method preserves accuracy that loses at most 3 points, except on CoLA and RTE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from workbench.study.rows import value_row
from workbench.study.training import PER_CENT, chance_of_accuracy, is_at_chance, loss_rows, points_below_rows, steps_row

__all__ = [
    "BASELINE",
    "CLOSE_POINTS",
    "QUANTITIES_PER_BYTE",
    "at_chance",
    "feedback_rows",
    "finding_per_byte",
    "layer_rows",
    "mean_rows",
    "precision_rows",
    "pretraining_rows",
    "score_rows",
    "shorter_rows",
    "with_layers",
]

Values = Mapping[str, Any]  # the results of a cell
Rows = list[dict[str, Any]]

BASELINE = "w/o"
CLOSE_POINTS = 3.0  # of a score: as near as section 4.3 asks of a method that preserves accuracy
MOST_TOLERATED = 0.5  # of the score above a constant answer's
DIGITS = 3  # of a share or place, so that a claim can name it
SHORTER = ("score", "train_loss", "points_lost", "points_below")
AVERAGED = ("relative_score", "constant_share", "message_share", "sent_share")
EXCEPTED = ("cola", "rte")  # tasks that the paper excepts from its 3 points
QUANTITIES_PER_BYTE = (
    "score",
    "chance",
    "num_steps",
    "points_lost",
    "relative_score",
    "message_share",
    "sent_share",
)  # a record that gives the finding holds these


def score_rows(cells: Iterable[Values], keys: Sequence[str] = ()) -> Rows:
    """Return rows of cells in any order.

    Returns:
        For each cell `score` (%), `chance` (%), steps, bytes a step and seconds. Where the uncompressed cell of its
        task and seed is among them also `relative_score`, `points_lost`, `constant_share` (of the score, kept by a
        constant answer), and of the bytes at compressed sites `message_share` and, with the gradients of learned codes,
        which no smaller batch makes smaller, `sent_share`. Over the seeds `points_below`.
    """
    cells = list(cells)
    baselines = {(cell["task"], cell["seed"]): cell for cell in cells if cell["method"] == BASELINE}
    rows: Rows = []
    for cell in cells:
        of_cell = {name: cell[name] for name in ("task", "method", "seed", *keys)}
        rows += [value_row(name, value, unit, **of_cell) for name, value, unit in _own(cell)]
        if "num_steps" in cell:
            rows.append(steps_row(cell["num_steps"], **of_cell))
        baseline = baselines.get((cell["task"], cell["seed"]))
        if baseline is not None and cell["method"] != BASELINE:
            rows += loss_rows(cell["score"], baseline["score"], **of_cell)
            rows += [value_row(name, share, **of_cell) for name, share in _shares(cell, baseline)]
    return rows + points_below_rows(rows)


def _own(cell: Values) -> Iterator[tuple[str, float, str]]:
    yield "score", PER_CENT * cell["score"], "%"
    yield from ((name, PER_CENT * score, "%") for name, score in cell["scores"].items())
    yield "chance", PER_CENT * cell["chance"], "%"
    yield "train_loss", cell["train_loss"], "1"
    yield from ((name, cell[name], "B") for name in cell if name.endswith("_bytes"))
    yield "cell_s", cell["seconds"], "s"


def _shares(cell: Values, baseline: Values) -> Iterator[tuple[str, float]]:
    """Compare a constant answer and the bytes with the uncompressed cell."""
    if baseline["score"] > 0:
        yield "constant_share", cell["chance"] / baseline["score"]
    if cell["layers"] == baseline["layers"]:
        sent, whole = cell["compressed_site_bytes"], baseline["compressed_site_bytes"]
        yield "message_share", sent / whole
        yield "sent_share", (sent + cell["encoder_gradient_bytes"]) / whole


def with_layers(cells: Iterable[Values]) -> Rows:
    """Add to each cell which layers are compressed, in numbers that mean the same for encoders of any depth.

    Uncompressed cells must be among them: these name the last layer.

    Returns:
        Cells with `layer_share`, of all layers, and `place`: 0 where the compressed layers are the first, 1 where they
        are the last, None where neither can be said.
    """
    cells = list(cells)
    depth = 1 + max(layer for cell in cells for layer in cell["layers"])
    return [{**cell, **_position([] if cell["method"] == BASELINE else cell["layers"], depth)} for cell in cells]


def _position(layers: Sequence[int], depth: int) -> dict[str, float | None]:
    free = depth - len(layers)
    place = round(layers[0] / free, DIGITS) if layers and free else None
    return {"layer_share": round(len(layers) / depth, DIGITS), "place": place}


def layer_rows(cells: Iterable[Values], along: str) -> Rows:
    """Return rows of cells of `with_layers` under one method, told apart by "layer_share" or "place"."""
    return [{name: value for name, value in row.items() if name != "method"} for row in score_rows(cells, (along,))]


def feedback_rows(cells: Sequence[Values], with_feedback: Sequence[Values]) -> Rows:
    """Return rows of cells without and with error feedback, told apart by `error_feedback` (0 or 1).

    Uncompressed cells are among those without it.
    """
    baselines = [cell for cell in cells if cell["method"] == BASELINE]
    off = score_rows([{**cell, "error_feedback": 0} for cell in cells], ("error_feedback",))
    on = score_rows([{**cell, "error_feedback": 1} for cell in [*baselines, *with_feedback]], ("error_feedback",))
    return off + [row for row in on if row["method"] != BASELINE]


def mean_rows(rows: Iterable[Values], tasks: Iterable[str]) -> Rows:
    """Average rows of `score_rows` over some tasks, by method and seed; the uncompressed encoder keeps 1."""
    wanted, groups = set(tasks), {}
    for row in rows:
        if row["task"] in wanted and row["quantity"] in AVERAGED:
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
    return [key for key, group in groups.items() if is_at_chance(*_measure(group), group[0]["num_validation"])]


def _measure(cells: Sequence[Values]) -> tuple[float, float]:
    """Return the mean score and a constant answer's, in accuracy where the task is scored by F1."""
    chance = cells[0]["chance"]
    if cells[0]["metric"] != "f1":
        return fmean(cell["score"] for cell in cells), chance
    return fmean(cell["scores"]["accuracy"] for cell in cells), chance_of_accuracy(chance)


def finding_per_byte(rows: Iterable[Values], tasks: Collection[str], batch: int) -> str:
    """Say which methods preserve accuracy in every run, where the others do not, and what all keep on average.

    Three points are asked of tasks that the paper does not except and that have more than twice as much to lose.

    Returns:
        Sentences, methods by the bytes that they send; empty where nothing was compressed.
    """
    counted = [row for row in rows if row.get("task") in tasks]
    shares, with_codes, kept = (_by_method(counted, name) for name in ("message_share", "sent_share", "relative_score"))
    methods = sorted(shares.keys() & kept.keys(), key=lambda method: (fmean(shares[method]), method))
    if not methods:
        return ""
    means = ", ".join(f"{method} ({_share(shares[method])}) {_share(kept[method])}" for method in methods)
    average = f"Kept of the score, on average over {_listed(sorted(tasks))}: {means}."
    bytes_of = {method: _bytes_text(shares[method], with_codes[method]) for method in methods}
    return " ".join([*_preserving(counted, bytes_of, batch), average, "(A: learned codes, T: Top-K, Q: quantised.)"])


def _preserving(rows: Sequence[Values], bytes_of: Mapping[str, str], batch: int) -> list[str]:
    """Say which methods lose at most three points in every run of the tasks that this can be asked of."""
    lost = {(row["method"], row["task"], row["seed"]): row["value"] for row in rows if row["quantity"] == "points_lost"}
    tasks = {task for _, task, _ in lost}
    asked = sorted(task for task in tasks if _can_be_asked(rows, task))
    if not asked:
        return []
    seeds = sorted({seed for _, task, seed in lost if task in asked})
    beyond = {
        method: [
            task for task in asked if any(lost.get((method, task, seed), PER_CENT) > CLOSE_POINTS for seed in seeds)
        ]
        for method in bytes_of
    }
    kept = [f"{method} at {bytes_of[method]}" for method, where in beyond.items() if not where]
    others = [
        f"{method} ({_listed(where)})" if len(where) < len(asked) else method
        for method, where in beyond.items()
        if where
    ]
    runs = f"On {_listed(asked)} ({len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}, batches of {batch})"
    too_many = f"more than {CLOSE_POINTS:g} points"
    without = _not_asked(tasks - {*asked})
    if not kept:
        return [f"{runs} every method loses {too_many} in some run.", *without]
    rest = f"; some run does with {_listed(others)}" if others else ""
    answer = f"{runs} no run loses {too_many} with {_listed(kept)} of the bytes where they compress{rest}."
    return [answer, *without]


def _not_asked(tasks: Collection[str]) -> list[str]:
    """Say of which tasks three points are not asked, and why."""
    reasons = {"excepted by the paper": [], f"{CLOSE_POINTS:g} points are most of what there is to lose": []}
    for task in sorted(tasks):
        [*reasons.values()][task not in EXCEPTED].append(task)
    texts = [f"{_listed(where)} ({why})" for why, where in reasons.items() if where]
    return [f"Not asked of {_listed(texts)}."] if texts else []


def _can_be_asked(rows: Sequence[Values], task: str) -> bool:
    """Say whether the paper asks three points of a task, and these are not most of what there is to lose."""
    plain = [row for row in rows if row["task"] == task and row["method"] == BASELINE]
    score, chance = (fmean(row["value"] for row in plain if row["quantity"] == name) for name in ("score", "chance"))
    return task not in EXCEPTED and MOST_TOLERATED * (score - chance) >= CLOSE_POINTS


def _by_method(rows: Sequence[Values], quantity: str) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in rows:
        if row["quantity"] == quantity:
            values.setdefault(row["method"], []).append(row["value"])
    return values


def _bytes_text(shares: Sequence[float], with_codes: Sequence[float]) -> str:
    """Write the mean share of the bytes, and with the gradients of learned codes where these can be seen in it."""
    share, more = _share(shares), _share(with_codes)
    return share if share == more else f"{share} ({more} with gradients)"


def _share(values: Sequence[float]) -> str:
    return f"{PER_CENT * fmean(values):.0f}\u00a0%"  # never broken over two lines


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
