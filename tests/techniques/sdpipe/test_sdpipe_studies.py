"""Rows of each evidence: by hand, by their definitions, and from small trainings on real ranks."""

import math
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.cases import refusals, value, values
from workbench.datasets import gpu_performance, step_times
from workbench.datasets.source import DataSource, SourceKind
from workbench.study.training import reached
from workbench.techniques.sdpipe import counted, libraries, measured, simulated
from workbench.techniques.sdpipe.cost import Scheme, traced_delays_s
from workbench.techniques.sdpipe.method import Group, error_bound
from workbench.techniques.sdpipe.training import Data, Setting, curve_of, delays_of, naive_rows, train
from workbench.techniques.sdpipe.virtual import VirtualSetting, traced_s


def test_figure_1_by_hand():
    rows, timelines = counted.figure_1()
    # A pair of mini-batches: 1F0 at 1, 1B0 2..4, 1F1 4, 1B1 5..7, 0B1 7..9; the second pair of stage 1 follows 0's.
    assert timelines["no straggler"].duration_s == 18.0
    assert value(rows, "idle_slots", run="no straggler", stage=0, pipeline=0) == 18.0 - 12.0
    # 3 slots longer in the forward pass of pipeline 2; the flush before it holds up nobody else, the end all.
    assert timelines["two stragglers"].duration_s == 18.0 + 3.0
    assert value(rows, "idle_slots", run="two stragglers", stage=0, pipeline=2) == 21.0 - 12.0
    assert value(rows, "idle_slots", run="two stragglers", stage=1, pipeline=1) == 21.0 - 12.0 - 2.0


def test_figure_2_by_hand_and_every_stage_is_busy_once_the_pipeline_is_filled():
    rows, timelines = counted.figure_2(num_stages=2, num_mini_batches=3)
    (timeline,) = timelines.values()
    # Stage 2: F0 1..2, B0 2..4, F1 4..5, B1 5..7, F2 7..8, B2 8..10; a pass of stage 1 waits for the one that it needs.
    assert [(a.kind.name[0] + a.label, a.start_s) for a in timeline.of("stage 1")] == (
        [("F0", 0.0), ("F1", 1.0), ("B0", 4.0), ("F2", 6.0), ("B1", 7.0), ("B2", 10.0)]
    )
    assert [(row["stage"], row["k"], row["value"]) for row in rows] == [(1, 2, 0), (2, 2, 0)]


def test_the_signals_of_figure_3_deadlock_four_workers_without_the_rule():
    rows, timelines = counted.deadlock_rows()
    assert value(rows, "blocked_workers", rule="without the rule") == 4
    assert value(rows, "blocked_workers", rule="with the rule") == 0
    assert value(rows, "unchecked_groups", rule="with the rule") == 1
    assert "waits for ever" in {action.label for action in timelines["without the rule"].actions}
    assert "waits for ever" not in {action.label for action in timelines["with the rule"].actions}


def test_updates_spread_as_counted_by_hand():
    chain = [Group(0, frozenset(members)) for members in ({0, 1}, {1, 2}, {2, 3}, {0, 1, 2, 3})]
    # From {0, 1} on: 2 + 2 + 2 workers until 3 is reached, of four workers: 1.5 mini-batches.
    assert simulated.spread_iterations(chain, 4) == 1.5
    assert simulated.spread_iterations([Group(0, frozenset({0}))], 4) == math.inf


def test_a_trace_slows_each_worker_by_its_own_row_over_all_iterations():
    slowness = [[1.0, 2.0], [1.0, 1.0], [3.0, 3.0]]
    delays_s = traced_delays_s(slowness, 4, 1, 3, busy_s=10.0)
    assert delays_s[:, 0, 0].tolist() == [0.0, 0.0, 10.0, 10.0]
    assert delays_s[:, 0, 2].tolist() == [20.0] * 4
    # The fourth worker replays row 0 again, from the second moment on.
    assert traced_delays_s(slowness, 1, 2, 2, busy_s=1.0)[0].tolist() == [[0.0, 2.0], [0.0, 1.0]]


