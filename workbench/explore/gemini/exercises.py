"""The exercises of the lesson on in-memory checkpoints; the library computes their answers."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from workbench.explore.code_exercises import check_on_cases, check_on_ranks
from workbench.explore.exercises import Exercise, Feedback, Mistake, plain
from workbench.techniques.gemini.method.placement import (
    Placement,
    group_bound,
    kept_bytes,
    placement,
    recovery_probability,
    replicas_kept,
    survivors,
)
from workbench.techniques.gemini.method.recovery import Held, RecoveryPlan, Tier, plan_recovery
from workbench.techniques.gemini.method.waste import checkpoint_bytes, wasted_time_s

__all__ = [
    "check_holders",
    "check_sources",
    "fatal_pairs_of_ring",
    "holders_of_shard",
    "lost_shards",
    "memory_for_replicas",
    "plan_after",
    "probability_of_four_lost",
    "resumed_from",
    "seconds_wasted",
]

TOLERANCE = 0.005  # of answers that are divisions


def plan_after(
    placed: Placement, lost: Collection[int], *, in_memory: int, in_storage: Collection[int] = ()
) -> RecoveryPlan:
    """Plan the recovery after machines were replaced by empty ones: one rank each, all replicas of one iteration."""
    unknown = sorted(set(lost) - set(range(placed.num_machines)))
    if unknown:
        raise ValueError(f"lost is {sorted(lost)!r}; it must name machines from 0 to {placed.num_machines - 1}")
    held = Held(iteration=in_memory)
    holdings = {
        machine: {shard: [held] for shard in shards}
        for machine, shards in enumerate(replicas_kept(placed))
        if machine not in lost
    }
    return plan_recovery(holdings, placed.num_machines, in_storage)


def holders_of_shard() -> Exercise:
    """Return the exercise on the mixed placement."""
    placed = placement(7, 3)
    return Exercise(
        question="Seven machines, three replicas, algorithm 6.1. Which machines keep the shard of machine 5? Give "
        "three numbers, machine 5 first, the others in the order in which it sends to them.",
        answer=tuple(map(float, placed.holders[5])),
        hint="How many groups of three does the algorithm make before it puts the rest into one ring? Who follows "
        "machine 5 in that ring?",
        reason="3 does not divide 7, so there is floor(7/3) - 1 = 1 group, 0 to 2, and a ring of 3 to 6. Machine 5 "
        "sends to the next two in it, 6 and, round the corner, 3.",
        mistakes=(
            Mistake(answer=(5.0, 3.0, 4.0), hint="That would be a second group, which would leave machine 6 alone."),
            Mistake(answer=(5.0, 6.0, 0.0), hint="The ring is closed among the last machines, not around all seven."),
        ),
    )


def lost_shards() -> Exercise:
    """Return the exercise on what a failure takes."""
    placed = placement(6, 2, "ring")
    lost = tuple(float(shard) for shard, alive in enumerate(survivors(placed, {2, 3, 5})) if not alive)
    return Exercise(
        question="Six machines in a ring, two replicas; machine i sends to machine i + 1. Machines 2, 3 and 5 fail. "
        "Which shards are lost? Give a list.",
        answer=lost,
        hint="Shard i lives on machines i and i + 1. Of which shard are both among the failed?",
        reason="Only shard 2 had both of its replicas on failed machines, 2 and 3. Shard 3 lives on 4, shard 5 on 0.",
        mistakes=(
            Mistake(answer=(2.0, 3.0, 5.0), hint="Those machines are gone, but their shards have a second replica."),
            Mistake(answer=(2.0, 3.0), hint="Shard 3 was also sent to machine 4."),
        ),
    )


def fatal_pairs_of_ring() -> Exercise:
    """Return the exercise on counting fatal pairs."""
    num_pairs = 8 * 7 // 2
    fatal = (1 - recovery_probability(placement(8, 2, "ring"), 2)) * num_pairs
    group = (1 - recovery_probability(placement(8, 2), 2)) * num_pairs
    return Exercise(
        question="Eight machines, two replicas, in a ring. How many of the 28 pairs must not fail together?",
        answer=float(fatal),
        hint="A pair is fatal if it is the set of holders of some shard. How many different sets are there?",
        reason="Every machine and its follower: eight different sets of holders. In groups there are four, so a ring "
        "goes to storage twice as often.",
        mistakes=(
            Mistake(answer=float(group), hint="That is the number for groups, where two shards share one pair."),
            Mistake(answer=float(fatal - 1), hint="The ring is closed: the last machine sends to the first."),
        ),
    )


def probability_of_four_lost() -> Exercise:
    """Return the exercise on where the bound is not the probability."""
    return Exercise(
        question="Eight machines in groups of two; four machines are lost at once. With which probability does "
        "training recover from memory?",
        answer=float(recovery_probability(placement(8, 2), 4)),
        hint="Count the ways to lose one machine of each group, out of C(8, 4) = 70.",
        reason="Four groups, and from each one of two machines: 16 ways of 70. Corollary 6.1 gives 1 - 4·15/70 = 1/7: "
        "it counts losses that take two groups twice.",
        mistakes=(
            Mistake(
                answer=float(group_bound(8, 2, 4)),
                hint="That is corollary 6.1, a bound: a loss that takes two groups is counted twice in it.",
            ),
            Mistake(answer=0.0, hint="There are four groups. Can four machines fail with none of them lost whole?"),
        ),
        rel=TOLERANCE,
    )


def memory_for_replicas() -> Exercise:
    """Return the exercise on memory. Its answer is in gigabytes."""
    shard_bytes = checkpoint_bytes(100e9) / 16
    kept = kept_bytes(placement(16, 2), 0, shard_bytes)
    return Exercise(
        question="100 billion parameters, 12 bytes each, on 16 machines with two replicas. How many gigabytes of its "
        "memory does a machine give to checkpoints?",
        answer=kept / 1e9,
        hint="How large is one shard? How many replicas does a machine keep, and in how many buffers each?",
        reason="A shard is 75 GB. Two replicas, each with one complete and one in progress: 2·2·75 = 300 GB of a "
        "p4d's 1152.",
        mistakes=(
            Mistake(answer=kept / 2e9, hint="While a checkpoint is being received, the one before must stay whole."),
            Mistake(answer=shard_bytes / 1e9, hint="That is one shard. A machine keeps its own and another's."),
        ),
        rel=TOLERANCE,
    )


def seconds_wasted() -> Exercise:
    """Return the exercise on Eq. 6.1. Its answer is in seconds."""
    checkpoint_s, interval_s, retrieval_s = 40.0, 120.0, 30.0
    wasted_s = wasted_time_s(checkpoint_s=checkpoint_s, interval_s=interval_s, retrieval_s=retrieval_s)
    return Exercise(
        question="A checkpoint takes 40 s to write and 30 s to read, and one begins every 120 s. How many seconds does "
        "a failure waste on average?",
        answer=wasted_s,
        hint="Three terms: the checkpoint under way does not count yet; the failure comes anywhere between two "
        "snapshots; and what was kept must be read back.",
        reason="40 + 120/2 + 30 = 130 s. Eq. 6.2 holds: a checkpoint ends before the next one begins.",
        mistakes=(
            Mistake(
                answer=interval_s / 2 + retrieval_s,
                hint="A failure may come while a checkpoint is being written. Is that one of use?",
            ),
            Mistake(
                answer=checkpoint_s + interval_s + retrieval_s, hint="That is the worst moment. What is it on average?"
            ),
        ),
    )


def resumed_from() -> Exercise:
    """Return the exercise on what a lost group costs everybody. Its answer is an iteration and a count."""
    plan = plan_after(placement(6, 2), {0, 2, 3}, in_memory=57, in_storage=(20, 40))
    num_reading = sum(source.tier is Tier.STORAGE for source in plan.sources)
    return Exercise(
        question="Six machines in groups of two, one rank each. All memories hold iteration 57, storage holds 20 and "
        "40. Machines 0, 2 and 3 are lost. From which iteration does training resume, and how many ranks then read "
        "storage? (A list of two numbers.)",
        answer=(float(plan.iteration), float(num_reading)),
        hint="Is every shard still in some memory? All ranks must resume from the same iteration.",
        reason="Machines 2 and 3 are a whole group: their shards of iteration 57 are gone, and 57 without them is "
        "of no use to anybody. All six go back to 40, also machines 1, 4 and 5, whose memory is intact.",
        mistakes=(
            Mistake(answer=(57.0, 0.0), hint="Who still keeps the shard of machine 2?"),
            Mistake(answer=(57.0, 2.0), hint="Storage has no iteration 57, and ranks of two iterations cannot train."),
            Mistake(answer=(40.0, 3.0), hint="May a machine go on from iteration 57 while others begin at 40?"),
            Mistake(answer=(40.0, 2.0), hint="May a machine go on from iteration 57 while others begin at 40?"),
        ),
    )


def _in_small_groups(num_machines: int, num_replicas: int) -> list[list[int]]:
    """Group the machines that are left over, too, by mistake."""
    starts = range(0, num_machines, num_replicas)
    groups = [list(range(start, min(start + num_replicas, num_machines))) for start in starts]
    return [[*group[place:], *group[:place]] for group in groups for place in range(len(group))]


HOLDERS_HINTS = {
    "That is one ring over all machines. Make groups of the first ones.": (
        lambda machines, replicas: placement(machines, replicas, "ring").holders
    ),
    "The machines that are left over make too small a group: their ring takes in the last whole group.": (
        _in_small_groups
    ),
    "Begin with the machine itself, then those it sends to, round the corner.": (
        lambda machines, replicas: [sorted(holders) for holders in placement(machines, replicas).holders]
    ),
}


def check_holders(holders: Callable | None) -> Feedback:
    """Check a reader's `holders(num_machines, num_replicas)` against algorithm 6.1."""
    cases = [(machines, replicas) for machines in range(1, 10) for replicas in range(1, min(machines, 4) + 1)]
    return check_on_cases(
        holders,
        cases,
        [placement(*case).holders for case in cases],
        mistakes=HOLDERS_HINTS,
        reason=f"The placements are those of algorithm 6.1 in {len(cases)} cases.",
    )


