"""The card, and sizes and rows of the counted items: against Hugging Face's models, printed tables, and by hand."""

import importlib
import re
import subprocess
import sys

import pytest
import torch
import transformers

from workbench.reproduction import published
from workbench.techniques import gemini
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

SMALL = {"hidden_size": 8, "num_layers": 3, "num_heads": 2, "vocab_size": 50, "max_positions": 12}


def value(rows, quantity, **keys):
    (found,) = [row["value"] for row in rows if row["quantity"] == quantity and keys.items() <= row.items()]
    return found


def _built(family, inner):
    common = {"vocab_size": 50, "pad_token_id": 0}
    if family is Family.GPT_2:
        sizes = {"n_embd": 8, "n_layer": 3, "n_head": 2, "n_inner": inner, "n_positions": 12}
        config = transformers.GPT2Config(**sizes, **common, bos_token_id=1, eos_token_id=1)
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


def test_parameters_and_bytes_of_gpt_2_are_counted_as_by_hand():
    # 124 (12·8192² + 13·8192) + (50265 + 512)·8192 + 2·8192
    assert num_parameters(TABLE_6_2["GPT-2 100B"]) == 124 * 805_412_864 + 415_965_184 + 16_384
    # a layer: 12·2560² + 13·2560 = 78,643,200 + 33,280: less than four billion in all
    assert num_parameters(TABLE_6_2["GPT-2 10B"]) == 46 * 78_676_480 + 50_777 * 2560 + 2 * 2560
    assert checkpoint_bytes(100e9) == 1200e9
    assert machine_shard_bytes(100e9, 16) == 75e9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: machine_shard_bytes(1, 0), "num_machines is 0"),
        (lambda: checkpoint_bytes(-1), "parameters is -1"),
        (lambda: ModelSizes(family=Family.BERT, intermediate_size=32, **SMALL | {"num_layers": 0}), "num_layers is 0"),
    ],
)
def test_impossible_sizes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_tables_in_the_code_are_those_that_are_published():
    printed = published("gemini/table-6-1/counted", "memory")
    ours = [row for row in counted.count_memory(16, 2) if row["quantity"] == "memory"]
    assert {(row["machine"], row["memory"]): row["value"] for row in ours} == {
        (row.machine, row.memory): row.value for row in printed.itertuples()
    }
    assert list(published("gemini/table-2-1/counted", "checkpoint_size")["model"]) == list(PARAMETERS)
    assert list(published("gemini/table-6-2/counted", "parameters")["model"]) == list(TABLE_6_2)


def test_buffers_are_two_for_each_replica_of_the_shard():
    rows = counted.count_memory(16, 2)
    # 2·2·12 bytes · 100.287 10⁹ / 16
    assert value(rows, "buffers", machine="p4d.24xlarge", memory="needed") == pytest.approx(300.86, abs=0.01)
    # full GPUs: 4 · 12/16 of 8·40 GB
    assert value(rows, "fullest_buffers", machine="a2-highgpu-8g", memory="needed") == 960
    assert value(rows, "memory_ratio", machine="a2-highgpu-8g") == 2
    assert len(MACHINES) == 7


def test_mt_nlg_s_checkpoint_takes_42_minutes_and_a_failure_two_and_a_half_times_that():
    rows = counted.count_checkpoints()
    assert value(rows, "time_to_storage") == pytest.approx(530e9 * 12 * 8 / 20e9 / 60)
    assert value(rows, "recovery_overhead") == pytest.approx(2.5 * 42.4 / 60)
    assert value(rows, "growth", of="checkpoint") == pytest.approx(530 / 17.2)


