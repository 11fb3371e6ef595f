"""The advisor: hand-worked numbers, the answer "none of them", reasons, limits, and what it reads of records."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import workbench
from workbench.advisor import Advised
from workbench.advisor.evidence import Evidence, evidence
from workbench.advisor.predictions import DECIDERS, PAYS, PREDICTIONS, Prediction, break_even, predict
from workbench.advisor.question import ask
from workbench.cli import app, exit_code
from workbench.reproduction import Project

FOUR = "4x1 V100, 25 Gbit/s"
TABLE = (50_000, 16)  # rows and width: 3.2 MB in FP32
ANSWER = Prediction(plain="plain", without_s=1.2, with_s=1.0, how="chosen")


def behind(missed=None, seen=None):
    return Evidence(name="Name", line="line", lost="nothing", missed=missed, seen=seen, ratio="ratio", items=("a/b",))


def test_zen_is_compared_with_the_faster_of_a_dense_sum_and_a_gather_of_indices_and_values():
    # Dense: 2 x 3/4 x 3.2 MB / 3.125 GB/s and 6 start-ups of 50 us. Sparse: 3 x (1 + 4/64) x d x 3.2 MB, 1 start-up.
    full, sparse = (predict("zen", ask("GPT-2", FOUR, embedding=TABLE, density=d)) for d in (0.7, 0.1))
    assert (full.plain, full.without_s) == ("torch's dense sum", pytest.approx(1.536e-3 + 0.3e-3))
    assert (sparse.plain, sparse.without_s) == ("AGsparse", pytest.approx(0.3264e-3 + 0.05e-3))


def test_atp_is_compared_with_megatron_over_the_slow_links_between_machines():
    # A layer sums 4 activations of 1024 x 1024 x 2 bytes, each 2 x 7/8 of it over 1.25 GB/s and 14 start-ups of 50 us.
    asked = ask("GPT-2 medium", "2x4 H100, 10 Gbit/s", batch=1, tp=8, pp=1, computation_s=0.8)
    prediction = predict("atp", asked)
    layer_s = 4 * (2 * 7 / 8 * 1024 * 1024 * 2 / 1.25e9 + 14 * 50e-6)
    assert prediction.without_s == pytest.approx(0.8 / 8 + 24 * layer_s)
    assert prediction.gain >= 1


def test_the_computation_is_that_of_a_replica_shared_by_its_ranks():
    asked = ask("GPT-2 medium", "1x8 H100", tp=4, pp=1, computation_s=0.4)
    assert (asked.computation_s, asked.num_replicas) == (pytest.approx(0.1), 2)
    assert asked.gradients.forward_s + asked.gradients.backward_s == pytest.approx(0.4)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.table(ids))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_module_is_asked_about_with_what_was_measured_of_its_step(is_sparse):
    module = Tagger()
    module.table.sparse = is_sparse

    def step():
        module.zero_grad()
        module(torch.tensor([1, 2, 2, 7])).sum().backward()

    asked = ask(module, FOUR, step=step)
    assert asked.gradients.tensors[-1] == "table.weight" and asked.gradients.total_bytes == 4 * (3 + 12 + 80)
    assert (asked.embedding, asked.density) == ((20, 4), pytest.approx(3 / 20))
    assert "embedding of 20 rows of 4, 15.00% of them in a step" in asked.said
    assert predict("zen", asked).plain == "AGsparse"
    slower = ask(module, FOUR, step=step, computation_s=2.0, density=0.5)
    assert slower.gradients.forward_s + slower.gradients.backward_s == pytest.approx(2.0)
    assert slower.density == 0.5
    with pytest.raises(ValueError, match="step is missing"):
        ask(module, FOUR)
    with pytest.raises(ValueError, match="step is given, but model is 'GPT-2'"):
        ask("GPT-2", FOUR, step=step)


class LSTM(Tagger):
    """One's own, by the name of a model of table 3.1."""


@pytest.mark.parametrize("is_bag", [False, True])
def test_a_module_is_not_taken_for_a_paper_s_model_and_has_the_gradients_that_it_had(is_bag):
    module = LSTM()
    if is_bag:
        module.table = nn.EmbeddingBag(20, 4)
    ids = torch.arange(20)[None] if is_bag else torch.arange(20)  # dense: no table is worth a sparse sum
    step = lambda: module(ids).sum().backward()  # noqa: E731
    asked = ask(module, FOUR, step=step)
    assert (asked.embedding, asked.density) == (None, 1.0)
    assert all(parameter.grad is None for parameter in module.parameters())
    ids = ids[..., :5]
    kept = module.head.bias.grad = torch.ones(3)
    asked = ask(module, FOUR, step=step)
    assert (asked.embedding, asked.density) == ((20, 4), pytest.approx(5 / 20))
    assert module.head.bias.grad is kept and kept.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="model is a Sequential without parameters"):
        ask(nn.Sequential(), FOUR, step=step)


