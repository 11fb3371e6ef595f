"""The rows of what is simulated on the paper's cluster: figures 4, 6 and 7, group sizes, the map of P and T, theorem 1.

The paper prints neither its iterations' lengths nor its bars. Ours are of an A100 in single precision as a guess; the
sizes of the models are known.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.datasets import digits, gpu_performance
from workbench.rows import spread_row, value_row

from .cost import Cluster, Run, Scheme, Workload, drawn_delays_s, simulate, traced_delays_s
from .method import Certificate, Group, Settings, certify, error_bound

__all__ = ["CALIBRATION", "DELAYS_S", "MODELS", "PAPER", "certificate_of", "group_size_rows", "history_rows"]
__all__ += ["largest_speedups", "map_rows", "own_delays_s", "scaling_rows", "throughput_rows", "trace_rows"]

FLOAT_BYTES = 4
EXAMPLES = 64  # of a pipeline's mini-batch, of the artifact
NUM_MICRO_BATCHES = 4
MODELS = MappingProxyType(
    {
        # parameters, and seconds of an iteration on one A100: 12.3 GFLOP an image, 84 an example of 128 tokens,
        # at 8 and 12 TFLOP/s
        "ResNet-50": (25.6e6, 0.10),
        "BERT-base": (110e6, 0.45),
        # the release's word scores have a matrix of their own, beside the embedding's; the seconds as above
        "BERT-base, own head": (133.3e6, 0.45),
    }
)
DELAYS_S: Mapping[tuple[str, str], float] = MappingProxyType(
    {("ResNet-50", "A"): 0.1, ("ResNet-50", "B"): 0.3, ("BERT-base", "A"): 0.2, ("BERT-base", "B"): 0.6}
    | {("BERT-base, own head", "A"): 0.2, ("BERT-base, own head", "B"): 0.6}
)  # section 5.1
CALIBRATION: Mapping[str, Any] = MappingProxyType(
    {"server_bytes_per_s": 4.15e9, "on": "HetPipe close to SDPipe: ResNet-50, 4 x 4, B"}
)
PAPER = Cluster(server_bytes_per_s=CALIBRATION["server_bytes_per_s"])
NONE = "homogeneous"
DOSES = MappingProxyType({"each iteration": (1, 1.0), "twice": (2, 1.0), "eight times as long": (1, 8.0)})
"""Delays of a worker in an iteration, and their length over the paper's; see `delays_s`."""
ITERATION = "each iteration"
LONGER = 4  # passes on a trace, beside ours
DELAYED = ("ResNet-50", "B")  # the model and its delays by which groups are formed, of figure 9 and theorem 1
CLASSIFIED = 16  # images of a mini-batch of theorem 1's trainings
FLUSHED, RELEASED = "SDPipe, flush", "SDPipe, released scheduler"  # beside SDPipe, which does not flush
ALONE = "SDPipe, groups of one"  # with no window, and no rule that connects workers
NO_WINDOW = "SDPipe, no window"
RARE = "HetPipe, a push in ten"  # as in the release, to a server with one network card: not calibrated
UNFLUSHED = "All-Reduce+Pipe, no flush"  # beside All-Reduce, which does


def workload_of(model: str, num_stages: int) -> Workload:
    """Return a model's workload, cut into stages of equal work."""
    parameters, seconds = MODELS[model]
    pass_s = seconds / num_stages / NUM_MICRO_BATCHES / 3
    sizes = {"forward_s": pass_s, "backward_s": 2 * pass_s, "stage_bytes": FLOAT_BYTES * parameters / num_stages}
    return Workload(num_stages=num_stages, num_micro_batches=NUM_MICRO_BATCHES, **sizes)


def delays_s(model: str, setting: str, shape: tuple[int, int, int], dose: str, seed: int) -> np.ndarray:
    """Draw delays [K, M, N], each with 10 %.

    The text draws one for each iteration of a worker, the released code one before the forward and one before the
    backward pass of a mini-batch.
    """
    if setting == NONE:
        return np.zeros(shape)
    draws, longer = DOSES[dose]
    delay_s = longer * DELAYS_S[model, setting]
    drawn = (drawn_delays_s(*shape, delay_s=delay_s, seed=seed * draws + number) for number in range(draws))
    return sum(drawn, np.zeros(shape))