def test_pipelines_that_replay_the_same_rows_are_slow_at_other_times():
    slowness = np.random.default_rng(0).uniform(1, 3, (4, 40))
    delays_s = traced_delays_s(slowness.tolist(), 40, 4, 4, busy_s=1.0)
    for pipeline in range(4):
        assert np.array_equal(delays_s[:, :, pipeline], np.roll(slowness, -10 * pipeline, axis=1).T - 1)


def test_workers_of_bytedance_replay_the_ranks_of_all_traced_stages(monkeypatch):
    def load(job, *, stage, num_ranks):  # rank r of stage s is 1 + r + s times as slow as the fastest of its stage
        seconds = tuple(((stage + 1.0) * (1.0 + rank + stage * (rank > 0)),) * 3 for rank in range(num_ranks))
        source = DataSource(name=f"{job}{stage}", kind=SourceKind.STAND_IN, detail="", sha256="")
        return step_times.StepTimes(seconds=seconds, source=source)

    monkeypatch.setattr(step_times, "load", load)
    delays_s, sources = traced_s(VirtualSetting(scheme="SDPipe", delays="AR", iterations=3), busy_s=0.12)
    for rank in range(4):
        expected = [0.12 * (rank + stage * (rank > 0)) for stage in range(4)]
        assert delays_s[1, :, rank].tolist() == pytest.approx(expected)
    assert [source["name"] for source in sources] == ["AR0", "AR1", "AR2", "AR3"]


def test_throughput_has_a_row_a_scheme_and_mesh_and_the_largest_speedups():
    rows = simulated.throughput_rows(
        models=["ResNet-50"],
        settings=["homogeneous", "B"],
        meshes=[[2, 2], [2, 4]],
        doses=["each iteration", "twice"],
        num_iterations=12,
        seeds=2,
    )
    assert len(values(rows, "examples_per_s")) == 2 * 2 * 2 * (len(Scheme) + 5)
    for over in ("All-Reduce+Pipe", "HetPipe"):
        assert max(values(rows, "speedup", over=over)) == max(values(rows, "largest_speedup", over=over))
    delayed = {"over": "All-Reduce+Pipe", "setting": "B", "mesh": "2 x 4", "dose": "each iteration"}
    assert value(rows, "alone_speedup", **delayed) > value(rows, "speedup", **delayed)


def test_delays_are_drawn_as_often_as_the_dose_says():
    shape = (2000, 2, 2)
    for dose, draws in (("each iteration", 1), ("twice", 2), ("eight times as long", 8)):
        late_s = simulated.delays_s("ResNet-50", "B", shape, dose, 0)
        assert late_s.mean() == pytest.approx(0.1 * 0.3 * draws, rel=0.1)


def test_the_naive_model_of_bert_knows_how_often_words_occur():
    (row,) = naive_rows(Data("bert", 0, 16), 1, 1)
    assert row["quantity"] == "naive_loss"
    assert 3.0 < row["value"] < math.log(2002)  # of the stand-in's text or the real one


def test_the_map_has_a_certificate_for_every_p_and_t_and_p_of_one_with_no_window_enforces():
    rows = simulated.map_rows(
        model="BERT-base", setting="B", histories=[1, 20], windows=[0.0, 2.0], mesh=[1, 4], num_iterations=30
    )
    assert value(rows, "connected_share", P=1, T=0.0) == 1.0  # one stage: nothing passes unchecked
    assert value(rows, "mean_size", P=1, T=0.0) == 4.0
    assert value(rows, "over_all_reduce", P=1, T=0.0) == pytest.approx(1.0)
    assert value(rows, "unchecked_share", P=20, T=2.0) == 0.0


