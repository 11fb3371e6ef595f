"""Real ranks tell each other values and meet; whoever is late is named."""

import time

import pytest
import torch.distributed as dist

from workbench.launch.agreement import RankMissing, meet, tell_all


def test_every_rank_hears_the_message_of_every_rank_however_long(pools):
    everyone = [{"rank": rank, "long": "x" * 100 * rank} for rank in range(4)]
    heard = pools(4).run(lambda: tell_all({"rank": dist.get_rank(), "long": "x" * 100 * dist.get_rank()}))
    assert heard == [everyone] * 4


def meet_without(late: int) -> str:
    group = dist.new_group()  # what is left undone spoils its connections
    meet("begins", 30.0, group)  # all come
    if dist.get_rank() == late:
        time.sleep(4.0)
        return "late"
    with pytest.raises((RankMissing, RuntimeError)) as missing:
        meet("checkpoint of iteration 7", 2.0, group)
    return f"{missing.type.__name__}: {missing.value}"


def test_a_rank_that_does_not_come_in_time_is_named_and_where_it_is_the_first_the_others_name_it(pools):
    first, second, late, fourth = pools(4).run(meet_without, 2)
    assert first == "RankMissing: rank 0: checkpoint of iteration 7: ranks [2] did not come within 2 s"
    assert all(said.startswith("RuntimeError: ") for said in (second, fourth)) and late == "late"  # both lost the first
    late, *others = pools(4).run(meet_without, 0)
    message = "RankMissing: rank {}: checkpoint of iteration 7: rank 0 did not answer within 3 s"
    assert late == "late" and others == [message.format(rank) for rank in (1, 2, 3)]