def test_rows_of_figure_6_3_and_of_the_layers_that_a_name_would_take():
    rows = counted.count_parameters(128)
    assert value(rows, "layers_for_name", model="GPT-2 10B") == 125
    assert value(rows, "layers_for_name", model="GPT-2 100B") == 124
    assert value(rows, "checkpoint_per_gpu") == pytest.approx(9.402, abs=1e-3)
    rows = counted.count_placements()
    assert [value(rows, "fatal", placement=kind) for kind in ("group", "ring", "mixed")] == [2, 4, 4]
    assert value(rows, "of", placement="mixed") == 10
    assert [value(rows, "part_size", placement="mixed", part=part) for part in (1, 2)] == [2, 3]
    assert value(rows, "fallback_saved") == 50


def test_the_union_bound_of_groups_is_corollary_6_1_and_never_above_the_probability():
    for k in range(13):
        assert union_bound(placement(12, 3), k) == group_bound(12, 3, k)
        for kind in ("group", "ring"):
            assert union_bound(placement(12, 3, kind), k) <= recovery_probability(placement(12, 3, kind), k)


def test_the_ring_is_25_percent_behind_by_its_bound_and_21_by_its_probability():
    rows = counted.count_bounds(16, 2, [3])
    assert value(rows, "ring_lower", reading="bound, relative") == 25
    # 22/35 beside 28/35
    assert value(rows, "ring_lower", reading="exact, relative") == pytest.approx(600 / 28)
    assert value(rows, "ring_lower", reading="exact, points") == pytest.approx(600 / 35)
    # A reading relative to nothing is left out.
    rows = counted.count_bounds(4, 2, [4])
    assert {row["reading"] for row in rows if row["quantity"] == "ring_lower"} == {"exact, points", "bound, points"}
    rows = counted.count_probabilities([16], [2])
    exact = value(rows, "recovery_probability", placement="group", way="exact")
    assert exact + value(rows, "fallback", placement="group") == pytest.approx(100)
    assert exact == pytest.approx(1400 / 15)


def test_rows_of_the_theorem_say_by_how_much_algorithm_6_1_is_missed():
    rows = counted.count_theorem([[4, 2, 2], [4, 2, 3]])
    assert value(rows, "missed", among="all", k=2) == 0
    assert value(rows, "missed", among="all", k=3) == 25  # 1 of 4, and none
    assert value(rows, "upper_bound_missed", k=2) == 0
    # Gaps are shares of the bound. q = 1: m + q - 2 = 2 of 2m - 3 = 3; q = 2: all of it; 3 and 6 have none.
    rows = counted.count_gaps(7, [3])
    assert {row["num_machines"]: row["value"] for row in rows} == pytest.approx({4: 2 / 3, 5: 1, 7: 2 / 3})


def test_rows_of_racks_have_every_placement_and_number_of_losses():
    rows = counted.count_racks([[8, 2, 2]], [1, 2])
    assert value(rows, "rack_recovery", placement="group", lost=1) == 0
    assert value(rows, "rack_recovery", placement="group across racks", lost=2) == pytest.approx(400 / 6)
    # a ring of racks 0 1 2 3 loses with any of four neighbouring pairs of six
    assert value(rows, "rack_recovery", placement="ring across racks", lost=2) == pytest.approx(200 / 6)
    assert value(rows, "machine_loss_change", placement="ring") == 0


# The card


def test_every_name_on_the_card_is_found():
    for name in gemini.__all__:
        assert getattr(gemini, name).__name__ == name


def test_every_place_that_the_card_names_exists():
    places = [place for place in re.findall(r"`([\w.]+)`", gemini.__doc__) if place not in gemini.__all__]
    assert len(places) > 15
    for place in places:
        importlib.import_module(f"workbench.techniques.gemini.{place}")


def test_the_card_the_probabilities_and_the_planners_import_no_torch():
    code = (
        "import sys; from workbench.techniques import gemini; gemini.recovery_probability, gemini.wasted_time_s, "
        "gemini.partition_checkpoint, gemini.best_checkpointing; from workbench.techniques.gemini import cost; "
        "cost.calibrated(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout.strip() == "False"