def test_a_trace_of_ones_own_slows_workers_by_their_ratio_to_the_fastest(tmp_path):
    trace = tmp_path / "own.csv"
    trace.write_text("2,3\n2,2\n")
    # BERT-base, one stage: 0.45 s an iteration; the second worker loses half of one in the first two of four.
    delays_s = simulated.own_delays_s(trace, "BERT-base", (4, 1, 2))
    assert delays_s[:, 0, 0].tolist() == [0.0] * 4
    assert delays_s[:, 0, 1].tolist() == pytest.approx([0.225, 0.225, 0.0, 0.0])
    rows = simulated.map_rows(
        model="BERT-base", setting="", trace=trace, histories=[2], windows=[0.25], mesh=[1, 2], num_iterations=4
    )
    assert value(rows, "connected_share", P=2, T=0.25) == 1.0
    # two stages of two pipelines: the second begins with the second row
    second_s = simulated.own_delays_s(trace, "BERT-base", (2, 2, 2))[:, 1]
    assert np.allclose(second_s, [[0.1125, 0.0], [0.0, 0.1125]])
    trace.write_text("2,-3\n")
    with pytest.raises(ValueError, match="must be positive times"):
        simulated.own_delays_s(trace, "BERT-base", (4, 1, 2))


def test_the_released_settings_are_beside_the_papers_with_what_they_change():
    sizes = {"histories": [1, 10], "num_pipelines": 4, "num_stages": 2, "num_iterations": 120}
    rows = simulated.group_size_rows(**sizes)
    assert value(rows, "group_size", P=1, settings="paper, one stage") == 4  # no other stage goes unchecked
    for quantity in ("group_size", "over_all_reduce", "spread_iterations", "connected_share"):
        by_settings = [value(rows, quantity, P=10, settings=kind) for kind in ("paper", "released")]
        assert len(set(by_settings)) == 2


def test_recorded_speeds_are_the_middle_of_the_drawn_line(tmp_path):
    table = tmp_path / "speeds.csv"
    table.write_text("worker,time_h,flops_min,flops_max\n0,0.1,0.4,0.6\n0,0.2,1,1\n1,0.1,0.2,0.2\n")
    assert gpu_performance.read(table) == ((0.5,), (0.2,))


def result(scheme, seed, blocks_s, losses, test_loss, **setting):
    curve = [[blocks_s[0] * (place + 1), place + 1.0, loss] for place, loss in enumerate(losses)]
    shares = dict.fromkeys(("cpu_share", "delay_share", "averaged_share", "waited_share"), 0.1)
    setting = {"scheme": scheme, "seed": seed, "pass_s": 0.5, "num_micro_batches": 1} | setting
    times = {"iteration_s": blocks_s[0], "blocks_s": blocks_s, "seconds": sum(blocks_s), "nominal_s": 3.0}
    return shares | times | {"setting": setting, "sizes": {"2": 3}, "curve": curve, "scores": {"test_loss": test_loss}}


def test_schemes_are_compared_block_by_block_and_targets_with_more_than_one_seed():
    results = [result("All-Reduce+Pipe", seed, [2.0, 3.0, 4.0], [3.0, 1.0], 1.0) for seed in range(3)]
    results += [result("SDPipe", seed, [1.0, 1.0, 1.0], [3.0, 2.0, 1.0], 1.1 + 0.1 * seed) for seed in range(3)]
    assert reached(results[3]["curve"], 1.0) == (3.0, 3.0) and reached(results[3]["curve"], 0.5) is None
    rows = measured.rows(results, target=1.0)
    (speedup,) = [row for row in rows if row["quantity"] == "speedup"]
    assert (speedup["low"], speedup["value"], speedup["high"]) == (2.0, 3.0, 4.0)
    assert value(rows, "target_speedup", over="All-Reduce+Pipe", to="loss 1") == 4.0 / 3.0
    assert value(rows, "whole_speedup", over="All-Reduce+Pipe") == 9.0 / 3.0
    assert value(rows, "iteration_over_passes") == 3.0 / (3 * 0.5)
    assert value(rows, "test_loss_over_all_reduce", scheme="SDPipe") == pytest.approx(1.2)
    few = measured.rows([training for training in results if training["setting"]["seed"] < 1], target=1.0)
    never = measured.rows(results, target=0.5)
    assert value(never, "reached_seeds", scheme="SDPipe") == 0
    assert not [row for row in few + never if row["quantity"].startswith("target_")]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"schemes": ["SDPipe"], "adams": ["plain", "reduced"], "delay": 1.0},  # the usual choice is not told
            [{"scheme": "SDPipe", "adam": "plain", "delay": 1.0}, {"scheme": "SDPipe", "delay": 1.0}],
        ),
        (
            {"schemes": ["HetPipe", "SDPipe"], "flushes": ["all"]},  # rivals flush anyway
            [{"scheme": "HetPipe"}, {"scheme": "SDPipe", "flush": "all"}],
        ),
        (
            {
                "schemes": ["HetPipe", "SDPipe"],
                "learning_rate": 0.1,
                "by_scheme": {"SDPipe": {"learning_rate": [0.05, 0.1]}, "HetPipe": {"staleness": [0]}},
            },
            [
                {"scheme": "HetPipe", "learning_rate": 0.1, "staleness": 0},
                {"scheme": "SDPipe", "learning_rate": 0.05},
                {"scheme": "SDPipe", "learning_rate": 0.1},
            ],
        ),
    ],
)
def test_trainings_have_the_choices_and_settings_of_their_scheme_alone(asked, expected):
    assert measured.cells(seeds=[0], **asked) == [cell | {"seed": 0} for cell in expected]