def test_a_module_of_hugging_face_has_the_sizes_of_its_config():
    from transformers import GPT2Config, GPT2LMHeadModel

    module = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=8))
    ids = torch.arange(8)[None]
    asked = ask(module, FOUR, step=lambda: module(ids, labels=ids).loss.backward(), batch=3)
    assert (asked.sizes.hidden_size, asked.sizes.num_layers, asked.workload.num_layers) == (16, 2, 2)
    assert (asked.batch, asked.workload.sequence) == (3, 8)


def test_a_step_shows_its_sequences_and_frozen_weights_need_memory_without_adams_moments():
    from transformers import GPT2Config, GPT2LMHeadModel

    module = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50_257, n_positions=8))
    module.transformer.wte.weight.requires_grad_(False)  # 804,112 values of 4 bytes, tied to the head
    ids = torch.arange(5).expand(3, 5)
    asked = ask(module, FOUR, step=lambda: module(ids, labels=ids).loss.backward())
    assert (asked.batch, asked.workload.sequence) == (3, 5)
    assert {"batch 3 a replica, as in the step", "sequence 5, as in the step"} <= set(asked.said)
    assert any("16 bytes a parameter that is trained, and 0.0032 GB of frozen ones" in words for words in asked.said)


def test_it_can_say_none_of_them():
    advice = workbench.advise("GPT-2 medium", "8x8 H100, 400 Gbit/s", limits=False)
    assert advice.best == () and "none of them" in str(advice)
    assert advice.tested in str(advice)
    assert [row.technique for row in advice.rows if isinstance(row.prediction, str)] == [
        "activation_compression", "atp", "flextp", "sdpipe", "zen"
    ]  # fmt: skip


def test_a_combination_says_what_does_not_apply_or_how_they_work_together():
    both = workbench.advise("GPT-2", FOUR, embedding=TABLE, density=0.1, limits=False)
    assert both.combined[0].startswith("Zen with Gemini: they work together: what resumes has the bits")
    assert (
        both.combined[3]
        == "FlexTP with Activation compression: does not apply: FlexTP and Activation compression do not"
    )
    assert both.to_json()["combined"] == list(both.combined) and both.combined[0] in str(both)
    alone = workbench.advise("DeepFM", FOUR, density=0.01, limits=False)
    assert alone.combined[0] == "Zen with Gemini: does not apply: Gemini does not"


def test_slow_links_make_compression_pay():
    asked = ask("GPT-2", "8x8 H100, 10 Gbit/s")
    prediction = predict("cupcake", asked)
    assert prediction.gain > PAYS
    assert prediction.ratio == pytest.approx(1 - asked.computation_s / prediction.without_s)


@pytest.mark.parametrize(
    ("technique", "machines", "inputs", "reason"),
    [
        ("zen", FOUR, {}, "no embedding is sparse"),
        ("zen", "3x1 V100, 25 Gbit/s", {"embedding": TABLE, "density": 0.01}, "powers of two"),
        ("espresso", "1x1 H100", {}, "one GPU exchanges no gradients"),
        ("cupcake", "1x8 H100", {"tp": 2, "pp": 1}, "data parallelism alone"),
        ("activation_compression", "1x8 H100", {}, "no activation travels"),
        ("atp", "1x8 H100", {}, "nothing is cut"),
        ("flextp", "1x8 H100", {"tp": 4, "pp": 1}, "no GPU is slow"),
        ("flextp", "1x8 H100", {"tp": 4, "pp": 1, "slow": 2.0, "slow_share": 0.1}, "delays come and go"),
        ("sdpipe", "1x8 H100", {"slow": 2.0}, "no pipeline"),
        ("gemini", "1x8 H100", {}, "one machine has no other"),
        ("gemini", FOUR, {"failures_per_machine_day": 0.0}, "no machine fails"),
    ],
)
def test_what_does_not_apply_says_why(technique, machines, inputs, reason):
    assert reason in predict(technique, ask("GPT-2", machines, **inputs))