STORAGE = -1  # in place of a machine's number
# Replicas, and lost machines of four; where several peers live, the library takes the first, too
FAILURES = ((2, ()), (2, (1,)), (2, (1, 3)), (2, (0, 1)), (3, (0,)), (3, (0, 1, 2)))


def _sources(holders: Sequence[Sequence[int]], lost: Collection[int], *, mistake: str = "") -> list[int]:
    """Return who serves each machine's rank, as the library plans it or with a usual mistake."""
    alive = [[holder for holder in row if holder not in lost] for row in holders]
    match mistake:
        case "empty":
            return list(range(len(holders)))
        case "peers":
            return [(row[1:] + row[:1] or [STORAGE])[0] if all(alive) else STORAGE for row in alive]
        case "next":
            return [row[1] if row[0] in lost else row[0] for row in holders]
        case "mixed":
            return [row[0] if row else STORAGE for row in alive]
    plan = plan_after(Placement.own(holders), lost, in_memory=57)
    return [STORAGE if source.machine is None else source.machine for source in plan.sources]


SOURCES_HINTS = {
    "empty": "A machine in the place of a lost one keeps nothing, not even its own shard.",
    "peers": "A machine that is not lost has its shard in its own memory, the fastest tier.",
    "next": "The next holder may be lost as well. Which holder lives?",
    "mixed": "One shard is in no memory: can others go on from their memory while one begins from storage?",
}


