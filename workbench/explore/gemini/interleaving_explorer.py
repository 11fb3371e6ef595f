"""A control over one iteration: link, buffers, safety and replicas, and what they do to its timeline.

Source: thesis, chapter 6 (Gemini), sections 6.5 and 6.7.4. The iteration is one of a few layers as large as those of
GPT-2 40B on machines of the paper's second testbed, `workbench.techniques.gemini.cost`.
Simplified: few layers, so that a picture shows them; the checkpoint is a full model's shard for so many layers.
Left out: variance of idle spans, against which μ is a safety.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from matplotlib.figure import Figure

from workbench.explore.controls import choice, steps
from workbench.explore.explorer import Explorer
from workbench.plots import gantts, kind_legend
from workbench.techniques.gemini.cost import GeminiMachine, Workload, calibrated, phases_of, traffic_of
from workbench.techniques.gemini.method.interleaving import InterleavedIteration, Scheme, interleave
from workbench.techniques.gemini.plots import ITERATION_KINDS

__all__ = ["Interleaving", "compare", "describe", "draw", "explore_interleaving"]

NUM_LAYERS = 4  # as many as a picture shows
MODEL = "GPT-2 40B"
NUM_MACHINES = 16
FREE_BYTES = 256 * 2**20  # of a device, "a few hundred" MB in section 6.5.2
LINKS = (25, 50, 100, 200, 400)  # Gbit/s of a machine
RESERVED_MIB = (8, 32, 128, 512)  # R of a device
NUMS_BUFFERS = (1, 2, 4, 8)  # p
SAFETIES = (0.5, 0.7, 0.9, 1.0)  # μ
COPY_RATES = MappingProxyType({"400 Gbit/s (p4d)": 400, "100 Gbit/s": 100, "50 Gbit/s": 50})
GIGABIT_BYTES = 1e9 / 8
MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Interleaving:
    """An iteration without checkpoints and under a scheme."""

    plain: InterleavedIteration  #: the baseline
    chosen: InterleavedIteration  #: with a checkpoint
    link: int  #: Gbit/s of a machine
    free_bytes: float  #: of a device

    @property
    def overhead(self) -> float:
        """How much longer the iteration is, as a share of the baseline."""
        return self.chosen.iteration_s / self.plain.iteration_s - 1


def compare(
    *, scheme: Scheme, link: int, copy_rate: int, reserved_mib: int, num_buffers: int, safety: float, num_replicas: int
) -> Interleaving:
    """Compute one iteration with a checkpoint and without.

    Args:
        scheme: how chunks are sent.
        link: Gbit/s of a machine.
        copy_rate: Gbit/s of a machine, to host memory.
        reserved_mib: R of a device, in MiB.
        num_buffers: p.
        safety: μ.
        num_replicas: m; m - 1 travel.
    """
    workload = _workload()
    machine = replace(_machine().with_network(link), copy_bytes_per_s=copy_rate * GIGABIT_BYTES)
    parts = phases_of(workload, machine)
    traffic = traffic_of(
        workload,
        machine,
        num_replicas=num_replicas,
        reserved_bytes=reserved_mib * MEBIBYTE,
        num_buffers=num_buffers,
        safety=safety,
        free_bytes=FREE_BYTES,
    )
    plain, chosen = (
        interleave(parts.phases, traffic, each, update_s=parts.update_s) for each in (Scheme.BASELINE, scheme)
    )
    return Interleaving(plain=plain, chosen=chosen, link=link, free_bytes=FREE_BYTES)


def describe(found: Interleaving) -> str:
    """Say in a sentence what the figure shows."""
    chosen = found.chosen
    if not chosen.chunks:
        return f"No checkpoint travels: the network is idle for {chosen.idle_s:.2f} s of {chosen.iteration_s:.2f} s."
    memory = f"{chosen.buffer_bytes / MEBIBYTE:.0f} MiB of buffers"
    memory += ", which are not free: out of memory" if chosen.is_out_of_memory else ""
    return (
        f"{chosen.scheme}: the iteration is {found.overhead:.1%} longer ({chosen.iteration_s:.2f} s). "
        f"{len(chosen.chunks)} chunks take {chosen.checkpoint_s:.2f} s of the network and leave "
        f"{chosen.idle_s:.2f} s idle; {memory}."
    )


def draw(found: Interleaving) -> Figure:
    """Draw the iteration without checkpoints above the one with them, on one scale."""
    out = ", out of memory" if found.chosen.is_out_of_memory else ""
    plain = f"Baseline: {found.plain.iteration_s:.2f} s, {found.link} Gbit/s a machine"
    chosen = f"{found.chosen.scheme}: {found.chosen.iteration_s:.2f} s ({found.overhead:+.1%}){out}"
    axes = gantts({plain: found.plain.timeline, chosen: found.chosen.timeline}, figsize=(9, 5), legend=False)
    kind_legend(axes[0].figure, ITERATION_KINDS)
    return axes[0].figure


def explore_interleaving() -> Explorer[Interleaving]:
    """Return the explorer: seven controls, the timeline of one iteration."""
    return Explorer(
        compare,
        draw,
        describe=describe,
        scheme=choice(
            "scheme",
            {str(each): each for each in Scheme},
            value=Scheme.GEMINI,
            help="How the checkpoint shares the network with training.",
        ),
        link=steps(
            "link",
            LINKS,
            value=100,
            text=lambda rate: f"{rate} Gbit/s",
            help="Of a machine, shared by its eight devices. Training needs it, too.",
        ),
        copy_rate=choice(
            "copying",
            COPY_RATES,
            value=400,
            help="From a machine's devices to its host memory. A chunk's buffer is free when it has been copied.",
        ),
        reserved_mib=steps(
            "R",
            RESERVED_MIB,
            value=128,
            text=lambda size: f"{size} MiB",
            help="Device memory for buffers, in all. Naive takes what its largest chunk needs instead.",
        ),
        num_buffers=steps(
            "p",
            NUMS_BUFFERS,
            value=4,
            text=lambda number: f"{number} buffers",
            help="In how many sub-buffers R is divided. One is unpipelined.",
        ),
        safety=steps(
            "μ",
            SAFETIES,
            value=0.9,
            text=lambda share: f"{share:.0%} of a span",
            help="How much of an idle span is planned with, since the next iteration's may be shorter.",
        ),
        num_replicas=steps(
            "m",
            (1, 2, 3),
            value=2,
            text=lambda number: f"{number} replica{'s' * (number > 1)}",
            help="The local one included, which needs no network.",
        ),
    )


def _workload() -> Workload:
    """Return a model with few of the layers of GPT-2 40B."""
    whole = Workload.named(MODEL)
    return replace(whole, name=f"{NUM_LAYERS} layers of {MODEL}", sizes=replace(whole.sizes, num_layers=NUM_LAYERS))


def _machine() -> GeminiMachine:
    return calibrated().p3dn.of(NUM_MACHINES)
