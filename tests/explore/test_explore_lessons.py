"""Every lesson's exercises know their answers, and every control changes its figure."""

import sys

import pytest

from workbench.explore import (
    Standing,
    activation_compression,
    atp,
    check,
    cupcake,
    espresso,
    flextp,
    gemini,
    sdpipe,
    zen,
)
from workbench.techniques.flextp.cost import Solution
from workbench.techniques.sdpipe.simulated import PAPER, workload_of

# Both forward reductions save 1.5 * (h - c) * rows * 2 bytes; table 4 gives 3.12 and 4.56 ms for A2 in 12 layers,
# tp 2, whose two activations a layer are as large as in the lesson.
SAVED_BYTES = 2 * 1.5 * 32 * 512 * (1024 - 100) * 2
SPENT_S = (3.12e-3 + 4.56e-3) / 12
WORKED_BY_HAND = (
    (activation_compression.code_bytes, 32 * 512 * 100 * 2),
    (activation_compression.sum_of_top_1, [3, 4, 0, 0]),
    (activation_compression.break_even, SAVED_BYTES / SPENT_S / 1e9),
    (activation_compression.value_in_two_bits, [0, 0, 0, 30]),
    (activation_compression.share_kept_by_top_k, (9 / 153) ** 0.5),
    (activation_compression.loss_of_best_code, (13 / 49) ** 0.5),
    (cupcake.best_of_three, 6.0),  # T0 and T1 are encoded at 3, sent at 5; T2 is encoded at 5, sent at 6
    (espresso.benefit_ratio, 5),  # (100 - 5) / 19
    (espresso.tensor_to_compress, 2),  # T2 is sent at 11 of 15 slots; with T1 compressed it is 13, with T0 16
    (flextp.ratio_of_straggler, 0.5),  # (10 - 6) / 8
    (flextp.bound_of_eight, 64 / 15),  # 8 over the mean of 8 and seven times 1
    (flextp.columns_of_receivers, [3, 2, 3]),  # cuts at 0, 2, 5, 8, given to ranks 2, 3, 0
    (flextp.split_of_columns, [0.4, 0.4]),  # 0.4 m = 0.4 r
    (gemini.holders_of_shard, [5, 6, 3]),  # one group of three and a ring 3 4 5 6
    (gemini.lost_shards, [2]),  # machines 2 and 3 are the holders of shard 2
    (gemini.fatal_pairs_of_ring, 8),
    (gemini.probability_of_four_lost, 16 / 70),  # one of each of four groups: 2^4 of 70
    (gemini.memory_for_replicas, 300),  # 4 times 1200 GB / 16
    (gemini.seconds_wasted, 130),  # 40 + 120 / 2 + 30
    (gemini.resumed_from, [40, 6]),  # machines 2 and 3 are a group: all six ranks go back to the newest in storage
    (sdpipe.groups_of_window, [2, 2]),  # windows end at 1.0 and 2.5 s
    (sdpipe.mean_of_group, [3.5, 2, 3.5, 8]),  # (1 + 6) / 2
    (sdpipe.smallest_valid_group, 3),  # one of {0, 1, 2}, 3, and one of {4, 5}
    (sdpipe.variance_of_mean, 4.25),  # 2^2 + (5 - 2^2) / 4
    (zen.busiest_range, 1.875),  # 0, 1, 2, 3 and 4 of eight are in the first of three ranges
    (zen.pulled_bytes, 400),  # 3,200 bits
    (atp.bytes_of_two_linears, [4 * 4 * 2, 4 * 16 * 2]),
    (atp.rings_of_a_host, 2),  # devices 0 and 1 are in the rings of 0 and 4 and of 1 and 5
)


@pytest.mark.parametrize(("build", "answer"), WORKED_BY_HAND, ids=lambda value: getattr(value, "__name__", ""))
def test_an_exercise_accepts_the_answer_worked_by_hand_and_helps_with_every_mistake(build, answer):
    exercise = build()
    wrong = [value + 1 for value in answer] if isinstance(answer, list) else 2 * answer + 1
    assert check(exercise, answer).standing is Standing.RIGHT
    assert check(exercise, wrong).standing is Standing.NOT_YET
    assert check(exercise, None).standing is Standing.NOT_ANSWERED
    for mistake in exercise.mistakes:
        feedback = check(exercise, mistake.answer)
        assert (feedback.standing, feedback.text) == (Standing.NOT_YET, mistake.hint)
    for hint in (exercise.hint, *(mistake.hint for mistake in exercise.mistakes)):
        assert len(str(answer)) < 3 or str(answer).replace(" ", "") not in hint.replace(" ", "").replace("_", "")