def throughput_rows(
    *,
    models: Sequence[str],
    settings: Sequence[str],
    meshes: Sequence[Sequence[int]],
    doses: Sequence[str],
    num_iterations: int,
    seeds: int,
    beside: Sequence[Sequence[int]] = (),
) -> list[dict[str, Any]]:
    """Return examples per second of all schemes on M x N meshes, and SDPipe's speedups; the spread is of seeds.

    Meshes `beside` the others do not count for the largest speedups.
    "flushed_speedup" is of SDPipe with a flush, as its rivals have, and "alone_speedup" of SDPipe with groups of one.
    """
    rows = []
    for model, setting, (num_stages, num_pipelines) in product(models, settings, (*meshes, *beside)):
        workload, shape = workload_of(model, num_stages), (num_iterations, num_stages, num_pipelines)
        keys = {"model": model, "setting": setting, "mesh": f"{num_stages} x {num_pipelines}"}
        free = _all_schemes(workload, np.zeros(shape))
        for dose in doses:
            runs = [free] * seeds  # without delays no draw differs
            if setting != NONE:
                runs = [_all_schemes(workload, delays_s(model, setting, shape, dose, seed)) for seed in range(seeds)]
            rows += _speed_rows(runs, num_pipelines, **keys, dose=dose)
            if setting != NONE:
                ratio = DOSES[dose][1] * DELAYS_S[model, setting] / free[Scheme.SDPIPE].iteration_s
                rows.append(value_row("delay_over_iteration", ratio, **keys, dose=dose))
            for scheme in (Scheme.SDPIPE.value, FLUSHED, RELEASED, ALONE):
                slowed = [run[scheme].iteration_s / free[scheme].iteration_s for run in runs]
                rows.append(spread_row("slowdown", slowed, scheme=scheme, **keys, dose=dose))
    counted = [f"{num_stages} x {num_pipelines}" for num_stages, num_pipelines in meshes]
    for dose in doses:
        of_dose = [row for row in rows if row["dose"] == dose and row["mesh"] in counted]
        for quantity in ("speedup", "flushed_speedup", "alone_speedup"):
            rows += largest_speedups(of_dose, quantity)
    return rows


def largest_speedups(rows: Sequence[Mapping[str, Any]], quantity: str = "speedup") -> list[dict[str, Any]]:
    """Return the row of SDPipe's largest speedup over each rival, or of its "flushed_speedup"."""
    speedups = [row for row in rows if row["quantity"] == quantity]
    rivals = dict.fromkeys(row["over"] for row in speedups)
    best = [max((row for row in speedups if row["over"] == rival), key=lambda row: row["value"]) for rival in rivals]
    return [{**row, "quantity": f"largest_{quantity}"} for row in best]


def _all_schemes(workload: Workload, delays: np.ndarray) -> dict[str, Run]:
    """Simulate the schemes: SDPipe without a flush (algorithm 1), its rivals with one (section 5.1).

    Beside them HetPipe pushes every tenth mini-batch, All-Reduce does not flush, SDPipe does, and SDPipe has the
    released scheduler's settings or no groups.
    """
    rivals = [scheme for scheme in Scheme if scheme is not Scheme.SDPIPE]
    runs = {scheme.value: simulate(scheme, workload, PAPER, delays) for scheme in rivals}
    one_card = replace(PAPER, server_bytes_per_s=PAPER.card_bytes_per_s)
    runs[RARE] = simulate(Scheme.HETPIPE, workload, one_card, delays, push_every=10)
    sdpipe = partial(simulate, Scheme.SDPIPE, workload, PAPER)
    runs[UNFLUSHED] = simulate(Scheme.ALL_REDUCE, workload, PAPER, delays, flush=False)
    runs[Scheme.SDPIPE.value] = sdpipe(delays, flush=False)
    runs[FLUSHED] = sdpipe(delays)
    runs[RELEASED] = sdpipe(delays, flush=False, settings=Settings.released())
    runs[ALONE] = sdpipe(delays, flush=False, history=delays.size, window_s=0.0)  # no rule until P - 1 groups exist
    return runs


