"""Methods timed on real ranks, and links on which communication takes a share; nothing here asserts a duration."""

import math

import pytest
import torch

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.parallel.pipeline import open_mesh
from workbench.study.breakdown import break_down_stages
from workbench.study.timing import Timed, Turns, take_turns
from workbench.techniques.activation_compression.cost import Setting
from workbench.techniques.activation_compression.measured import (
    PRELOAD,
    ShareOf,
    carried_over_share,
    measure_iterations,
    measure_table,
    ranks_at_share,
    timed,
    trials,
)
from workbench.techniques.activation_compression.measured.links import Trial, _places, next_rate, share_row, slower_by
from workbench.techniques.activation_compression.training import compressed_pipeline, small_batch
from workbench.timeline import Recorder

pytestmark = pytest.mark.timeout(90)

TINY = {"micro_batch": 2, "sequence": 8, "hidden": 32, "layers": 4, "compressed_layers": 2, "value_bytes": 4}


def test_a_variant_says_what_differs_from_its_method():
    assert timed("T1 int32", **TINY).setting.index_bytes == 4
    assert timed("T1", **TINY).setting.index_bytes == 8
    assert "literal" in timed("R1 literal", **TINY).name
    assert timed("A1 fused", **TINY).setting.is_fused
    assert not timed("A1", **TINY).setting.is_fused


@pytest.mark.parametrize("name", ["A1 int32", "T1 literal", "T1 fused", "A1 other"])
def test_a_variant_that_its_method_cannot_have_is_refused(name):
    with pytest.raises(ValueError, match=f"name is '{name}'; the variant of {name[:2]} must be one of"):
        timed(name, **TINY)


def test_narrow_indices_keep_more_elements_in_as_many_bytes():
    x = torch.randn(2, 8, 32)
    wide, narrow = (timed(name, **TINY).codec().encode(x) for name in ("T2", "T2 int32"))
    assert len(narrow.tensors[0]) > len(wide.tensors[0])
    assert abs(narrow.num_bytes - wide.num_bytes) <= 12  # one element of 4 + 8 bytes


def test_the_literal_random_k_keeps_as_many_different_positions_as_the_fast_one():
    x = torch.randn(2, 8, 32)
    fast, literal = (timed(name, **TINY).codec().for_site("a").for_rank(0).encode(x) for name in ("R4", "R4 literal"))
    for payload in (fast, literal):
        assert payload.tensors[1].tolist() == sorted(set(payload.tensors[1].tolist()))
    assert len(fast.tensors[1]) == len(literal.tensors[1])
    assert fast.num_bytes == literal.num_bytes


@pytest.mark.parametrize("name", ["w/o", "fp16", "A1", "T1", "Q1", "T1 feedback"])
def test_a_recorded_codec_gives_the_same_bits_and_notes_both_halves(name):
    x, recorder = torch.randn(2, 8, 32), Recorder(resource="rank 0")
    plain = timed(name, **TINY).codec().for_site("here", 32)
    noted = timed(name, **TINY).codec(recorder).for_site("here", 32)
    assert torch.equal(plain.decode(plain.encode(x)), noted.decode(noted.encode(x)))
    assert [action.label for action in recorder.actions] == ["encode here", "decode here"]


@pytest.fixture(scope="module")
def pair():
    with Ranks(2, preload=PRELOAD) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def pair_of_gpus():
    with Ranks(2, device="cuda", preload=PRELOAD) as ranks:
        yield ranks


def two_rounds(tp, pp, device):
    methods = [timed(name, tp=tp, pp=pp, **TINY) for name in ("w/o", "A1", "T1", "Q1")]
    return take_turns(trials, [methods, 0, device], Turns(rounds=2, warmup=1), device)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_gpus_are_timed_as_processors_are(pair_of_gpus, tp, pp):
    assert_breakdowns(pair_of_gpus.run(two_rounds, tp, pp, "cuda"), tp, pp)


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_methods_are_timed_on_real_ranks_and_each_breakdown_adds_up(pair, tp, pp):
    assert_breakdowns(pair.run(two_rounds, tp, pp, "cpu"), tp, pp)


def assert_breakdowns(by_rank, tp, pp):
    timed_rounds = Timed.of(by_rank).rounds
    assert {name: len(rounds) for name, rounds in timed_rounds.items()} == dict.fromkeys(("w/o", "A1", "T1", "Q1"), 2)
    for name, rounds in timed_rounds.items():
        for turns in rounds:
            parts = break_down_stages([turn.actions for turn in turns], tp=tp)
            whole = parts.forward_s + parts.backward_s + parts.optimizer_s + parts.waiting_and_pipeline_s
            assert math.isclose(whole, parts.iteration_s)
            assert parts.encode_s + parts.decode_s + parts.tensor_s + parts.tensor_waiting_s <= parts.forward_s
            assert (parts.tensor_s > 0) == (tp > 1)
            assert (parts.encode_s > 0) == (tp > 1 and name != "w/o")
            assert len(parts.boundaries_s) == pp - 1