def of_choice(key, *choices):
    """Return rows of SDPipe's trainings with these choices, by seeds and test losses."""
    results = [
        result("SDPipe", seed, [1.0], [3.0], loss, **({} if choice is None else {key: choice}))
        for choice, losses in choices
        for seed, loss in enumerate(losses)
    ]
    return measured.rows(results, target=1.0, key=key)


def test_choices_are_compared_seed_by_seed_with_the_usual_one_and_in_test_loss_alone():
    rows = of_choice("adam", ("plain", [2.0, 4.0]), ("reduced", [1.0, 3.0]))
    (ratio,) = [row for row in rows if row["quantity"] == "test_loss_over_plain"]
    assert (ratio["adam"], ratio["low"], ratio["high"]) == ("reduced", 0.5, 0.75)
    assert value(rows, "test_loss", adam="plain") == 3.0 and not values(rows, "speedup")
    rows = of_choice("flush", (None, [2.0]), ("all", [1.0]))  # the first is older than the choice
    assert value(rows, "test_loss_over_no_flush", flush="all") == 0.5
    rows = of_choice("learning_rate", (0.05, [3.0]), (0.1, [2.0]), (0.4, ["nan"]))
    assert value(rows, "test_loss_over_common_rate", learning_rate="0.05") == 1.5
    # A training that diverged is counted, and compared with nothing.
    assert value(rows, "diverged_seeds", learning_rate="0.4") == 1
    assert not values(rows, "test_loss", learning_rate="0.4")


def test_accuracies_on_the_test_set_are_targets_too():
    results = [result("SDPipe", seed, [1.0], [1.0], 1.0) for seed in range(3)]
    for training in results:
        training["scores"]["accuracy"] = 60.0
        training["tests"] = [[2.0 * place, 10.0 * place, {"accuracy": 10.0 * place}] for place in range(1, 7)]
    rows = measured.rows(results, target=0.5, accuracies=[45.0, 70.0])
    assert value(rows, "target_s", to="45 %") == 10.0 and value(rows, "target_iterations", to="45 %") == 50.0
    assert value(rows, "reached_seeds", to="70 %") == 0 and value(rows, "reached_seeds", to="loss 0.5") == 0


def test_a_curve_has_the_mean_loss_of_mini_batches_that_end_one_after_the_other():
    assert curve_of([(3.0, 1.0), (1.0, 4.0), (2.0, 2.0), (4.0, 3.0)], 2) == [[2.0, 1.0, 3.0], [4.0, 2.0, 2.0]]


def test_one_low_loss_does_not_reach_a_target():
    noisy = result("SDPipe", 0, [1.0], [3.0] * 5 + [0.0] + [3.0] * 6 + [1.0] * 12, 1.0)  # a sixth is four points
    assert reached(noisy["curve"], 1.5) == (15.0, 15.0)  # 3, 1, 1, 1


