"""Methods timed in turn on real ranks, and the rows of tables 2 to 9: times in milliseconds, and ratios within rounds.

`speedup` = uncompressed iteration / iteration; one small batch, always the same. Links are slowed until communication
takes the share of an iteration that it has in the paper: in table 4 forward tensor communication takes 150.72 of
646.14 ms without NVLink, in table 9 over table 7 a pipeline boundary takes 88.69 of 1422.4 ms. "With NVLink" is this
machine's loopback; "without" and networks are shaped links.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from statistics import fmean, median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from workbench.cluster import Link
from workbench.launch import Ranks
from workbench.parallel.groups import RecordedTensorGroup
from workbench.parallel.pipeline import open_mesh
from workbench.rows import FEWEST_ROUNDS, median_row, ratio_row, value_row
from workbench.study.breakdown import OPTIMIZER, StageBreakdown, break_down_stages
from workbench.study.timing import FASTEST_BYTES_PER_S, Turns, keep_to_one_core, open_ranks, time_variants
from workbench.study.timing import Trial as TimedTrial
from workbench.timeline import Kind, Recorder, Timeline, chrome_trace

from ..cost import ALL_REDUCES_PER_LAYER, Setting, Variant, read_variant
from ..cost.setting import table_4_ms
from ..training import compressed_pipeline, setting_codec, small_batch

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINE", "PRELOAD", "SMALL_BERT", "Calibration", "Measured", "ShareOf", "TableTimes", "Trial"]
__all__ += ["carried_over_share", "largest_speedup_rows", "measure_on", "measure_table", "turns_of"]
__all__ += ["next_rate", "places_of", "ranks_at_share", "share_row", "trials"]

PRELOAD = ("workbench.models.bert", __name__)
LEARNING_RATE = 1e-4  # Adam's, section 4.1; any rate does, since only the time of a step counts
PARTS = tuple(part.name.removesuffix("_s") for part in fields(StageBreakdown) if part.name != "boundaries_s")
BASELINE = "w/o"
MS_PER_S = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Rows of measured iterations."""

    rows: list[dict]  # medians over rounds with intervals, by method, tp, pp
    trace: dict  # Chrome trace of the last iteration of the last mesh


def trials(
    recorder: Recorder,
    variants: Mapping[str, tuple[Setting, Variant]],
    seed: int,
    device: str = "cpu",
    plain_s: float = 0.0,
) -> dict[str, TimedTrial]:
    """Build the model and the training step of every variant on this rank; all are of one (TP, PP).

    Codecs at the paper's price take the share of `plain_s`, an uncompressed iteration, that they take of table 4's.
    """
    first, _ = next(iter(variants.values()))
    if device == "cpu" and first.num_micro_batches == 1:
        keep_to_one_core()  # with several micro-batches stages work at once, and the scheduler balances them better
    mesh = open_mesh(tensor=first.tp, pipeline=first.pp, device=device)
    mesh = replace(mesh, tensor_group=RecordedTensorGroup(mesh.tensor_group.process_group, recorder=recorder))

    def trial(setting: Setting, variant: Variant) -> TimedTrial:
        least_s = _paper_coding_s(setting, plain_s) if variant is Variant.PRICED else (0.0, 0.0)
        codec = setting_codec(setting, variant, recorder, seed, least_s)
        pipeline = compressed_pipeline(setting, mesh, codec=codec, recorder=recorder, device=device, seed=seed)
        weights = pipeline.module.parameters()
        optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE, fused=True)  # the paper's takes 1 %
        inputs, targets = (tensor.to(device) for tensor in small_batch(setting))

        def step() -> None:
            pipeline.step(inputs, targets)
            with recorder.during(OPTIMIZER, Kind.OTHER):
                optimizer.step()
                optimizer.zero_grad()

        return TimedTrial(step=step)

    return {name: trial(*variant) for name, variant in variants.items()}


