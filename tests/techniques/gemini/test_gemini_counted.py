"""Sizes and rows of the counted items: against Hugging Face's models, printed tables, and numbers worked by hand."""

import csv
from pathlib import Path

import pytest
import torch
import transformers

from workbench.techniques.gemini import counted
from workbench.techniques.gemini.counted import MACHINES, PARAMETERS, union_bound
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.probability import group_bound, recovery_probability
from workbench.techniques.gemini.method.sizes import (
    TABLE_6_2,
    Family,
    ModelSizes,
    checkpoint_bytes,
    machine_shard_bytes,
    num_parameters,
)

pytestmark = pytest.mark.timeout(60)

PUBLISHED = Path(__file__).parents[3] / "reproductions" / "gemini" / "published"
SMALL = {"hidden_size": 8, "num_layers": 3, "num_heads": 2, "vocab_size": 50, "max_positions": 12}


def _value(rows, quantity, **keys):
    found = [row["value"] for row in rows if row["quantity"] == quantity and keys.items() <= row.items()]
    assert len(found) == 1, (quantity, keys, found)
    return found[0]


def _published(name, quantity):
    with (PUBLISHED / name).open(newline="") as lines:
        return [row for row in csv.DictReader(lines) if row["quantity"] == quantity]


def _built(family, inner):
    common = {"vocab_size": 50, "pad_token_id": 0}
    if family is Family.GPT_2:
        config = transformers.GPT2Config(
            n_embd=8, n_layer=3, n_head=2, n_inner=inner, n_positions=12, **common, bos_token_id=1, eos_token_id=1
        )
        return transformers.GPT2LMHeadModel(config)
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": inner}
    if family is Family.ROBERTA:
        config = transformers.RobertaConfig(max_position_embeddings=14, type_vocab_size=1, **sizes, **common)
        return transformers.RobertaForMaskedLM(config)
    config = transformers.BertConfig(max_position_embeddings=12, **sizes, **common)
    return transformers.BertForPreTraining(config)


@pytest.mark.parametrize("inner", [32, 20])
@pytest.mark.parametrize("family", Family)
def test_the_closed_form_counts_the_parameters_of_hugging_face_s_models(family, inner):
    with torch.device("meta"):
        model = _built(family, inner)
    built = sum(parameter.numel() for parameter in model.parameters())
    if family is Family.BERT:
        built -= 2 * 8 + 2  # the head that judges whether two sentences follow each other
    assert num_parameters(ModelSizes(family=family, intermediate_size=inner, **SMALL)) == built


def test_gpt_2_100b_is_counted_as_by_hand():
    # 124 (12·8192² + 13·8192) + (50265 + 512)·8192 + 2·8192
    assert num_parameters(TABLE_6_2["GPT-2 100B"]) == 124 * 805_412_864 + 415_965_184 + 16_384


def test_gpt_2_10b_has_less_than_four_billion():
    # a layer: 12·2560² + 13·2560 = 78,643,200 + 33,280
    assert num_parameters(TABLE_6_2["GPT-2 10B"]) == 46 * 78_676_480 + 50_777 * 2560 + 2 * 2560


def test_a_checkpoint_has_twelve_bytes_a_parameter_and_is_shared_out():
    assert checkpoint_bytes(100e9) == 1200e9
    assert machine_shard_bytes(100e9, 16) == 75e9
    with pytest.raises(ValueError, match="num_machines is 0"):
        machine_shard_bytes(1, 0)
    with pytest.raises(ValueError, match="parameters is -1"):
        checkpoint_bytes(-1)
    with pytest.raises(ValueError, match="num_layers is 0"):
        ModelSizes(family=Family.BERT, intermediate_size=32, **SMALL | {"num_layers": 0})


def test_the_tables_in_the_code_are_those_that_are_published():
    printed = {(row["machine"], row["memory"]): float(row["value"]) for row in _published("table-6-1.csv", "memory")}
    ours = {
        (row["machine"], row["memory"]): row["value"]
        for row in counted.count_memory(16, 2)
        if row["quantity"] == "memory"
    }
    assert ours == printed
    assert [row["model"] for row in _published("table-2-1.csv", "checkpoint_size")] == list(PARAMETERS)
    assert [row["model"] for row in _published("table-6-2.csv", "parameters")] == list(TABLE_6_2)


