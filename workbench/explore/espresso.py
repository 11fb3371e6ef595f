"""The lesson on choosing what to compress: three gradients by hand, the search step by step, exercises."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from matplotlib.figure import Figure

from workbench.cluster.machines import GIGABIT_BYTES_PER_S, Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.explore.code_exercises import check_on_cases
from workbench.explore.exercises import Exercise, Feedback, Mistake
from workbench.explore.explorer import Explorer, choice, steps
from workbench.plots import gantts, kind_legend
from workbench.techniques.espresso.counted import ROUTINES, worked_examples
from workbench.techniques.espresso.method import Comm, Comp, Decomp, Option, compression_options
from workbench.techniques.espresso.method.job import RESOURCES, Job, steps_of
from workbench.timeline import Action, Kind, Timeline
from workbench.timeline.gradients import Gradients
from workbench.timeline.queues import queues_by_definition

__all__ = ["NONE", "OPTIONS", "SEARCHED", "Compared", "SearchStep", "benefit_ratio", "check_sent_bytes", "check_spans"]
__all__ += ["compare", "explore_search", "explore_strategy", "search_steps", "tensor_to_compress", "toy_job"]

WHOLE = "intra.reduce-scatter comp.{0} inter.allgather* decomp.{0} intra.allgather"
PARTS = "intra.reduce-scatter comp.{0} inter.alltoall* decomp.{0} comp.{0} inter.allgather* decomp.{0} intra.allgather"
INSIDE = "comp.gpu intra.alltoall* decomp.gpu comp.gpu inter.allgather* decomp.gpu comp.gpu intra.allgather* decomp.gpu"
NONE = "not compressed"
OPTIONS = {  # some of the 4,341, by a name for people
    NONE: "intra.reduce-scatter inter.allreduce intra.allgather",
    "GPU, Allgather": WHOLE.format("gpu"),
    "GPU, Alltoall/Allgather": PARTS.format("gpu"),
    "GPU, inside machines too": INSIDE,
    "CPU, Allgather": WHOLE.format("cpu"),
    "CPU, Alltoall/Allgather": PARTS.format("cpu"),
}
NAMES = {text: name for name, text in OPTIONS.items()}
KIND_OF = {Comp: Kind.ENCODE, Comm: Kind.COMMUNICATE, Decomp: Kind.DECODE}
KINDS = {"computes": Kind.COMPUTE, "compresses": Kind.ENCODE, "sends": Kind.COMMUNICATE, "decompresses": Kind.DECODE}
# Elements and seconds of the gradients of `explore_search`.
SEARCHED = [1_000_000, 4_000_000, 500_000, 4_000_000, 2_000_000, 4_000_000], [1e-3, 4e-3, 2e-3, 3e-3, 2e-3, 2e-3]
NUM_CASES, NUM_OPTIONS = 200, 40  # on which a reader's function is checked


def toy_job(num_elements: Sequence[int], gap_s: Sequence[float], gbit: float, inside_gbit: float = 160) -> Job:
    """Return a job on four machines of four GPUs, with a codec of one bit an element."""

    def seconds(factor: float) -> dict:
        gpu, cpu = (2e-4, 2e-10), (1e-4, 4e-10)  # a call, an element
        return {p: lambda n, t=t: t[0] + factor * t[1] * n for p, t in zip(Processor, (gpu, cpu), strict=True)}

    links = [Link(bandwidth_bytes_per_s=rate * GIGABIT_BYTES_PER_S, latency_s=2e-5) for rate in (inside_gbit, gbit)]
    return Job(
        Gradients(
            name="toy",
            tensors=tuple(f"T{number}" for number in range(len(num_elements))),
            num_elements=tuple(num_elements),
            gap_s=tuple(gap_s),
            forward_s=0.0,
            source="made up",
        ),
        Machines(num_machines=4, gpus_per_machine=4, intra=links[0], inter=links[1]),
        CodecTimes(name="one bit", encode_s=seconds(1.0), decode_s=seconds(0.25), sent_bytes=1 / 8),
        [Option.parse(text) for text in OPTIONS.values()],
    )


def _timeline(job: Job, strategy: Sequence[Option]) -> Timeline:
    actions = []
    for tensor, spans in enumerate(job.queues(strategy).placed()):
        tasks = [(RESOURCES[0], Kind.COMPUTE)]
        for resource, task in zip(job.resources(strategy[tensor]), strategy[tensor].tasks, strict=True):
            tasks.append((RESOURCES[resource], KIND_OF[type(task)]))
        for (name, kind), (start_s, end_s) in zip(tasks, spans, strict=True):
            actions.append(Action(resource=name, start_s=start_s, end_s=end_s, kind=kind, label=str(tensor)))
    return Timeline(actions=tuple(actions), resources=RESOURCES)


def _draw(timelines: Mapping[str, Timeline]) -> Figure:
    drawn = gantts(timelines, figsize=(10, 1.9 * len(timelines) + 0.7), legend=False)[0].figure
    kind_legend(drawn, KINDS, num_rows=1)
    return drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A reader's strategy, and the best of all that the named options allow."""

    chosen: Timeline
    best: Timeline
    best_names: tuple[str, ...]  # of the options, one a tensor
    plain_s: float  # without compression


