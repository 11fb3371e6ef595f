"""What the tasks of an option take on a cluster of machines with several GPUs, and F(S), the time of an iteration.

A tensor is followed along its option: which part of it a GPU holds, in how many messages, and how many GPUs of a
machine hold one. An operation takes one start-up, an all-reduce two, as in the authors' planner. All GPUs of a machine
share its network card, and each has a link of its own inside. A machine's CPUs work for all of its GPUs.

Of the t seconds of an operation, GPUs take none. A CPU that computes also sends: w = start-ups * a + bytes * b of them,
with a and b by link (`CpuMachines`). The device's queue serves w before the link's serves t - w.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.timeline.gradients import Gradients
from workbench.timeline.queues import Chain, Chains, Queues

from .exchange import layouts_of, sizes_of
from .options import Comm, Comp, Option, Phase, Routine, compression_options

__all__ = ["RESOURCES", "CpuMachines", "Job", "Step", "steps_of"]

FP32_BYTES = 4
RESOURCES = ("GPU", "CPU", "inside machines", "between machines")  # 0 is the device of `timeline.queues`
GPU, CPU, INTRA, INTER = range(4)
LONGEST, LONGEST_WITH_WORK = 12, 16  # tasks of an option; with the device's work before each operation


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuMachines(Machines):
    """Machines whose devices are CPUs: what an operation on a link takes of the device itself, in the form of a link.

    The seconds are those of a device with its share of the cores: processor seconds times ranks a core.
    """

    intra_work: Link  # latency: seconds of a start-up; bandwidth: bytes that the link carries in a second of work
    inter_work: Link


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One task on its resource: `times` messages of a `part` of the tensor each."""

    resource: int  # of RESOURCES
    kind: str  # "encode", "decode", "send", or "send compressed"
    times: float
    part: float
    startups: int = 0  # of the link
    copies: int = 1  # messages that a decoding adds up, among `times`


@cache
def steps_of(option: Option, num_machines: int, gpus_per_machine: int) -> tuple[Step, ...]:
    """Follow a tensor along an option.

    Raises:
        ValueError: if not every GPU holds the whole sum in the end.
    """
    size, steps = sizes_of(num_machines, gpus_per_machine), []
    for task, layout in zip(option.tasks, layouts_of(option, num_machines, gpus_per_machine)[:-1], strict=True):
        part, holders = 1 / layout.split, gpus_per_machine if layout.rooted <= {Phase.INTER} else 1
        if isinstance(task, Comm):
            part *= holders if task.phase is Phase.INTER else 1
            steps.append(_sent(task, size[task.phase], part, layout.copies, gpus_per_machine))
            continue
        on_gpu, kind = task.processor is Processor.GPU, "encode" if isinstance(task, Comp) else "decode"
        # GPUs work side by side, the CPUs of a machine for one GPU after the other.
        messages = layout.copies * (1 if on_gpu else holders)
        resource, copies = GPU if on_gpu else CPU, layout.copies
        steps.append(Step(resource=resource, kind=kind, times=messages, part=part, copies=copies))
    return tuple(steps)


def _sent(task: Comm, n: int, part: float, copies: int, gpus_per_machine: int) -> Step:
    """Return what the busiest link of a phase carries in one operation of n ranks."""
    routine = task.routine
    times = {
        Routine.ALL_REDUCE: 2 * (n - 1) / n,
        Routine.REDUCE_SCATTER: (n - 1) / n,
        Routine.REDUCE: 1.0 if n > 1 else 0.0,  # in pieces, along a chain
        Routine.ALL_GATHER: n - 1.0,
        Routine.BROADCAST: 1.0 if n > 1 else 0.0,
        Routine.ALL_TO_ALL: (n - 1) / n,
        Routine.GATHER: n - 1.0,
    }[routine]
    is_inside = task.phase is Phase.INTRA or (task.phase is Phase.FLAT and n == gpus_per_machine)
    if task.phase is Phase.FLAT and not is_inside:
        outside = n - gpus_per_machine  # a ring crosses each card once; these send to every GPU of another machine
        times = {Routine.ALL_TO_ALL: gpus_per_machine * outside / n, Routine.GATHER: float(outside)}.get(routine, times)
    kind = "send compressed" if task.is_compressed else "send"
    startups = 0 if n == 1 else 2 if routine is Routine.ALL_REDUCE else 1
    resource = INTRA if is_inside else INTER
    return Step(resource=resource, kind=kind, times=times * copies, part=part, startups=startups)


