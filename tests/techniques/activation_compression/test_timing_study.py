"""The timing study: names of variants, turns, and what rows say; nothing here asserts a duration."""

import math

import pytest
import torch

from workbench.launch import Ranks
from workbench.parallel.pipeline import open_mesh
from workbench.study.breakdown import break_down_stages
from workbench.study.timing import Timed, Turns, take_turns
from workbench.techniques.activation_compression.measured import PRELOAD, measure_iterations, timed, trials
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


@pytest.mark.parametrize(
    ("names", "num_iterations", "rule"),
    [(["w/o"], 5, "num_iterations is 5; it must be at least 6"), (["A1"], 6, "'w/o' must be among them")],
)
def test_what_cannot_be_measured_is_refused_before_any_rank_starts(names, num_iterations, rule):
    with pytest.raises(ValueError, match=rule):
        measure_iterations(names, [(2, 1)], link=None, num_hosts=1, num_iterations=num_iterations, **TINY)


def encoder_gradients(fuse, name="A1"):
    setting = timed(name, tp=2, pp=1, num_micro_batches=2, fuse_gradients=fuse, **TINY).setting
    mesh = open_mesh(tensor=2, pipeline=1)
    pipeline = compressed_pipeline(setting, mesh)
    for _ in range(2):
        pipeline.step(*small_batch(setting))
    sites = {message.site for message in mesh.tensor_group.traffic if message.phase == "backward"}
    return {name: weight.grad for name, weight in pipeline.module.named_parameters()}, "encoder gradients" in sites


def test_encoder_gradients_summed_in_one_message_equal_those_summed_one_by_one_over_micro_batches_and_steps(pair):
    one_by_one, together = (pair.run(encoder_gradients, fuse) for fuse in (False, True))
    for (expected, alone), (found, fused) in zip(one_by_one, together, strict=True):
        assert (alone, fused) == (False, True)
        assert sum(name.endswith(".encoder") for name in found) == 4  # two reductions in each of two layers
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)


def test_the_fused_variant_trains_with_the_same_gradients_as_the_papers_way(pair):
    papers, fused = (pair.run(encoder_gradients, True, name) for name in ("A1", "A1 fused"))
    for (expected, _), (found, _) in zip(papers, fused, strict=True):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)


def test_a_fused_code_passes_through_the_recorder_and_is_noted(pair):
    turns, _ = pair.run(fused_round)[0]
    labels = [action.label for action in turns[0].actions if action.kind.name in ("ENCODE", "DECODE")]
    assert len(labels) == 2 * 2 * 2  # both halves, two reductions in each of two layers


def fused_round():
    return take_turns(trials, [[timed("A1 fused", tp=2, pp=1, **TINY)], 0], Turns(rounds=1))