def _restore_on_rank(sources: Callable) -> list:
    """Keep replicas, lose them, read what the function says; return each failure, the sources, and the shard read."""
    import torch
    import torch.distributed as dist

    rank, num_machines, restores = dist.get_rank(), dist.get_world_size(), []
    for num_replicas, lost in FAILURES:
        placed, shards = placement(num_machines, num_replicas), [torch.zeros(1) for _ in range(num_machines)]
        dist.all_gather(shards, torch.tensor([100.0 + rank]))
        kept = {} if rank in lost else {machine: shards[machine] for machine in replicas_kept(placed)[rank]}
        served, restored = plain(list(sources(placed.holders, set(lost)))), 0.0
        for machine, source in enumerate(served):
            shard = kept.get(machine, torch.zeros(1))
            if source != STORAGE:
                dist.broadcast(shard, source)
            if machine == rank:
                restored = float(shard) if source != STORAGE else STORAGE
        restores.append((placed.holders, lost, served, restored))
    return restores


def check_sources(sources: Callable | None) -> Feedback:
    """Check a reader's `sources(holders, lost)` on four ranks, one a machine, that lose and read real shards."""
    return check_on_ranks(
        sources,
        _sources,
        _restore_on_rank,
        num_ranks=4,
        mistakes={hint: partial(_sources, mistake=name) for name, hint in SOURCES_HINTS.items()},
        of="(holders, lost, sources, what this rank read)",
        reason=f"After {len(FAILURES)} failures four ranks had read their shards from there.",
    )