class Job:
    """A training job: its gradients, where they are computed, and the codec; F(S) of its strategies.

    Args:
        gradients: of the model, the first ready first.
        machines: of the cluster.
        codec: what compressing takes.
        options: that a strategy may choose from; by default the whole tree.
    """

    def __init__(
        self, gradients: Gradients, machines: Machines, codec: CodecTimes, options: Sequence[Option] | None = None
    ):
        self.gradients, self.machines, self.codec = gradients, machines, codec
        self.options = compression_options() if options is None else tuple(options)
        self._place = machines.num_machines, machines.gpus_per_machine
        self.sizes = tuple(sorted(set(gradients.num_elements)))
        self._rows = {size: row for row, size in enumerate(self.sizes)}
        self._seconds: dict[Option, np.ndarray] = {}
        self._work = {}
        if isinstance(machines, CpuMachines):
            self._work = {INTRA: machines.intra_work, INTER: machines.inter_work}

    def chain(self, option: Option, num_elements: int) -> tuple[tuple[int, float], ...]:
        """Return resource and seconds of each task of an option, for a tensor of one of the job's `sizes`.

        On `CpuMachines` the device's work is a task of its own before each operation.
        """
        seconds = self.seconds(option)[:, self._rows[num_elements]].tolist()
        return tuple(zip(self.resources(option), seconds, strict=True))

    def steps(self, option: Option) -> tuple[Step, ...]:
        """Return an option's tasks on their resources."""
        return steps_of(option, *self._place)

    def resources(self, option: Option) -> tuple[int, ...]:
        """Return the resource of each task of a chain."""
        resources: list[int] = []
        for step in self.steps(option):
            resources += [GPU, step.resource] if step.resource in self._work else [step.resource]
        return tuple(resources)

    def seconds(self, option: Option) -> np.ndarray:
        """Return the seconds of a chain's tasks for tensors of all `sizes` [tasks, sizes]."""
        if option not in self._seconds:
            sizes, rows = np.array(self.sizes, float), []
            for step in self.steps(option):
                taken_s = self._taken_s(step, sizes)
                if step.resource in self._work:
                    worked_s = np.minimum(taken_s, self._sent_s(step, sizes, self._work[step.resource]))
                    rows.append(worked_s)
                    taken_s = taken_s - worked_s
                rows.append(taken_s)
            self._seconds[option] = np.array(rows)
        return self._seconds[option]

    def _taken_s(self, step: Step, num_elements: np.ndarray) -> np.ndarray:
        elements = step.part * num_elements
        if step.kind in ("encode", "decode"):
            table = self.codec.encode_s if step.kind == "encode" else self.codec.decode_s
            calls = step.times / (step.copies if self.codec.decodes_at_once else 1)
            return calls * table[Processor.GPU if step.resource == GPU else Processor.CPU](elements)
        link = self.machines.intra if step.resource == INTRA else self.machines.inter
        return self._sent_s(step, num_elements, link)

    def _sent_s(self, step: Step, num_elements: np.ndarray, link: Link) -> np.ndarray:
        elements = step.part * num_elements
        sent_bytes = FP32_BYTES if step.kind == "send" else self.codec.sent_bytes
        return step.startups * link.latency_s + step.times * elements * sent_bytes / link.bandwidth_bytes_per_s

    def queues(self, strategy: Sequence[Option]) -> Queues:
        """Return the timeline of a strategy, whose changes are evaluated fast."""
        gradients = self.gradients
        if len(strategy) != gradients.num_tensors:
            rule = f"it must have one for each of the {gradients.num_tensors} tensors of {gradients.name}"
            raise ValueError(f"strategy has {len(strategy)} options; {rule}")
        return Queues(gradients.gap_s, self.packed(strategy, gradients.num_elements))

    def packed(self, options: Sequence[Option], num_elements: Sequence[int]) -> Chains:
        """Return the chains of options, each for a tensor of so many elements."""
        return self._packed([self.chain(*pair) for pair in zip(options, num_elements, strict=True)])

    def _packed(self, chains: Sequence[Chain]) -> Chains:
        longest = LONGEST_WITH_WORK if self._work else LONGEST
        return Chains.of(chains, num_resources=len(RESOURCES), longest=longest)

    def iteration_s(self, strategy: Sequence[Option]) -> float:
        """Return F(S): the forward pass, and the backward pass until all gradients are synchronised."""
        return self.gradients.forward_s + self.queues(strategy).duration_s

    def half_precision_s(self, cast_s: float) -> float:
        """Return F if all gradients are sent in FP16, to which and from which a GPU casts each in `cast_s`."""
        machines = replace(self.machines, intra=_faster(self.machines.intra), inter=_faster(self.machines.inter))
        if isinstance(machines, CpuMachines):
            work = _faster(machines.intra_work), _faster(machines.inter_work)
            machines = replace(machines, intra_work=work[0], inter_work=work[1])
        plain, cast = Job(self.gradients, machines, self.codec), (GPU, cast_s)
        chains = [(cast, *plain.chain(self.uncompressed, size), cast) for size in self.gradients.num_elements]
        return self.gradients.forward_s + Queues(self.gradients.gap_s, plain._packed(chains)).duration_s

    @property
    def without_work(self) -> "Job":
        """The same job on links that take nothing of the device."""
        num_machines, gpus_per_machine = self._place
        links = {"intra": self.machines.intra, "inter": self.machines.inter}
        machines = Machines(num_machines=num_machines, gpus_per_machine=gpus_per_machine, **links)
        return Job(self.gradients, machines, self.codec, self.options)

    @cached_property
    def uncompressed(self) -> Option:
        """The hierarchical all-reduce without compression: FP32."""
        plain = "intra.reduce-scatter inter.allreduce intra.allgather"
        return Option.parse(plain if self.machines.num_machines > 1 else "flat.allreduce")


def _faster(link: Link) -> Link:
    """Return a link that carries twice as many values."""
    return replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s)
