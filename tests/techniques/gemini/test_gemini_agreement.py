"""What ranks tell each other, and who is named when one does not come."""

import os
import signal
import time

import pytest
import torch.distributed as dist

from workbench.techniques.gemini.runtime.agreement import RankMissing, meet, tell_all
from workbench.techniques.gemini.runtime.control.events import EventName
from workbench.techniques.gemini.runtime.training import run_training


def told() -> list:
    return tell_all({"rank": dist.get_rank(), "long": "x" * 100 * dist.get_rank()})


def test_every_rank_hears_what_every_rank_said_however_long(pools):
    everyone = [{"rank": rank, "long": "x" * 100 * rank} for rank in range(3)]
    assert pools(3).run(told) == [everyone] * 3


def meet_without(late: int) -> str:
    group = dist.new_group()  # what is left undone spoils its connections
    meet("begins", 30.0, group)  # all come
    if dist.get_rank() == late:
        time.sleep(3.0)
        return "late"
    with pytest.raises((RankMissing, RuntimeError)) as missing:
        meet("checkpoint of iteration 7", 1.0, group)
    return f"{missing.type.__name__}: {missing.value}"


def test_a_rank_that_does_not_come_in_time_is_named_by_the_first(pools):
    first, second, late = pools(3).run(meet_without, 2)
    assert first == "RankMissing: rank 0: checkpoint of iteration 7: ranks [2] did not come within 1 s"
    assert second.startswith("RuntimeError: ") and late == "late"  # it has lost the first


def test_where_the_first_rank_is_late_the_others_name_it(pools):
    late, *others = pools(3).run(meet_without, 0)
    told = "RankMissing: rank {}: checkpoint of iteration 7: rank 0 did not answer within 1.5 s"
    assert late == "late" and others == [told.format(1), told.format(2)]


def die_before_meeting(context) -> str:
    if context.generation > 1:
        return "again"
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    meet("checkpoint of iteration 7", 30.0)


def test_a_rank_that_dies_is_a_lost_peer_to_those_that_wait_for_it_and_not_one_that_is_late(fleet):
    outcome = run_training(die_before_meeting, 3, machines=fleet, timeout_s=60)
    assert outcome.results == ("again",) * 3
    kinds = {event.rank: event.details["kind"] for event in outcome.named(EventName.RANK_FAILED)}
    assert kinds.pop(1) == "died" and set(kinds.values()) <= {"lost a peer or waits for one"}