def figure_4(kinds, **more):
    """Return the rows of schemes with seconds of their iterations without delays, and with delays B of 1.7 of them."""
    size = {"model": "resnet", "num_stages": 2, "num_pipelines": 2, "num_micro_batches": 4, "micro_batch": 4}
    size |= {"pass_s": 0.01} | more
    results = [
        {
            "setting": size | {"scheme": scheme, "delay": delay} | setting,
            "blocks_s": [took_s] * 8,
            "cpu_share": 0.5,
            "nominal_s": 0.15,
        }
        for scheme, setting, seconds in kinds
        for delay, took_s in zip((0.0, 1.7), seconds, strict=True)
    ]
    return measured.throughput_rows(results, {0.0: "homogeneous", 1.7: "B"})


def test_figure_4_is_measured_by_mesh_and_delay_against_the_same_mesh_without_delays():
    rows = figure_4([("All-Reduce+Pipe", {}, (1.0, 3.0)), ("SDPipe", {}, (1.0, 2.0))])
    assert value(rows, "examples_per_s", scheme="SDPipe", setting="B", mesh="2 x 2") == 2 * 16 / 2.0
    assert value(rows, "speedup", over="All-Reduce+Pipe", setting="B", mesh="2 x 2") == 1.5
    assert value(rows, "slowdown", setting="B", mesh="2 x 2") == 2.0
    assert value(rows, "iteration_over_passes", setting="B", mesh="2 x 2") == 0.15 / 0.12
    assert value(simulated.largest_speedups(rows), "largest_speedup", over="All-Reduce+Pipe") == 1.5


def test_figure_4_on_links_tells_how_often_hetpipe_pushes_and_delays_in_iterations_with_averaging():
    kinds = [("SDPipe", {"flush": "rivals"}, (0.3, 0.6)), ("HetPipe", {"push_every": 10}, (0.3, 0.6))]
    rows = figure_4(kinds, communication=2.0)
    assert value(rows, "speedup", over="HetPipe, a push in ten", setting="B") == 1.0
    assert value(rows, "iteration_over_passes", setting="B") == 1.0  # SDPipe does not flush
    assert value(rows, "communication_over_iteration", setting="B") == 2.0
    assert value(rows, "delay_over_own_iteration", setting="B") == 1.7 * 0.15 / 0.3


def test_the_measured_map_counts_unchecked_groups_among_runs_of_p():
    plain = result("All-Reduce+Pipe", 0, [2.0] * 8, [1.0], 1.0) | {"counted": {}}
    sizes = {"history": 10, "window": 1.0, "num_pipelines": 4, "num_stages": 2}
    ours = result("SDPipe", 0, [1.0] * 8, [1.0], 1.0, **sizes)
    rows = measured.map_rows([plain, ours | {"counted": {"num_groups": 28, "num_unchecked": 5}}])
    assert value(rows, "over_all_reduce", P=10, T=0.25) == 2.0
    assert value(rows, "connected_share", P=10, T=0.25) == 0.5  # 28 groups of two stages have 28 - 2 x 9 runs of ten


@pytest.mark.parametrize("scheme", [libraries.LOCAL_SGD, libraries.DILOCO, libraries.HIVEMIND])
def test_libraries_train_the_same_model_and_say_who_averaged(scheme):
    pytest.importorskip(libraries.PACKAGES[scheme], reason=f"pip install {libraries.PACKAGES[scheme]}")
    setting = {"num_stages": 1, "num_pipelines": 2, "iterations": 4, "pass_s": 0.002}
    (cell,) = libraries.cells([scheme], [0], sync_every=2, matchmaking_s=0.2, **setting)
    before = set(Path("/dev/shm").glob("torch_*"))  # files of shared memory, with the number of their process
    training = libraries.train_beside(**cell)
    left = set(Path("/dev/shm").glob("torch_*")) - before
    assert all(psutil.pid_exists(int(path.name.split("_")[1])) for path in left)
    assert training["setting"]["scheme"] == scheme and math.isfinite(training["scores"]["test_loss"])
    # torchft: each worker alone twice, both together twice; hivemind's groups depend on when workers come.
    assert scheme == libraries.HIVEMIND or training["sizes"] == {"1": 4, "2": 2}


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="hivemind needs the package hivemind: pip install hivemind"):
        libraries.cells(["hivemind"], [0], sync_every=1, matchmaking_s=0.1)