def _paper_coding_s(setting: Setting, plain_s: float) -> tuple[float, float]:
    """Return the seconds of encoding and of decoding one message, if all of them take table 4's share of `plain_s`."""
    num_messages = ALL_REDUCES_PER_LAYER * setting.compressed_layers
    whole_ms = table_4_ms(BASELINE, "total")
    encode_s, decode_s = (table_4_ms(setting.method, half) / whole_ms * plain_s for half in ("encode", "decode"))
    return encode_s / num_messages, decode_s / num_messages


def measure_on(
    ranks: Ranks,
    names: Sequence[str],
    meshes: Sequence[tuple[int, int]],
    *,
    num_iterations: int,
    seed: int = 0,
    warmup: int = 1,
    keys: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Measured:
    """Train every method, "w/o" among them, on every (TP, PP); `keys` come into every row, `sizes` into Setting."""
    turns = turns_of(names, num_iterations, warmup=warmup, seed=seed)
    rows, trace = [], {}
    for tp, pp in meshes:
        variants = {name: read_variant(name, tp=tp, pp=pp, **sizes) for name in names}
        plain_s = 0.0
        if any(variant is Variant.PRICED for _, variant in variants.values()):
            few = Turns(rounds=FEWEST_ROUNDS, warmup=2, seed=seed)
            alone = time_variants(ranks, trials, {BASELINE: variants[BASELINE]}, seed, ranks.device, turns=few)
            plain_s = median(alone.iterations_s(BASELINE))
        timed = time_variants(ranks, trials, variants, seed, ranks.device, plain_s, turns=turns)
        stages = {"tp": tp, "num_micro_batches": variants[BASELINE][0].num_micro_batches}
        parts = {
            name: [break_down_stages([turn.actions for turn in taken], **stages) for taken in rounds]
            for name, rounds in timed.rounds.items()
        }
        for name in names:
            rows += _rows(name, parts, {"tp": tp, "pp": pp, **(keys or {})})
        last = max((rounds[-1] for rounds in timed.rounds.values()), key=lambda taken: taken[0].actions[-1].end_s)
        trace = chrome_trace(Timeline.merged([turn.actions for turn in last]), name=last[0].name)
    return Measured(rows=rows, trace=trace)


def turns_of(names: Sequence[str], num_iterations: int, **more: Any) -> Turns:
    """Return the turns of a measurement, or refuse it: too few iterations for an interval, no uncompressed method."""
    if num_iterations < FEWEST_ROUNDS:
        raise ValueError(f"num_iterations is {num_iterations}; it must be at least {FEWEST_ROUNDS} for an interval")
    if BASELINE not in names:
        raise ValueError(f"names is {list(names)}; {BASELINE!r} must be among them, speedups are over it")
    return Turns(rounds=num_iterations, **more)


def _rows(name: str, parts: Mapping[str, Sequence[StageBreakdown]], mesh: Mapping[str, Any]) -> list[dict]:
    """Return the rows of one variant, from the parts of every round of all variants."""

    def seconds(variant: str, part: str) -> list[float]:
        return [getattr(taken, f"{part}_s") for taken in parts[variant]]

    keys = {"method": _row_name(name, parts), **mesh}
    iterations = seconds(name, "iteration")
    rows = [median_row(f"{part}_ms", [MS_PER_S * time for time in seconds(name, part)], "ms", **keys) for part in PARTS]
    for number in range(mesh["pp"] - 1):
        times, plain = ([taken.boundaries_s[number] for taken in parts[variant]] for variant in (name, BASELINE))
        rows.append(median_row("boundary_ms", [MS_PER_S * time for time in times], "ms", **keys, boundary=number))
        rows.append(ratio_row("boundary_share", times, plain, **keys, boundary=number))
    if mesh["pp"] > 1:
        boundaries = [fmean(taken.boundaries_s) for taken in parts[name]]
        rows.append(ratio_row("boundary_of_iteration", boundaries, iterations, **keys))
    rows.append(ratio_row("speedup", seconds(BASELINE, "iteration"), iterations, **keys))
    rows.append(ratio_row("communication_share", seconds(name, "tensor"), iterations, **keys))
    if mesh["tp"] > 1:
        rows.append(ratio_row("tensor_share", seconds(name, "tensor"), seconds(BASELINE, "tensor"), **keys))
    base, _, suffix = name.partition(" ")
    if suffix == "fused" and base in parts:  # the same code, as the paper executes it
        papers, keys = seconds(base, "iteration"), {**keys, "method": base}
        rows.append(ratio_row("speedup_of_fusing", papers, papers, **keys, execution="as in the paper"))
        rows.append(ratio_row("speedup_of_fusing", papers, iterations, **keys, execution="fused"))
    return rows


def _row_name(name: str, names: Container[str]) -> str:
    """Name a method at the paper's price as the paper does, and the same method beside it as today's."""
    priced = f" {Variant.PRICED.value[0]}"
    return f"{name} today" if name + priced in names else name.removesuffix(priced)


# --- links on which communication takes its share

CLOSE_ENOUGH = 0.01  # share of an iteration
SLOWEST_BYTES_PER_S = 1e6  # what shaped hosts can follow, beside the fastest
FARTHEST = 2.0  # a line through two trials is trusted up to this factor of the last rate
NUM_TRIALS = 4  # of rates, at most; the last one checks the one before
APART = 1.05  # closer rates differ by noise alone
HOPELESS = 10.0  # times slower, where no rate gives the share: the next trial tries again
SLOW, CARRIED_OVER, FAST = "slow", "carried over", "fast"
MeshOf = tuple[int, int]  # (TP, PP)
SMALL_BERT = MappingProxyType(
    {"hidden": 256, "layers": 4, "compressed_layers": 2, "value_bytes": 4, "fuse_gradients": True}
)  # an iteration takes some 0.2 s on two cores; half of its layers are compressed, as in the paper
TARGET = MappingProxyType({"tp": 4, "pp": 1, "nvlink": 0})  # where the paper gains most, 17.8 %


class ShareOf(Enum):
    """Part of an iteration that takes the share."""

    TENSOR = "forward tensor communication"  # as measured, from the last rank's entry on
    # Over the link's rate, both directions: where 16 ranks share two cores, a boundary's measured time is mostly the
    # time until its receiver gets a core, which no link makes shorter.
    BOUNDARY = "the bytes of a pipeline boundary"


FIRST_GUESS_BYTES_PER_S = MappingProxyType({ShareOf.TENSOR: 65e6, ShareOf.BOUNDARY: 130e6})  # saves a trial on 2 cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A few uncompressed iterations over one link."""

    bandwidth_bytes_per_s: float  # rate of the link
    share: float  # what the part takes of the iteration
    part_ms: float  # the communication whose share it is
    communication_ms: float  # all communication that is slower over a slower link, the part included
    iteration_ms: float  # the whole iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A link that was slowed or sped up until communication took its share."""

    link: Link  # between hosts
    of: ShareOf  # the part that takes the share
    asked: float  # share that the part was to take, 0..1
    trials: tuple[Trial, ...]  # the rates that were tried; the last one is the link's
    tp: int  # mesh it was calibrated on
    pp: int  # likewise

    def as_record(self) -> dict:
        """Return plain values for a record; `reached` is the share in the last trial."""
        return asdict(self) | {"of": self.of.value, "reached": self.trials[-1].share}


def carried_over_share(share: float, *, tp: int, to_tp: int) -> float:
    """Carry a share measured with few tensor-parallel ranks over to more of them, on as many devices and links alike.

    With one micro-batch the stages work one after another, so a device's computing is divided by the tensor-parallel
    ranks alone. A ring all-reduce over n ranks takes the time of 2·(n - 1)/n messages on each of their links, and the
    backward pass communicates as much as the forward pass. Nothing overlaps: of an iteration of 1, computing is
    1 - 2·s. Hence s' = b·s / (2·b·s + c·(1 - 2·s)) with b = ring(to_tp) / ring(tp) and c = tp / to_tp. From table 4's
    150.72 of 646.14 ms: b = 1.5, c = 0.5, s' = 36.2 % at TP 4.
    """
    _check_share(share)
    for name, ranks in (("tp", tp), ("to_tp", to_tp)):
        if ranks < 2:
            raise ValueError(f"{name} is {ranks}; it must be at least 2, or nothing is communicated")
    ring, to_ring = (2 * (ranks - 1) / ranks for ranks in (tp, to_tp))
    communication = share * to_ring / ring
    return communication / (2 * communication + (1 - 2 * share) * tp / to_tp)


def _check_share(share: float) -> None:
    if not 0 < share < 0.5:
        rule = "it must be in 0 < share < 0.5, since each forward message has a backward twin"
        raise ValueError(f"share is {share}; {rule}")


@contextmanager
def ranks_at_share(
    share: float, *, of: ShareOf = ShareOf.TENSOR, tp: int = 2, pp: int = 2, num_hosts: int = 4, seed: int = 0, **sizes
) -> Iterator[tuple[Ranks, Calibration]]:
    """Open ranks over the link on which communication takes a share of an uncompressed iteration; close them after."""
    _check_share(share)
    link = Link(bandwidth_bytes_per_s=FIRST_GUESS_BYTES_PER_S[of], source="where the calibration starts")
    setting, trials = Setting(tp=tp, pp=pp, **sizes), []
    few: dict[str, Any] = {"num_iterations": FEWEST_ROUNDS, "warmup": 2, "seed": seed, **sizes}
    for number in range(1, NUM_TRIALS + 1):
        with open_ranks(tp * pp, link=link, num_hosts=num_hosts, preload=PRELOAD) as ranks:
            rows = measure_on(ranks, [BASELINE], [(tp, pp)], **few).rows
            trials.append(_trial(rows, link, of, setting, num_hosts))
            if number == NUM_TRIALS or abs(trials[-1].share - share) < CLOSE_ENOUGH:
                yield ranks, Calibration(link=link, of=of, asked=share, trials=tuple(trials), tp=tp, pp=pp)
                return
        source = f"calibrated: {of.value} takes about {share:.1%} of an iteration"
        link = replace(link, bandwidth_bytes_per_s=next_rate(trials, share), source=source)


def next_rate(trials: Sequence[Trial], share: float) -> float:
    """Choose the bandwidth to try next, in bytes/s.

    With a single trial all communication is proportional to x, the seconds a byte takes, and the rest of the iteration
    stays: part·x / (rest + communication·x) = share gives x. Through two trials the part and the iteration are lines in
    x; where they are in the ratio `share` is the next x, unless that leads far away or noise rules: the two rates are
    close, or the slower link gave the smaller share.
    """
    last = trials[-1]
    beyond_ms = last.part_ms - share * last.communication_ms
    rest_ms = last.iteration_ms - last.communication_ms
    slower = share * rest_ms / beyond_ms if beyond_ms > 0 else HOPELESS
    if len(trials) > 1:
        x_before, x_last = (1 / trial.bandwidth_bytes_per_s for trial in trials[-2:])
        missing_before, missing = (share * trial.iteration_ms - trial.part_ms for trial in trials[-2:])
        are_apart = max(x_before / x_last, x_last / x_before) >= APART
        gained_per_x = (missing_before - missing) / (x_last - x_before) if are_apart else 0.0
        factor = 1 + missing / gained_per_x / x_last if gained_per_x > 0 else 0.0
        slower = factor if 1 / FARTHEST < factor < FARTHEST else slower
    return min(max(last.bandwidth_bytes_per_s / slower, SLOWEST_BYTES_PER_S), FASTEST_BYTES_PER_S)


def share_row(rows: Sequence[Mapping], link: Link, of: ShareOf, setting: Setting, num_hosts: int) -> dict:
    """Return the share of the uncompressed iterations that a part took: {"value", "low", "high"}."""
    plain = {row["quantity"]: row for row in rows if row["method"] == BASELINE and "boundary" not in row}
    if of is ShareOf.TENSOR:
        return {name: plain["communication_share"][name] for name in ("value", "low", "high")}
    boundary_ms, iteration_ms = _boundary_ms(link, setting, num_hosts), plain["iteration_ms"]
    turned = {"value": "value", "low": "high", "high": "low"}  # a longer iteration makes the share smaller
    return {name: boundary_ms / iteration_ms[other] for name, other in turned.items()}


def _boundary_ms(link: Link, setting: Setting, num_hosts: int) -> float:
    """Return the transfer time of an iteration's messages and gradients over one boundary, at the link's rate."""
    ranks_of_a_host = setting.tp * setting.pp // num_hosts
    if setting.tp % ranks_of_a_host:
        rule = f"it must be a multiple of the {ranks_of_a_host} ranks of a host, or boundaries differ"
        raise ValueError(f"tp is {setting.tp}; {rule}")
    messages = 2 * setting.num_micro_batches * ranks_of_a_host  # all ranks of a host share its card
    return 1e3 * messages * setting.activation_bytes() / link.bandwidth_bytes_per_s


def _trial(rows: Sequence[Mapping], link: Link, of: ShareOf, setting: Setting, num_hosts: int) -> Trial:
    boundaries_ms = sum(row["value"] for row in rows if row["quantity"] == "boundary_ms")
    times = {row["quantity"]: row["value"] for row in rows if row["unit"] == "ms" and "boundary" not in row}
    if of is ShareOf.TENSOR:
        part_ms, communication_ms = times["tensor_ms"], times["tensor_ms"] + times["tensor_backward_ms"] + boundaries_ms
    else:  # with several micro-batches boundaries overlap: an iteration becomes longer by one of them at most
        part_ms = communication_ms = _boundary_ms(link, setting, num_hosts)
    return Trial(
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        share=share_row(rows, link, of, setting, num_hosts)["value"],
        part_ms=part_ms,
        communication_ms=communication_ms,
        iteration_ms=times["iteration_ms"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TableTimes:
    """Measurements for a table."""

    # As of `measure_on`, with the keys link, nvlink, micro_batch and sequence; for each calibrated link share_error, by
    # which the measured share lies above the asked one; for several links speedup_by_link, without the key nvlink.
    rows: list[dict]
    trace: dict  # Chrome trace of one iteration
    hosts: list[dict]  # descriptions of the shaped hosts
    calibrations: tuple[Calibration, ...]  # one for each link that is not this machine's loopback


def measure_table(
    methods: Sequence[str],
    meshes: Sequence[Sequence[int]],
    *,
    links: Sequence[str],
    batches: Sequence[Sequence[int]],
    share: float,
    share_of: str,
    share_mesh: Sequence[int],
    num_hosts: int,
    num_iterations: int,
    num_iterations_over: Mapping[str, int] | None = None,
    seed: int = 0,
    **sizes: Any,
) -> TableTimes:
    """Measure all methods, "w/o" among them and perhaps with variants, on all meshes, links and batches.

    Args:
        meshes: (TP, PP) pairs with one product.
        links: Of "slow", the calibrated one; "fast", the loopback; "carried over", for each mesh with more
            tensor-parallel ranks than `share_mesh` a link on which they communicate as `carried_over_share` says.
        batches: (micro-batch, sequence) pairs; links are calibrated on the first one.
        share, share_of, share_mesh: Share of an uncompressed iteration over the slow link that communication takes, the
            name of a ShareOf, such as "TENSOR", and the (TP, PP) that the share belongs to.
        num_iterations_over: A link's name to another number of iterations, where an interval has to be narrow.
        sizes: Further fields of Setting.
    """
    pairs: list[MeshOf] = [(tp, pp) for tp, pp in meshes]
    first_mesh: MeshOf = (share_mesh[0], share_mesh[1])
    if unknown := set(links) - {SLOW, CARRIED_OVER, FAST}:
        raise ValueError(f"links is {sorted(unknown)}; it must be of {[SLOW, CARRIED_OVER, FAST]}")
    if SLOW in links and first_mesh not in pairs:
        raise ValueError(f"share_mesh is {first_mesh}; it must be one of meshes, {pairs}, where its share is measured")
    rounds = dict.fromkeys(links, num_iterations) | dict(num_iterations_over or {})
    if unknown := set(rounds) - set(links):
        raise ValueError(f"num_iterations_over is for {sorted(unknown)}; it must be for links of {list(links)}")
    for number in rounds.values():
        turns_of(methods, number)
    of = ShareOf[share_of]
    shapes = [{"micro_batch": micro_batch, "sequence": sequence} for micro_batch, sequence in batches]
    rows, hosts, calibrations = [], [], []
    for link, over, link_share in places_of(links, pairs, share, first_mesh):
        (tp, pp), keys = over[0], {"link": link, "nvlink": int(link == FAST)}
        first: dict[str, Any] = {"tp": tp, "pp": pp, **shapes[0]}
        here, calibration = [], None
        with ExitStack() as stack:
            if link_share is None:
                ranks = stack.enter_context(open_ranks(tp * pp, preload=PRELOAD))
            else:
                opening = ranks_at_share(link_share, of=of, num_hosts=num_hosts, seed=seed, **first, **sizes)
                ranks, calibration = stack.enter_context(opening)
            for shape in shapes:
                common = {"num_iterations": rounds[link], "seed": seed, **shape, **sizes}
                measured = measure_on(ranks, methods, over, keys=keys | shape, **common)
                here += measured.rows
        if calibration is not None:  # by how much the share in the measurement lies above the one that was asked for
            at_first = {"link": link, **first}
            plain = [row for row in here if at_first.items() <= row.items()]
            reached = share_row(plain, calibration.link, of, Setting(**first, **sizes), num_hosts)
            above = {name: value - calibration.asked for name, value in reached.items()}
            here.append(value_row("share_error", above.pop("value"), **above, of=of.value, **at_first))
            hosts.append(ranks.hosts)
            calibrations.append(calibration)
        rows += here
    if len(links) > 1:  # speedups again, without the paper's key nvlink, so that a method's stand side by side
        speedups = [row for row in rows if row["quantity"] == "speedup"]
        plain = [{name: key for name, key in row.items() if name != "nvlink"} for row in speedups]
        rows += [row | {"quantity": "speedup_by_link"} for row in plain]
    return TableTimes(rows=rows, trace=measured.trace, hosts=hosts, calibrations=tuple(calibrations))


def places_of(
    links: Sequence[str], meshes: Sequence[MeshOf], share: float, share_mesh: MeshOf
) -> Iterator[tuple[str, tuple[MeshOf, ...], float | None]]:
    """Yield each link with the meshes measured over it, and the share of communication on the first; None: loopback."""
    for link in links:
        if link == FAST:
            yield link, tuple(meshes), None
        elif link == SLOW:
            yield link, (share_mesh, *(mesh for mesh in meshes if mesh != share_mesh)), share
        else:
            for mesh in meshes:
                if mesh[0] > share_mesh[0]:
                    yield link, (mesh,), carried_over_share(share, tp=share_mesh[0], to_tp=mesh[0])


def largest_speedup_rows(rows: Iterable[Mapping], published: pd.DataFrame) -> list[dict[str, Any]]:
    """Put the speedup of the paper's fastest learned code, at TP 4 without NVLink, beside ours of the same code.

    Rows of quantity largest_speedup: published and measured (key of), for each link and each way to execute the code
    (keys link, execution); none where either side has no such setting.
    """
    ours = [row for row in rows if row["quantity"] == "speedup" and TARGET.items() <= row.items()]
    if "nvlink" not in published or not ours:
        return []
    papers = published[(published[list(TARGET)] == list(TARGET.values())).all(axis=1)]
    largest = papers.loc[papers.value.idxmax()]
    executions = {largest.method: "as in the paper", f"{largest.method} fused": "fused"}
    beside = []
    for row in ours:
        if row["method"] in executions:
            keys: dict[str, Any] = {"link": row["link"], "execution": executions[row["method"]]}
            keys_and_spread = {**keys, "low": row["low"], "high": row["high"]}
            beside.append(value_row("largest_speedup", float(largest.value), **keys, of="published"))
            beside.append(value_row("largest_speedup", row["value"], **keys_and_spread, of="measured"))
    return beside