def _speed_rows(runs: Sequence[Mapping[str, Run]], num_pipelines: int, **keys: Any) -> list[dict[str, Any]]:
    rows = []
    for scheme in runs[0]:
        rates = [EXAMPLES * num_pipelines / run[scheme].iteration_s for run in runs]
        rows.append(spread_row("examples_per_s", rates, "1/s", scheme=scheme, **keys))
        compared = {} if scheme == Scheme.SDPIPE else {"speedup": Scheme.SDPIPE.value}
        if scheme in (Scheme.ALL_REDUCE, Scheme.AD_PSGD):
            compared |= {"flushed_speedup": FLUSHED, "alone_speedup": ALONE}
        for quantity, ours in compared.items():
            ratios = [run[scheme].iteration_s / run[ours].iteration_s for run in runs]
            rows.append(spread_row(quantity, ratios, over=scheme, **keys))
    return rows


def scaling_rows(
    *, models: Sequence[str], settings: Sequence[str], pipelines: Sequence[int], num_stages: int, num_iterations: int
) -> list[dict[str, Any]]:
    """Return every scheme's speedup over HetPipe by the number of workers (figure 6)."""
    rows = []
    for model, setting, num_pipelines in product(models, settings, pipelines):
        late_s = delays_s(model, setting, (num_iterations, num_stages, num_pipelines), ITERATION, 0)
        runs = _all_schemes(workload_of(model, num_stages), late_s)
        base_s = runs.pop(Scheme.HETPIPE.value).iteration_s
        keys: dict[str, Any] = {"model": model, "setting": setting, "workers": num_stages * num_pipelines}
        for scheme, run in runs.items():
            rows.append(value_row("over_hetpipe", base_s / run.iteration_s, scheme=scheme, **keys))
    return rows


def trace_rows(*, model: str, num_stages: int, num_pipelines: int, num_iterations: int) -> list[dict[str, Any]]:
    """Return all schemes' speed when workers replay the recorded speeds of 16 shared GPUs (figure 7).

    "speed_range" is how far a GPU's speed changes, as a share of its peak (figure 7a), "median_speed_range" the median
    GPU's, and "longer_delay_over_delays_b" what a worker loses beside delays B where passes are four times as long.
    """
    workload, speeds = workload_of(model, num_stages), gpu_performance.load().speeds
    slowness = [[1 / speed for speed in row] for row in speeds]
    shape = num_iterations, num_stages, num_pipelines
    delays = traced_delays_s(slowness, *shape, workload.busy_s)
    runs = _all_schemes(workload, delays)
    runs[NO_WINDOW] = simulate(Scheme.SDPIPE, workload, PAPER, delays, flush=False, window_s=0.0)
    drawn_s = delays_s(model, "B", shape, ITERATION, 0)
    rows = _speed_rows([runs], num_pipelines, mesh=f"{num_stages} x {num_pipelines}")
    ranges = [max(row) - min(row) for row in speeds]
    rows += [value_row("speed_range", size, gpu=number) for number, size in enumerate(ranges)]
    rows.append(value_row("median_speed_range", median(ranges)))
    longer = traced_delays_s(slowness, *shape, LONGER * workload.busy_s)
    rows.append(value_row("longer_delay_over_delays_b", longer.mean() / drawn_s.mean()))
    return [*rows, value_row("delay_over_delays_b", delays.mean() / drawn_s.mean())]