def test_rows_carry_their_interval_and_the_uncompressed_iteration_has_speedup_one():
    asked = {"link": None, "num_hosts": 1, "num_iterations": 6, "keys": {"nvlink": 1}}
    measured = measure_iterations(["w/o", "A1", "A1 fused"], [(2, 1)], **asked, **TINY)
    assert all(row["low"] <= row["value"] <= row["high"] and row["nvlink"] == 1 for row in measured.rows)
    (plain,) = [row for row in measured.rows if row["quantity"] == "speedup" and row["method"] == "w/o"]
    assert (plain["low"], plain["value"], plain["high"]) == (1, 1, 1)
    fusing = {row["execution"]: row for row in measured.rows if row["quantity"] == "speedup_of_fusing"}
    assert (fusing["as in the paper"]["low"], fusing["as in the paper"]["high"]) == (1, 1)
    assert fusing["fused"]["method"] == "A1"
    assert measured.trace["traceEvents"]


def encoder_gradients(fuse, name="A1"):
    setting = timed(name, tp=2, pp=1, num_micro_batches=2, fuse_gradients=fuse, **TINY).setting
    mesh = open_mesh(tensor=2, pipeline=1)
    pipeline = compressed_pipeline(setting, mesh)
    for _ in range(2):
        pipeline.step(*small_batch(setting))
    sites = {message.site for message in mesh.tensor_group.traffic if message.phase == "backward"}
    return {name: weight.grad for name, weight in pipeline.module.named_parameters()}, "encoder gradients" in sites


def test_encoder_gradients_in_one_message_and_fused_codes_train_with_the_gradients_of_the_papers_way(pair):
    ways = (False, "A1"), (True, "A1"), (True, "A1 fused")
    for of_rank in zip(*(pair.run(encoder_gradients, *way) for way in ways), strict=True):
        (expected, _), *others = of_rank
        assert [one_message for _, one_message in of_rank] == [False, True, True]
        assert sum(name.endswith(".encoder") for name in expected) == 4  # two reductions in each of two layers
        for name, gradient in expected.items():
            for gradients, _ in others:
                torch.testing.assert_close(gradients[name], gradient)


def fused_round():
    return take_turns(trials, [[timed("A1 fused", tp=2, pp=1, **TINY)], 0], Turns(rounds=1))


def test_a_fused_code_passes_through_the_recorder_and_is_noted(pair):
    turns, _ = pair.run(fused_round)[0]
    labels = [action.label for action in turns[0].actions if action.kind.name in ("ENCODE", "DECODE")]
    assert len(labels) == 2 * 2 * 2  # both halves, two reductions in each of two layers


MISSING = ShapedHosts.missing()


def test_the_share_at_tp_4_follows_from_that_of_table_4_at_tp_2():
    # 150.72 ms of 646.14 ms: communication 1.5 times 2 * 150.72 = 452.16, computing 344.70 / 2 = 172.35.
    found = carried_over_share(150.72 / 646.14, tp=2, to_tp=4)
    assert found == pytest.approx(226.08 / (452.16 + 172.35))
    assert found == pytest.approx(0.362, abs=5e-4)
    shares = [carried_over_share(0.2, tp=2, to_tp=ranks) for ranks in (2, 4, 8, 1000)]
    assert shares == sorted(shares) and shares[0] == pytest.approx(0.2) and shares[-1] < 0.5


def iterations(names, num_iterations):
    measure_iterations(names, [(2, 1)], link=None, num_hosts=1, num_iterations=num_iterations, **TINY)


def opened(share, **more):
    with ranks_at_share(share, **more, **TINY):
        pass


@pytest.mark.parametrize(
    ("refused", "rule"),
    [
        (lambda: iterations(["w/o"], 5), "num_iterations is 5; it must be at least 6"),
        (lambda: iterations(["A1"], 6), "'w/o' must be among them"),
        (lambda: carried_over_share(0.5, tp=2, to_tp=4), r"share is 0.5; it must be in 0 < share < 0\.5"),
        (lambda: carried_over_share(0.2, tp=2, to_tp=1), "to_tp is 1; it must be at least 2"),
        (lambda: opened(0.6), r"share is 0.6; it must be in 0 < share < 0\.5"),
        (lambda: opened(0.2, runs=1), "runs is 1; it must be at least 2"),
        (lambda: table(links=["quick"]), "'quick'"),
        (lambda: table(links=["slow"], share_mesh=[1, 2]), r"share_mesh is \(1, 2\)"),
    ],
)
def test_a_link_that_cannot_be_calibrated_is_refused_before_any_rank_starts(refused, rule):
    with pytest.raises(ValueError, match=rule):
        refused()


def test_a_link_becomes_as_much_slower_as_its_share_asks():
    # 10 of 100 ms forward, 20 in all: at 2.5 times the time 25 of 80 + 50 = 130, that is 5/26.
    assert slower_by(10, 20, 100, 25 / 130) == pytest.approx(2.5)
    assert slower_by(10, 20, 100, 0.1) == pytest.approx(1)
    assert slower_by(1, 50, 100, 0.4) == 10  # no link gives that at once
    assert next_rate([trial(50e6, 10, 20, 100)], 25 / 130) == pytest.approx(50e6 / 2.5)
    # A rate stays where shaped hosts can follow.
    assert next_rate([trial(2e6, 1, 1, 100)], 0.4) == 1e6
    assert next_rate([trial(1e9, 90, 95, 100)], 0.01) == 2e9


