"""Wasted time: Eq. 6.1 and its constraint, the three policies, the paper's worked numbers."""

import pytest

from workbench.techniques.gemini.method.waste import (
    CheckpointPolicy,
    Job,
    Level,
    Tier,
    average_wasted_s,
    gemini,
    high_frequency,
    strawman,
    wasted_time_s,
    wasted_time_s_by_definition,
)
from workbench.techniques.gemini.simulating import GPT2_100B, MT_NLG

EASY = Job(iteration_s=10, state_bytes=800, num_machines=4, storage_bytes_per_s=20, network_bytes_per_s=100)


def test_a_failure_wastes_the_checkpoint_half_an_interval_and_the_retrieval():
    # 4 + 20 / 2 + 3.
    assert wasted_time_s(checkpoint_s=4, interval_s=20, retrieval_s=3) == 17


@pytest.mark.parametrize(("checkpoint_s", "interval_s", "retrieval_s"), [(4, 20, 3), (20, 20, 0), (0.5, 7, 2)])
def test_the_equation_is_the_average_over_the_moments_of_failure(checkpoint_s, interval_s, retrieval_s):
    times = {"checkpoint_s": checkpoint_s, "interval_s": interval_s, "retrieval_s": retrieval_s}
    looked_up = wasted_time_s_by_definition(**times, num_moments=1000)
    assert looked_up == pytest.approx(wasted_time_s(**times), rel=2e-3)


def test_a_checkpoint_cannot_start_before_the_last_is_complete_nor_twice_in_an_iteration():
    with pytest.raises(ValueError, match="interval_s is 5; Eq. 6.2 asks for at least 6"):
        wasted_time_s(checkpoint_s=6, interval_s=5, retrieval_s=0)
    with pytest.raises(ValueError, match="Eq. 6.2 asks for at least 10"):
        wasted_time_s(checkpoint_s=1, interval_s=5, retrieval_s=0, iteration_s=10)
    with pytest.raises(ValueError, match="Eq. 6.2 asks for at least transfer_s, 40 s"):
        high_frequency(EASY, interval_iterations=3)


def test_the_policies_are_as_often_as_they_say():
    # Writing 800 bytes at 20 bytes/s takes 40 s: 4 iterations of 10 s. Three hours are 1,080 iterations.
    assert high_frequency(EASY).storage.interval_iterations == 4
    assert strawman(EASY).storage.interval_iterations == 1080
    assert gemini(EASY).memory.interval_iterations == 1
    assert gemini(EASY).storage.interval_iterations == 1080


def test_gpt2_100b_of_the_paper():
    # 1.2 TB at 2.5 GB/s: 480 s, 7.7 iterations of 62 s, so 8; 10,800 s are 174.2 iterations, "more than 170".
    assert GPT2_100B.storage_s == 480
    assert high_frequency(GPT2_100B).storage.interval_iterations == 8
    assert strawman(GPT2_100B).storage.interval_iterations == 174
    # "1.5 x the iteration time", and a shard of 75 GB over 50 GB/s: "less than three seconds".
    assert average_wasted_s(gemini(GPT2_100B), GPT2_100B, Tier.LOCAL) == 1.5 * 62
    assert GPT2_100B.retrieval_s(Tier.PEER) == 1.5
    # 480 + 8 x 62 / 2 + 480.
    assert average_wasted_s(high_frequency(GPT2_100B), GPT2_100B, Tier.STORAGE) == 1208


def test_without_peers_gemini_degrades_to_strawman():
    wasted = [average_wasted_s(policy, GPT2_100B, Tier.STORAGE) for policy in (gemini(GPT2_100B), strawman(GPT2_100B))]
    assert wasted[0] == wasted[1] == 480 + 174 * 62 / 2 + 480


def test_mt_nlg_of_the_paper():
    # Section 6.2.2: 42 minutes a checkpoint; as often as possible 2.5 times that are wasted, "105 minutes".
    assert MT_NLG.storage_s / 60 == pytest.approx(42.4)
    times = dict.fromkeys(("checkpoint_s", "interval_s", "retrieval_s"), MT_NLG.storage_s)
    assert wasted_time_s(**times) / 60 == pytest.approx(106)


def test_a_policy_in_storage_alone_has_nothing_in_memory():
    with pytest.raises(ValueError, match="Strawman keeps checkpoints in persistent storage only"):
        average_wasted_s(strawman(EASY), EASY, Tier.PEER)


@pytest.mark.parametrize("name", ["iteration_s", "state_bytes", "num_machines", "storage_bytes_per_s"])
def test_a_job_without_size_is_refused(name):
    values = {each: getattr(EASY, each) for each in EASY.__slots__} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0"):
        Job(**values)


def test_levels_of_the_wrong_kind_are_refused():
    memory = Level(in_memory=True, interval_iterations=1)
    with pytest.raises(ValueError, match="each must be of its own kind"):
        CheckpointPolicy(name="x", iteration_s=1, storage=memory)
    with pytest.raises(ValueError, match="interval_iterations is 0"):
        Level(in_memory=True, interval_iterations=0)
    with pytest.raises(ValueError, match="blocking_s is -1"):
        Level(in_memory=True, interval_iterations=1, blocking_s=-1)