test_a_library_is_told_how_often_or_for_how_long_it_averages_before_ranks_start = refusals(
    ({"scheme": libraries.HIVEMIND}, "matchmaking_s is 0.0; it must be finite and above 0"),
    ({"scheme": libraries.LOCAL_SGD}, "sync_every is 0; it must be a whole number of at least 1"),
    ({"scheme": libraries.DILOCO}, "sync_every is 0; it must be a whole number of at least 1"),
    of=libraries.train_beside,
)


def test_all_schemes_get_the_same_delays():
    delays_s = [delays_of(Setting(scheme=s, trace="drawn", delay=2.0, iterations=30)) for s in ("SDPipe", "HetPipe")]
    assert np.array_equal(*delays_s) and 0 < (delays_s[0] > 0).mean() < 0.2
    assert delays_of(Setting(scheme="SDPipe")).sum() == 0


test_bad_settings_are_refused_on_real_ranks = refusals(
    ({"scheme": "Gossip"}, "'Gossip' is not a valid Scheme"),
    ({"model": "vgg"}, "model is 'vgg'; it must be one of resnet, bert, gpt2"),
    ({"flush": "nobody"}, "flush is 'nobody'"),
    ({"adam": "sgd"}, "adam is 'sgd'"),
    ({"num_pipelines": 1}, "num_pipelines is 1"),
    ({"trace": "moon"}, "trace is 'moon'"),
    ({"window": -1.0}, "window is -1.0"),
    ({"push_every": 0}, "push_every is 0"),
    ({"communication": -1.0}, "communication is -1.0"),
    ({"communication": 1.0, "num_pipelines": 3}, "num_pipelines is 3; the 2 machines must divide it"),
    of=lambda **changed: Setting(**{"scheme": "SDPipe"} | changed),
)

test_bad_settings_are_refused_on_virtual_ranks = refusals(
    ({"model": "vgg"}, "model is 'vgg'"),
    ({"delays": "moon"}, "delays is 'moon'"),
    ({"iterations": 0}, "iterations is 0"),
    ({"examples": 0}, "examples is 0"),
    of=lambda **changed: VirtualSetting(**{"scheme": "SDPipe"} | changed),
)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [scheme.value for scheme in Scheme])
@pytest.mark.parametrize("model", ["resnet", "bert"])
def test_every_scheme_trains_on_real_ranks_and_says_what_happened(scheme, model):
    training = train(scheme=scheme, model=model, num_stages=2, num_pipelines=2, iterations=3, pass_s=0.002, delay=1.0)
    assert len(training["curve"]) == 3 and all(math.isfinite(loss) for _, _, loss in training["curve"])
    assert training["curve"][-1][1] == 3.0 and 0 < training["curve"][0][0] < training["curve"][-1][0]
    assert math.isfinite(training["scores"]["test_loss"])
    num_groups = sum(training["sizes"].values())
    assert num_groups == (0 if scheme == "HetPipe" else training["counted"].get("num_groups", 2 * 3))


def test_the_bound_of_equation_5_by_hand():
    # N = 2, M = P = 1, n1 = n2 = 2: t1 = 8 (5/3)^2, t2 = 3/4, and eta is gamma
    t1, gap = 8 * (5 / 3) ** 2, 1 - 0.75**0.5
    by_hand = 0.1 / 2 + 2 * 0.1**2 * 8 * 2 * t1 / 8 * (4 + 2 / gap**2)
    bound = error_bound(0.1, num_pipelines=2, num_stages=1, history=1, n1=2, n2=2)
    assert bound == pytest.approx(by_hand)


def test_workers_that_averaged_in_all_groups_are_equal_and_others_are_apart():
    rows = simulated.history_rows(histories=[1, 50], mesh=[1, 2], num_iterations=8, learning_rate=0.5, seeds=1)
    assert value(rows, "squared_distance", P=1) < 1e-12 < value(rows, "squared_distance", P=50)
