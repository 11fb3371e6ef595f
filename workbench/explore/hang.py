"""The lesson on hangs: which rank waits where, and a function to repair that is checked on real ranks."""

import linecache
import re
from collections.abc import Callable, Sequence

import pandas as pd
import torch.distributed as dist

from workbench.explore.exercises import Exercise, Feedback, Mistake, Standing, check, plain
from workbench.launch import FailureKind, PerRank, RankFailed, Ranks
from workbench.launch.failures import RankFailure

__all__ = ["check_mean_loss", "who_waits"]

FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')  # of a stack, and of a traceback
TORCH = "torch/distributed"
TIMEOUT_S = 10.0  # ranks that wait for nobody take milliseconds, on a busy machine seconds
UNEVEN = ((4.0, 2.0), (1.0,), (6.0, 2.0))  # losses of three ranks, one with a batch less
EMPTY = ((5.0,), (), (1.0, 2.0, 4.0))  # one without a batch


def who_waits(failed: RankFailed, num_ranks: int) -> pd.DataFrame:
    """Return a row a rank: what it does, and on which line of the code that called a collective.

    Ranks that a failed run does not name had returned, unless another rank's error ended the run before all were asked.
    """
    reported = {failure.rank: failure for failure in failed.failures}
    silent = all("did not answer" in failure.message for failure in failed.failures)
    absent = ("has returned" if silent else "was stopped", "", "")
    rows = [_row(reported[rank]) if rank in reported else absent for rank in range(num_ranks)]
    return pd.DataFrame(rows, pd.RangeIndex(num_ranks, name="rank"), ["state", "function", "line"])


def _row(failure: RankFailure) -> tuple[str, str, str]:
    frames = FRAME.findall(failure.traceback)  # a stack has the innermost frame first, a traceback has it last
    asked = "did not answer" in failure.message
    frames = frames if asked else frames[::-1]
    path, line, function = next((frame for frame in frames if TORCH not in frame[0]), ("", "0", ""))
    waits = asked and failure.kind is FailureKind.PEER_LOST
    state = "computes, or waits for something else" if asked else failure.message
    return f"waits in {frames[0][2]}" if waits else state, function, linecache.getline(path, int(line)).strip()


def check_mean_loss(mean_loss: Callable[[Sequence[float]], float] | None) -> Feedback:
    """Check a reader's `mean_loss(losses)` on three real ranks with different numbers of batches."""
    feedback = Feedback(standing=Standing.NOT_ANSWERED, text="")
    if mean_loss is None:
        return feedback
    with Ranks(3, preload=[], echo=False) as ranks:
        ranks.run(dist.barrier)  # they are there and connected before the clock runs
        for exercise, losses in ((_uneven(), UNEVEN), (_empty(), EMPTY)):
            try:
                means = ranks.run(mean_loss, PerRank(list(map(list, losses))), timeout_s=TIMEOUT_S)
            except RankFailed as failed:
                return Feedback(standing=Standing.NOT_YET, text=f"{_case(losses)} {_hint(failed, losses)}")
            means = list(map(plain, means))
            if any(mean != means[0] for mean in means):
                hint = f"The ranks return {means}: no sum over all ranks is in what they return."
                return Feedback(standing=Standing.NOT_YET, text=f"{_case(losses)} {hint}")
            feedback = check(exercise, means[0])
            if not feedback.is_right:
                break
    return feedback


def _case(losses: Sequence[Sequence[float]]) -> str:
    return f"With the losses {', '.join(str(list(of_rank)) for of_rank in losses)} of ranks 0, 1 and 2:"


def _hint(failed: RankFailed, losses: Sequence[Sequence[float]]) -> str:
    """Return what to think about where the ranks hang or raise."""
    first = failed.failures[0]
    if first.kind is FailureKind.RAISED and "ZeroDivisionError" in first.message:
        return f"rank {first.rank} divides by its number of batches. Add sums and numbers first, then divide."
    if "did not answer" not in first.message:
        return f"rank {first.rank} {first.message}."
    table = who_waits(failed, len(losses))
    states = "; ".join(f"rank {rank} {state}" for rank, state in table.state.items())
    if any("computes" in state for state in table.state):
        return f"{states}. A rank that does not wait in a collective has not returned within {TIMEOUT_S:g} s."
    if "has returned" not in set(table.state):
        return f"{states}. All have come, but to different collectives: all ranks must call the same ones in one order."
    if not all(losses):
        return f"{states}. A rank without a batch has nothing to add, and still it has to come."
    return f"{states}. How often a rank comes to a collective must not depend on how many batches it has."


def _uneven() -> Exercise:
    means = [sum(of_rank) / len(of_rank) for of_rank in UNEVEN]
    total, shortest, longest = sum(map(sum, UNEVEN)), min(map(len, UNEVEN)), max(map(len, UNEVEN))
    short = [loss for of_rank in UNEVEN for loss in of_rank[:shortest]]
    return Exercise(
        question="What is the mean loss of all batches?",
        answer=total / sum(map(len, UNEVEN)),
        hint="Each batch counts once: the sum of all losses over the number of all batches.",
        reason="",
        mistakes=(
            Mistake(answer=sum(means) / len(means), hint="A rank with fewer batches counts as much as the others."),
            Mistake(answer=sum(short) / len(short), hint="The last batches of the longer ranks are left out."),
            Mistake(answer=total / (longest * len(UNEVEN)), hint="Batches that nobody has were counted, too."),
        ),
    )


def _empty() -> Exercise:
    return Exercise(
        question="What is the mean loss where a rank has no batch?",
        answer=sum(map(sum, EMPTY)) / sum(map(len, EMPTY)),
        hint="A rank without a batch adds 0 to the sum and 0 to the number of batches.",
        reason="Three ranks agree, also where one has no batch: each comes to the collective exactly once.",
    )