def compare(*, t0: str, t1: str, t2: str, gbit: float, inside_gbit: float = 160) -> Compared:
    """Compute three equal gradients for 3 ms each and synchronise them by named options."""
    job = toy_job([4_000_000] * 3, [3e-3] * 3, gbit, inside_gbit)
    best = min(product(job.options, repeat=3), key=job.iteration_s)
    return Compared(
        chosen=_timeline(job, [Option.parse(OPTIONS[name]) for name in (t0, t1, t2)]),
        best=_timeline(job, best),
        best_names=tuple(NAMES[str(option)] for option in best),
        plain_s=job.iteration_s([job.uncompressed] * 3),
    )


def _draw_compared(compared: Compared) -> Figure:
    best = f"the best, {1e3 * compared.best.end_s:.2f} ms: {' | '.join(compared.best_names)}"
    return _draw({f"yours, {1e3 * compared.chosen.end_s:.2f} ms": compared.chosen, best: compared.best})


def _describe(compared: Compared) -> str:
    yours_s, best_s = compared.chosen.end_s, compared.best.end_s
    yours = f"F = {1e3 * yours_s:.2f} ms, {compared.plain_s / yours_s:.2f} times as fast as without compression"
    return f"{yours}; the best strategy takes {1e3 * best_s:.2f} ms, yours {100 * (yours_s / best_s - 1):.0f} % more."