def group_size_rows(
    *, histories: Sequence[int], num_pipelines: int, num_stages: int, num_iterations: int
) -> list[dict[str, Any]]:
    """Return quartiles of the sizes of groups by P, with each kind of settings, under delays B of ResNet-50.

    Beside them stand the rows of `map_rows`, what the released settings gain in speed and what they give up, and the
    sizes in pipelines of one stage.
    """
    shape = num_iterations, num_stages, num_pipelines
    free_s = simulate(
        Scheme.SDPIPE, workload_of(DELAYED[0], num_stages), PAPER, np.zeros(shape), flush=False
    ).iteration_s
    rows = [value_row("delay_over_iteration", DELAYS_S[DELAYED] / free_s)]
    kinds = {"paper": (None, num_stages), "released": (Settings.released(), num_stages), "paper, one stage": (None, 1)}
    for kind, (settings, stages) in kinds.items():
        workload = workload_of(DELAYED[0], stages)
        delays = delays_s(*DELAYED, (num_iterations, stages, num_pipelines), ITERATION, 0)
        base_s = simulate(Scheme.ALL_REDUCE, workload, PAPER, delays).iteration_s
        sdpipe = partial(simulate, Scheme.SDPIPE, workload, PAPER, delays, settings=settings, flush=False)
        for history in histories:
            run = sdpipe(history=history)
            sizes = [len(group.members) for group in run.groups]
            low, middle, high = np.quantile(sizes, [0.25, 0.5, 0.75])
            rows.append(value_row("group_size", middle, "workers", low=low, high=high, P=history, settings=kind))
            rows += _run_rows(run, base_s, num_pipelines, P=history, settings=kind)
    return rows