SIZES = {"micro_batch": 4, "sequence": 128, "code_size": 400}
MACHINE = {"bandwidth_bytes_per_s": 1e11, "flops_per_s": 1e14, "layer_launch_s": 0.0}
ON_GPU, ON_CPU = "GPU, Alltoall/Allgather", "CPU, Allgather"
COSTS = {"encode": 0.25, "encode_mb": 0.4, "send": 2, "send_mb": 2}
STRAGGLERS = {"skewness": 4.0, "num_stragglers": 3}
QUANTIZATION, ZERO = activation_compression.Approach.QUANTIZATION, flextp.Choice(solution=Solution.ZERO)


def replayed_trainings():
    """Give the control of trainings that lasted two mini-batches of four pipelines of two stages."""
    results = [
        {
            "setting": {"scheme": scheme, "num_stages": 2, "num_pipelines": 4},
            "curve": [[9.0, 1.0, 3.0], [9.5, 2.0, 1.0]],
        }
        for scheme in ("All-Reduce+Pipe", "SDPipe")
    ]
    return sdpipe.explore_replay(results, "ResNet-50", 2.0)


def test_a_training_is_replayed_on_the_clock_of_its_scheme():
    plain, ours = replayed_trainings().set(delay_s=0.0).result
    # 4 micro-batches in 2 stages: 5 passes of each kind one after the other, a backward pass as long as two
    workload = workload_of("ResNet-50", 2)
    iteration_s = 5 * 3 * workload.forward_s + PAPER.average_s(workload, range(4))
    assert [at_s for at_s, *_ in plain["curve"]] == pytest.approx([iteration_s, 2 * iteration_s])
    assert [loss for *_, loss in ours["curve"]] == [3.0, 1.0] and ours["curve"][1][0] < plain["curve"][1][0]


@pytest.mark.parametrize(
    ("explore", "changes"),
    [
        (
            activation_compression.explore_activation_compression,
            {"bandwidth_bytes_per_s": 1.25e9, "code_size": 25, "approach": QUANTIZATION},
        ),
        (activation_compression.explore_break_even, SIZES | MACHINE | {"codec_factor": 4.0, "fused": True}),
        (cupcake.FusionExplorer, {f"cut_{tensor}": False for tensor in range(4)} | COSTS),
        (espresso.explore_strategy, {"t0": ON_CPU, "t1": ON_GPU, "t2": espresso.NONE, "gbit": 25, "inside_gbit": 16}),
        (espresso.explore_search, {"number": 2, "gbit": 50}),
        (flextp.explore_flextp, STRAGGLERS | {"bandwidth_bytes_per_s": 1.25e9, "choice": ZERO, "pruning_ratio": 0.25}),
        (gemini.explore_placement, {"failed": (0, 2, 4), "kind": "ring", "num_machines": 9, "num_replicas": 3}),
        (
            gemini.explore_failures,
            {"num_machines": 64, "failures_per_day": 16, "num_standbys": 4, "num_replicas": 1, "solution": "HighFreq"},
        ),
        (sdpipe.explore_candidates, {"before": "{0, 1}, {2, 3}", "members": (1, 2)}),
        (sdpipe.explore_scheduler, {"window": 0.0, "late": 4, "history": 1}),
        (replayed_trainings, {"delay_s": 0.6, "history": 1}),
        (zen.SlotExplorer, {"indices": 32, "slots": 24, "hashes": 1, "serial": 6, "seed": 1}),
        (
            atp.MeshExplorer,
            {"exactly": True, "hosts": 4, "between": 8, "inside": 4, "startup": 100, "batch": 1, "sequence": 512}
            | {"hidden": 1024},
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_control_changes_the_figure(explore, changes, monkeypatch):
    break_even = sys.modules["workbench.explore.activation_compression.break_even"]
    monkeypatch.setattr(break_even, "BATCHES", (4, 32))  # instead of eight
    explorer = explore()
    seen = {explorer.png} | {explorer.set(**{name: value}).png for name, value in changes.items()}
    assert set(explorer.values) == set(changes)
    assert len(seen) == 1 + len(changes)