def trial(rate, part, communication, iteration):
    return Trial(
        bandwidth_bytes_per_s=rate,
        share=part / iteration,
        part_ms=part,
        communication_ms=communication,
        iteration_ms=iteration,
    )


def test_a_boundarys_share_is_that_of_its_bytes_over_the_links_rate():
    # 4 stages of 4 ranks on 4 hosts, 8 micro-batches, both directions: 4 * 8 * 2 messages of 4 * 32 * 256 * 4 = 131,072
    # bytes are 8,388,608; over 100 MB/s 83.9 ms; of 1 s.
    shape = {"micro_batch": 4, "sequence": 32, "hidden": 256, "layers": 4, "compressed_layers": 2, "value_bytes": 4}
    setting = Setting(tp=4, pp=4, num_micro_batches=8, **shape)
    rows = [{"quantity": "iteration_ms", "method": "w/o", "value": 1000, "low": 800, "high": 1200, "unit": "ms"}]
    link = Link(bandwidth_bytes_per_s=100e6, source="made up")
    found = share_row(rows, link, ShareOf.BOUNDARY, setting, num_hosts=4)
    assert found == pytest.approx({"value": 0.08388608, "low": 0.08388608 / 1.2, "high": 0.08388608 / 0.8})
    with pytest.raises(ValueError, match="tp is 2; it must be a multiple of the 4"):
        share_row(rows, link, ShareOf.BOUNDARY, Setting(tp=2, pp=8, **(shape | {"layers": 8})), num_hosts=4)


def affine(rate):
    """The part is 10 + 1000/MB/s, twice that is communication, the rest 100: 10 ms of copying no link makes shorter."""
    part = 10 + 1e9 / rate
    return trial(rate, part, 2 * part, 100 + 2 * part)


def test_the_third_rate_lies_on_the_line_through_two_trials_although_copying_does_not_scale():
    # A share of 0.25 asks for part = 0.25 (100 + 2 part), so part = 50 and 1000/rate = 40: 25 MB/s.
    assert next_rate([affine(40e6), affine(30e6)], 0.25) == pytest.approx(25e6)
    # Taken for proportional, the second trial would have overshot: part 43.3 to 50 is 1.154 times, 26 MB/s.
    assert next_rate([affine(30e6)], 0.25) == pytest.approx(26e6)


def test_trials_that_noise_turns_around_are_no_line():
    noisy = [trial(40e6, 50, 100, 200), trial(30e6, 40, 80, 200)]  # slower, and yet faster
    assert next_rate(noisy, 0.25) == next_rate(noisy[-1:], 0.25)
    close = [affine(30.3e6), affine(30e6)]  # 1 % apart: the difference would be noise
    assert next_rate(close, 0.25) == next_rate(close[-1:], 0.25)


def test_carried_over_links_are_for_more_tensor_parallel_ranks_alone():
    places = list(_places(["slow", "carried over", "fast"], [(1, 4), (2, 2), (4, 1)], 150.72 / 646.14, (2, 2)))
    assert [(place.link, place.meshes) for place in places] == [
        ("slow", ((2, 2), (1, 4), (4, 1))),
        ("carried over", ((4, 1),)),
        ("fast", ((1, 4), (2, 2), (4, 1))),
    ]
    assert [place.share for place in places] == [pytest.approx(0.2333, abs=1e-4), pytest.approx(0.362, abs=5e-4), None]


def table(**changes):
    asked = {
        "links": ["fast"],
        "batches": [[2, 8]],
        "share": 0.2,
        "share_of": "TENSOR",
        "share_mesh": [2, 1],
        "num_hosts": 2,
        "num_iterations": 6,
    } | changes
    sizes = {name: value for name, value in TINY.items() if name not in ("micro_batch", "sequence")}
    return measure_table(["w/o"], [[2, 1]], **asked, **sizes)


@pytest.mark.skipif(MISSING is not None, reason=f"shaped hosts need {MISSING}")
def test_the_share_that_the_measurement_reached_is_told_beside_the_one_that_was_asked():
    found = table(links=["slow"])
    (calibration,) = found.calibrations
    assert calibration.of is ShareOf.TENSOR
    assert calibration.link.bandwidth_bytes_per_s == calibration.trials[-1].bandwidth_bytes_per_s
    (error,) = [row for row in found.rows if row["quantity"] == "share_error"]
    (share,) = [row for row in found.rows if row["quantity"] == "communication_share"]
    assert error["value"] == pytest.approx(share["value"] - 0.2)
    assert error["low"] <= error["value"] <= error["high"]
    assert (share["link"], share["nvlink"]) == ("slow", 0)
    assert found.hosts[0]["bandwidth_bytes_per_s"] == round(calibration.link.bandwidth_bytes_per_s)