@pytest.mark.parametrize(
    ("model", "machines", "inputs", "named"),
    [
        ("GPT-7", "1x8 H100", {}, "model"),
        ({"hidden_size": 8}, "1x8 H100", {}, "num_hidden_layers or n_layer"),
        ("GPT-2", "8 H100", {}, "machines"),
        ("GPT-2", "1x8 P100", {}, "machines"),
        ("GPT-2", "8x8 H100", {}, "network"),
        ("GPT-2 100B", "1x8 V100", {}, "machines"),
        ("GPT-2", "1x8 H100", {"batch": 0}, "batch"),
        ("GPT-2", "1x8 H100", {"computation_s": -1.0}, "computation_s"),
        ("GPT-2", "1x8 H100", {"slow": 0.5}, "slow"),
        ("GPT-2", "1x8 H100", {"slow": 2.0, "slow_share": 0.0}, "slow_share"),
        ("GPT-2", "1x8 H100", {"density": 1.5}, "density"),
        ("GPT-2", "1x8 H100", {"tp": 3, "pp": 1}, "tp"),
        ("GPT-2", "1x8 H100", {"failures_per_machine_day": -1.0}, "failures_per_machine_day"),
    ],
)
def test_bad_input_is_one_error_that_names_the_field(model, machines, inputs, named):
    with pytest.raises(ValueError, match=named) as error:
        ask(model, machines, **inputs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("technique", "asked"),
    [
        ("cupcake", ask("GPT-2", "8x8 H100, 400 Gbit/s")),
        ("zen", ask("DeepFM", "16x1 V100, 25 Gbit/s", density=0.01)),
        ("flextp", ask("GPT-2", "1x8 H100", tp=4, pp=1)),
        ("gemini", ask("GPT-2 100B", "16x8 A100, 400 Gbit/s RDMA")),
    ],
)
def test_the_limit_agrees_with_a_scan(technique, asked):
    decider = DECIDERS[technique]
    limit = break_even(technique, asked, decider)
    assert limit is not None
    for factor in (0.5, 0.9, 1.1, 2.0):
        value = limit.value * factor
        if decider.low <= value <= decider.high:
            prediction = predict(technique, asked.changed(decider.name, value))
            assert (prediction.gain >= PAYS) == ((factor < 1) == limit.pays_below), (factor, prediction)


def test_a_recorded_error_makes_the_gain_an_interval():
    measured = Advised(technique="zen", prediction=ANSWER, behind=behind(missed=(0.8, 1.1)))
    assert measured.interval == pytest.approx((0.96, 1.32)) and measured.word == "may pay"
    assert Advised(technique="zen", prediction=ANSWER, behind=behind(missed=(0.9, 1.1))).word == "pays"
    assert Advised(technique="zen", prediction=ANSWER, behind=behind(missed=(0.9, 1.1), seen=(1, 2))).word == "pays"
    inside = replace(ANSWER, ratio=0.5, least_s=0.9)
    outside = Advised(technique="zen", prediction=inside, behind=behind(missed=(0.9, 9), seen=(1, 2)))
    assert outside.word == "may pay" and outside.interval is None and "in this regime" in str(outside)
    bound = Advised(technique="zen", prediction=replace(inside, least_s=1.19), behind=behind(missed=(0.9, 9)))
    assert bound.interval == pytest.approx((1.2 / 1.19, 1.2 / 1.19))
    unknown = Advised(technique="zen", prediction=ANSWER, behind=behind())
    assert unknown.word == "may pay" and "not measured" in str(unknown)


def test_errors_and_regimes_are_those_of_the_records():
    by_technique, folder = evidence(), Project().reproductions
    assert by_technique.keys() == PREDICTIONS.keys()
    rows = json.loads((folder / "zen/recorded/laptop/crossover/measured.json").read_text())["values"]
    rows = [row for row in rows if row["quantity"] == "measured_over_predicted"]
    ratios = {
        scheme: {row["density"]: row["value"] for row in rows if row.get("scheme") == scheme}
        for scheme in ("AGsparse", "Zen")
    }  # fmt: skip
    factors = [ratios["AGsparse"][density] / ratio for density, ratio in ratios["Zen"].items()]
    assert by_technique["zen"].missed == pytest.approx((min(factors), max(factors)))
    assert by_technique["sdpipe"].missed is None
    assert all(record.lost and "not recorded" not in record.lost and record.items for record in by_technique.values())
    assert {name for name, record in by_technique.items() if record.missed} == {
        "activation_compression", "cupcake", "espresso", "flextp", "zen"
    }  # fmt: skip


def test_a_config_of_hugging_face_has_the_sizes_of_the_model(tmp_path):
    config = {"n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 50257, "model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    named, read = ask("GPT-2 medium", "1x8 H100"), ask(tmp_path / "config.json", "1x8 H100")
    assert read.workload.num_parameters == named.workload.num_parameters
    assert read.computation_s == pytest.approx(named.computation_s)


def test_zen_at_one_per_cent_on_four_nodes_is_answered_by_one_command():
    words = ["advise", "DeepFM", "--machines", FOUR, "--density", "0.01", "--no-limits"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0 and "AGsparse" in shown.output and "1.00% of the rows" in shown.output
    shown = CliRunner().invoke(app, [*words, "--json"])
    assert {row["technique"] for row in json.loads(shown.output)["rows"]} == PREDICTIONS.keys()


def test_wrong_words_are_one_line_on_stderr(capsys):
    assert exit_code(["advise", "GPT-7"]) == 2
    assert "model is 'GPT-7'" in capsys.readouterr().err