def test_buffers_are_two_for_each_replica_of_the_shard():
    rows = counted.count_memory(16, 2)
    # 2·2·12 bytes · 100.287 10⁹ / 16
    assert _value(rows, "buffers", machine="p4d.24xlarge", memory="needed") == pytest.approx(300.86, abs=0.01)
    # full GPUs: 4 · 12/16 of 8·40 GB
    assert _value(rows, "fullest_buffers", machine="a2-highgpu-8g", memory="needed") == 960
    assert _value(rows, "memory_ratio", machine="a2-highgpu-8g") == 2
    assert len(MACHINES) == 7


def test_mt_nlg_s_checkpoint_takes_42_minutes_and_a_failure_two_and_a_half_times_that():
    rows = counted.count_checkpoints()
    assert _value(rows, "time_to_storage") == pytest.approx(530e9 * 12 * 8 / 20e9 / 60)
    assert _value(rows, "recovery_overhead") == pytest.approx(2.5 * 42.4 / 60)
    assert _value(rows, "growth", of="checkpoint") == pytest.approx(530 / 17.2)


def test_the_layers_that_a_name_would_take_have_its_parameters():
    rows = counted.count_parameters(128)
    assert _value(rows, "layers_for_name", model="GPT-2 10B") == 125
    assert _value(rows, "layers_for_name", model="GPT-2 100B") == 124
    assert _value(rows, "checkpoint_per_gpu") == pytest.approx(9.402, abs=1e-3)


def test_figure_6_3_counts_pairs_and_parts():
    rows = counted.count_placements()
    assert [_value(rows, "fatal", placement=kind) for kind in ("group", "ring", "mixed")] == [2, 4, 4]
    assert _value(rows, "of", placement="mixed") == 10
    assert [_value(rows, "part_size", placement="mixed", part=part) for part in (1, 2)] == [2, 3]
    assert _value(rows, "fallback_saved") == 50


def test_the_union_bound_of_groups_is_corollary_6_1_and_never_above_the_probability():
    for k in range(13):
        assert union_bound(placement(12, 3), k) == group_bound(12, 3, k)
        for kind in ("group", "ring"):
            assert union_bound(placement(12, 3, kind), k) <= recovery_probability(placement(12, 3, kind), k)


def test_the_ring_is_25_percent_behind_by_its_bound_and_21_by_its_probability():
    rows = counted.count_bounds(16, 2, [3])
    assert _value(rows, "ring_lower", reading="bound, relative") == 25
    # 22/35 beside 28/35
    assert _value(rows, "ring_lower", reading="exact, relative") == pytest.approx(600 / 28)
    assert _value(rows, "ring_lower", reading="exact, points") == pytest.approx(600 / 35)


def test_a_reading_relative_to_nothing_is_left_out():
    rows = counted.count_bounds(4, 2, [4])
    assert {row["reading"] for row in rows if row["quantity"] == "ring_lower"} == {"exact, points", "bound, points"}


def test_probabilities_and_fallbacks_add_up_to_a_hundred():
    rows = counted.count_probabilities([16], [2])
    exact = _value(rows, "recovery_probability", placement="group", way="exact")
    assert exact + _value(rows, "fallback", placement="group") == pytest.approx(100)
    assert exact == pytest.approx(1400 / 15)


def test_rows_of_the_theorem_say_by_how_much_algorithm_6_1_is_missed():
    rows = counted.count_theorem([[4, 2, 2], [4, 2, 3]])
    assert _value(rows, "missed", among="all", k=2) == 0
    assert _value(rows, "missed", among="all", k=3) == 25  # 1 of 4, and none
    assert _value(rows, "upper_bound_missed", k=2) == 0


def test_gaps_are_shares_of_the_bound_and_pass_over_sizes_without_a_gap():
    rows = counted.count_gaps(7, [3])
    # q = 1: m + q - 2 = 2 of 2m - 3 = 3; q = 2: all of it
    assert {row["num_machines"]: row["value"] for row in rows} == pytest.approx({4: 2 / 3, 5: 1, 7: 2 / 3})


def test_rows_of_racks_have_every_placement_and_number_of_losses():
    rows = counted.count_racks([[8, 2, 2]], [1, 2])
    assert _value(rows, "rack_recovery", placement="group", lost=1) == 0
    assert _value(rows, "rack_recovery", placement="group across racks", lost=2) == pytest.approx(400 / 6)
    # a ring of racks 0 1 2 3 loses with any of four neighbouring pairs of six
    assert _value(rows, "rack_recovery", placement="ring across racks", lost=2) == pytest.approx(200 / 6)
    assert _value(rows, "machine_loss_change", placement="ring") == 0