def own_delays_s(path: str | Path, model: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the delays [K, M, N] that a trace of your own gives a model's workers.

    It is a CSV file without a header, a row an iteration, a column a worker, in any unit of time. A worker is slowed
    down by its ratio to the fastest of the iteration. For its length and more workers see `traced_delays_s`.
    """
    times = np.loadtxt(path, delimiter=",", ndmin=2)
    if times.shape[1] < 2 or not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"{path} holds {times.shape} values; it must be positive times, a column a worker, at least 2")
    slowness = (times / times.min(axis=1, keepdims=True)).T.tolist()
    return traced_delays_s(slowness, *shape, workload_of(model, shape[1]).busy_s)


def map_rows(
    *,
    model: str,
    setting: str,
    histories: Sequence[int],
    windows: Sequence[float],
    mesh: Sequence[int],
    num_iterations: int,
    trace: str = "",
) -> list[dict[str, Any]]:
    """Return SDPipe's speed over All-Reduce's, group sizes and the certificate of connection, by P and T.

    A window is in iterations. Delays are drawn as `setting` says, or come from a `trace`, see `own_delays_s`.
    """
    num_stages, num_pipelines = mesh
    workload = workload_of(model, num_stages)
    shape = num_iterations, num_stages, num_pipelines
    delays = own_delays_s(trace, model, shape) if trace else delays_s(model, setting, shape, ITERATION, 0)
    base_s = simulate(Scheme.ALL_REDUCE, workload, PAPER, delays).iteration_s
    rows = []
    for history, window in product(histories, windows):
        window_s = window * workload.iteration_s
        run = simulate(Scheme.SDPIPE, workload, PAPER, delays, history=history, window_s=window_s)
        rows += _run_rows(run, base_s, num_pipelines, P=history, T=window)
    return rows


def _run_rows(run: Run, base_s: float, num_pipelines: int, **keys: Any) -> list[dict[str, Any]]:
    certificate = certificate_of(run, num_pipelines=num_pipelines, history=keys["P"])
    return [
        value_row("over_all_reduce", base_s / run.iteration_s, **keys),
        value_row("connected_share", certificate.share, **keys),
        value_row("unchecked_share", run.num_unchecked / len(run.groups), **keys),
        value_row("mean_size", fmean(len(group.members) for group in run.groups), "workers", **keys),
        value_row("spread_iterations", spread_iterations(run.groups, num_pipelines), **keys),
    ]


def certificate_of(run: Run, *, num_pipelines: int, history: int) -> Certificate:
    """Look at the runs of P groups until the first worker of a stage has done all its iterations, and leaves."""
    groups: list[Group] = []
    done: Counter[tuple[int, int]] = Counter()  # iterations of each stage's workers
    for group in run.groups:
        groups.append(group)
        done.update((group.stage, worker) for worker in group.members)
        if max(done[group.stage, worker] for worker in group.members) == len(run.ends_s):
            break
    return certify(groups, num_pipelines=num_pipelines, history=history)


def spread_iterations(groups: Sequence[Group], num_pipelines: int) -> float:
    """Return in how many mini-batches an update has reached all workers of stage 0, the mean over updates."""
    masks = [sum(1 << worker for worker in group.members) for group in groups if group.stage == 0]
    everyone, counts = (1 << num_pipelines) - 1, []
    for start in range(0, len(masks), num_pipelines):
        reached, synchronised = masks[start], 0
        for mask in masks[start:]:
            synchronised += mask.bit_count()
            reached |= mask if mask & reached else 0
            if reached == everyone:
                counts.append(synchronised / num_pipelines)
                break
    return fmean(counts) if counts else math.inf


def history_rows(
    *, histories: Sequence[int], mesh: Sequence[int], num_iterations: int, learning_rate: float, seeds: int
) -> list[dict[str, Any]]:
    """Return by P the bound (Eq. 5), the workers' squared distance from their mean, and the mean's squared gradient.

    Each worker trains a linear classifier of digits. Workers average as those of the first of M stages do.
    """
    num_stages, num_pipelines = mesh
    workload, shape = workload_of(DELAYED[0], num_stages), (num_iterations, num_stages, num_pipelines)
    free_s = simulate(Scheme.SDPIPE, workload, PAPER, np.zeros(shape), flush=False).iteration_s
    rows = [value_row("delay_over_iteration", DELAYS_S[DELAYED] / free_s)]
    for history in histories:
        by_seed = []
        for seed in range(seeds):
            delays = delays_s(*DELAYED, shape, ITERATION, seed)
            run = simulate(Scheme.SDPIPE, workload, PAPER, delays, history=history, flush=False)
            groups = [sorted(group.members) for group in run.groups if group.stage == 0]
            by_seed.append(_trained(groups, num_pipelines, learning_rate, seed))
        distances, gradients = zip(*by_seed, strict=True)
        rows.append(spread_row("squared_distance", distances, P=history))
        rows.append(spread_row("squared_gradient", gradients, P=history))
        for smallest in (2, num_pipelines):
            sizes = {"num_pipelines": num_pipelines, "num_stages": num_stages, "n1": smallest, "n2": num_pipelines}
            rows.append(value_row("error_bound", error_bound(0.01, **sizes, history=history), P=history, n1=smallest))
    return rows


def _trained(groups: Sequence[Sequence[int]], num_workers: int, learning_rate: float, seed: int) -> tuple[float, float]:
    """Let each group's members do a mini-batch and average; return the means over the training."""
    loaded = digits.load(instead_of="theorem 1's problem", side_pixels=8, num_colours=1)
    images, wanted = loaded.images.reshape(len(loaded.labels), -1) / 255, np.eye(10)[loaded.labels]

    def gradient(weights: np.ndarray, rows: Any) -> np.ndarray:
        scores = np.exp(images[rows] @ weights)
        return images[rows].T @ (scores / scores.sum(axis=1, keepdims=True) - wanted[rows]) / len(scores)

    weights = np.zeros((num_workers, images.shape[1], 10))
    draws = [np.random.default_rng([seed, worker]) for worker in range(num_workers)]  # the same batches whatever P is
    squares: list[tuple[float, float]] = []
    num_updates = 0
    for members in groups:
        for worker in members:
            rows = draws[worker].integers(len(images), size=CLASSIFIED)
            weights[worker] -= learning_rate * gradient(weights[worker], rows)
        weights[members] = weights[members].mean(axis=0)
        num_updates += len(members)
        if num_updates // num_workers > len(squares):
            mean = weights.mean(axis=0)
            apart = ((weights - mean) ** 2).sum() / num_workers
            squares.append((apart, (gradient(mean, slice(None)) ** 2).sum()))
    distance, squared = np.mean(squares, axis=0)
    return float(distance), float(squared)