def explore_strategy() -> Explorer[Compared]:
    """Return the control: the option of each gradient, and the links."""
    return Explorer(
        compare,
        _draw_compared,
        describe=_describe,
        t0=choice("T0", OPTIONS.keys(), value=NONE, help="How T0 is synchronised: it is ready first."),
        t1=choice("T1", OPTIONS.keys(), value=NONE, help="How T1 is synchronised."),
        t2=choice("T2", OPTIONS.keys(), value="GPU, Allgather", help="How T2 is synchronised: it is ready last."),
        gbit=steps("Gbit/s", (10, 25, 50, 100, 200), value=50, help="What a link between machines carries."),
        inside_gbit=steps("inside", (16, 32, 160), value=160, help="Gbit/s of a GPU's link inside its machine."),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchStep:
    """A step of algorithm 4.1."""

    job: Job
    tensor: int | None  # that was tried; None before the first
    strategy: tuple[Option, ...]  # after it
    removed: frozenset[int]  # ruled out by now: sent before a bubble without compression


def search_steps(job: Job) -> tuple[SearchStep, ...]:
    """Run algorithm 4.1 as it is printed, on the job's options for GPUs."""
    sizes, strategy = job.gradients.num_elements, (job.uncompressed,) * job.gradients.num_tensors
    options = [option for option in job.options if option.processors == {Processor.GPU}]
    removed = frozenset(_before_bubbles(job, strategy))
    taken_steps = [SearchStep(job=job, tensor=None, strategy=strategy, removed=removed)]
    for tensor in sorted(range(len(sizes)), key=lambda number: (-sizes[number], -number)):
        if tensor not in removed:
            changed = [(*strategy[:tensor], option, *strategy[tensor + 1 :]) for option in options]
            strategy = min([strategy, *changed], key=job.iteration_s)
            removed |= _before_bubbles(job, strategy)
            taken_steps.append(SearchStep(job=job, tensor=tensor, strategy=strategy, removed=removed))
    return tuple(taken_steps)


def _before_bubbles(job: Job, strategy: Sequence[Option]) -> set[int]:
    """Return the uncompressed tensors whose communication has ended before the end of a bubble: Remove()."""
    sent = [action for action in _timeline(job, strategy).actions if action.kind is Kind.COMMUNICATE]
    of_tensor = [[action for action in sent if action.label == str(number)] for number in range(len(strategy))]
    starts_s = [min(action.start_s for action in actions) for actions in of_tensor]
    bubbles_s = [now_s for now_s in starts_s if all(action.end_s < now_s for action in sent if action.start_s < now_s)]
    ends_s = [max(action.end_s for action in actions) for actions in of_tensor]
    return {t for t, end_s in enumerate(ends_s) if end_s < max(bubbles_s) and not strategy[t].is_compressed}


def _draw_step(step: SearchStep) -> Figure:
    what = "before the search" if step.tensor is None else f"T{step.tensor}: {NAMES[str(step.strategy[step.tensor])]}"
    return _draw({what: _timeline(step.job, step.strategy)})


def _describe_step(step: SearchStep) -> str:
    tried = "No tensor was tried yet" if step.tensor is None else f"T{step.tensor} was tried"
    compressed = [f"T{number}" for number, option in enumerate(step.strategy) if option.is_compressed]
    removed = ", ".join(f"T{number}" for number in sorted(step.removed)) or "none"
    tried += f": F = {1e3 * step.job.iteration_s(step.strategy):.2f} ms"
    return f"{tried}; compressed: {', '.join(compressed) or 'none'}; ruled out, before a bubble: {removed}."


def explore_search() -> Explorer[SearchStep]:
    """Return the control that goes through algorithm 4.1 step by step; it stays at the last step."""

    def at(*, number: int, gbit: float) -> SearchStep:
        taken_steps = search_steps(toy_job(*SEARCHED, gbit))
        return taken_steps[min(number, len(taken_steps) - 1)]

    return Explorer(
        at,
        _draw_step,
        describe=_describe_step,
        number=steps("step", range(6), value=0, help="How many tensors were tried."),
        gbit=steps("Gbit/s", (25, 50, 100), value=25, help="What a link between machines carries."),
    )


def benefit_ratio() -> Exercise:
    """Return the exercise on figure 4.10's ratio."""
    return Exercise(
        question="A tensor is sent in 100 ms, compressed in 5 ms; its codec takes 19 ms. What is its benefit ratio?",
        answer=(100 - 5) / 19,
        hint="Divide what communication becomes shorter by what compression costs.",
        reason="(100 - 5) / 19 = 5. It looks at one tensor alone: a tensor before a bubble gains nothing at any ratio.",
        mistakes=(Mistake(answer=100 / 19, hint="The compressed tensor has to be sent, too."),),
    )


def tensor_to_compress() -> Exercise:
    """Return the exercise on figure 4.9: which of three tensors gains most."""
    slots = [example.timeline.end_s for name, example in worked_examples("4.9").items() if name != "a: none"]
    return Exercise(
        question="T0, T1, T2 are computed in 1, 4, 2 slots and sent in 2, 5, 5, or in 1 each after 1 slot of "
        "compression on the GPU. If just one may be compressed, which one? (0, 1 or 2)",
        answer=float(slots.index(min(slots))),
        hint="Its compression delays the next computation. Is there a tensor whose compression delays none?",
        reason="With T0 compressed the iteration takes 16 slots, with T1 13, with T2 11; with none 15.",
        mistakes=(Mistake(answer=0.0, hint="The link waits for T1 in any case: there is a bubble."),),
    )


SENT_MISTAKES = {
    "Whole messages to all are an Allgather alone.": lambda n, size, ratio: (n - 1) * ratio * size,
    "What is sent is compressed.": lambda n, size, ratio: 2 * (n - 1) / n * size,
    "A GPU sends nothing to itself.": lambda n, size, ratio: 2 * ratio * size,
    "The sums are sent, too.": lambda n, size, ratio: (n - 1) / n * ratio * size,
}


def check_sent_bytes(sent_bytes: Callable | None) -> Feedback:
    """Check a reader's `sent_bytes(num_gpus, tensor_bytes, ratio)` of Alltoall/Allgather on random cases."""
    draw, option, cases, expected = random.Random(0), Option.parse(ROUTINES["Alltoall/Allgather"]), [], []
    for _ in range(NUM_CASES):
        num_gpus, tensor_bytes, ratio = draw.randint(2, 64), 4 * draw.randint(1, 10**8), draw.choice([1 / 100, 1 / 32])
        sent = [step for step in steps_of(option, num_gpus, 1) if step.kind == "send compressed"]
        cases.append((num_gpus, tensor_bytes, ratio))
        expected.append(sum(step.times * step.part for step in sent) * ratio * tensor_bytes)
    reason = f"In {NUM_CASES} random cases. Allgather sends n / 2 times as much."
    return check_on_cases(sent_bytes, cases, expected, mistakes=SENT_MISTAKES, reason=reason)


def _spans(begin: Callable[[float, float, float], float], ready: float, option: list, free: dict) -> list:
    """Place operations that begin by when the gradient is ready, the one before ended, and the resource is free."""
    spans, ended = [], ready
    for resource, slots in option:
        start = begin(ready, ended, free[resource])
        ended = start + slots
        spans.append((start, ended))
    return spans


SPAN_MISTAKES = {
    "An operation waits for the one before it.": partial(_spans, lambda ready, ended, free: max(ready, free)),
    "Another gradient may still use the resource.": partial(_spans, lambda ready, ended, free: ended),
    "Both must be over: which of the two times counts?": partial(_spans, lambda ready, ended, free: ended + free),
}


def check_spans(spans: Callable | None) -> Feedback:
    """Check a reader's `spans(ready, option, free)`, when an option's operations run, against the library's queues."""
    draw, cases, expected = random.Random(0), [], []
    options = draw.sample(compression_options(), NUM_OPTIONS)
    for option in sorted(options, key=lambda option: len(option.tasks)):
        tasks = [(step.resource, draw.randint(1, 5)) for step in steps_of(option, 4, 4)]
        ready, busy = draw.randint(1, 9), [draw.randint(0, 25) for _ in RESOURCES[1:]]
        # Gradients that are there from the beginning keep a resource busy each; the last one is computed until `ready`.
        before = [[(resource, slots)] for resource, slots in enumerate(busy, 1)]
        placed = queues_by_definition([0] * len(before) + [ready], [*before, tasks])
        free = dict(zip(RESOURCES, (ready, *busy), strict=True))
        cases.append((ready, [(RESOURCES[resource], slots) for resource, slots in tasks], free))
        expected.append(placed[-1][1:])
    reason = f"{NUM_OPTIONS} options of the tree run as in the library's queues."
    return check_on_cases(spans, cases, expected, mistakes=SPAN_MISTAKES, reason=reason)
