"""Spectra and what arrives of a message: by hand, by definition, and on real ranks."""

import pytest
import torch
from cases import refusals
from torch.nn import functional

from workbench.compression import TopK
from workbench.datasets import SourceKind, glue
from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face, to_hugging_face
from workbench.models.pretrained import load_encoder
from workbench.parallel import VirtualTensorGroup
from workbench.techniques.activation_compression import reconstruction as study
from workbench.techniques.activation_compression import spectrum
from workbench.techniques.activation_compression.method import method
from workbench.techniques.activation_compression.spectrum import Setting, Spectrum

pytestmark = pytest.mark.usefixtures("generated_data")

SMALL = {"encoder": "stand-in", "sentences": [40], "seeds": [0]}  # 40 sentences: two micro-batches


def rotated(values: list[float]) -> torch.Tensor:
    """Build a tall matrix with the given singular values."""
    draw = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(9, len(values), generator=draw, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64)).Q
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right


def test_curves_areas_and_dimensions_of_equal_singular_values_of_rank_one_and_of_4_3_2_1_by_hand():
    values = spectrum.singular_values(rotated([3.0] * 5))
    torch.testing.assert_close(spectrum.cumulative_share(values), torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0]).double())
    assert spectrum.area_above_diagonal(values) == pytest.approx(0, abs=1e-12)
    assert spectrum.dimension_share(values, 0.6) == 3 / 5
    of_rank_one = spectrum.singular_values(torch.outer(torch.ones(7), torch.arange(4.0)))
    assert spectrum.area_above_diagonal(of_rank_one) == pytest.approx(0.5 - 1 / 8)
    assert spectrum.dimension_share(of_rank_one, 0.9) == 1 / 4
    values = spectrum.singular_values(rotated([1.0, 4.0, 2.0, 3.0]))
    torch.testing.assert_close(values, torch.tensor([4.0, 3.0, 2.0, 1.0]).double())
    torch.testing.assert_close(spectrum.cumulative_share(values), torch.tensor([0.4, 0.7, 0.9, 1.0]).double())
    # trapezoids of width 1/4: (0 + 0.4)/2 + (0.4 + 0.7)/2 + (0.7 + 0.9)/2 + (0.9 + 1)/2 = 2.5, over 4, less 1/2
    assert spectrum.area_above_diagonal(values) == pytest.approx(0.125)
    assert spectrum.dimension_share(values, 0.5) == 2 / 4
    assert spectrum.dimension_share(values, 0.9) == 3 / 4


test_wrong_shares_matrices_settings_and_groups_are_refused = refusals(
    (lambda: spectrum.dimension_share(torch.ones(3), 90), r"share is 90; it must be in \(0, 1\]"),
    (lambda: spectrum.cumulative_share(torch.zeros(3)), "values is all zero; it must hold"),
    (lambda: Setting(task="stsb"), "task is 'stsb'; it must be a GLUE task with classes"),
    (lambda: Setting(seeds=[]), "seeds is empty; it must hold at least one number"),
    (lambda: Setting(sentences=[0]), "sentences is 0; it must be a whole number of at least 1"),
    (lambda: spectrum.measure(Setting(), VirtualTensorGroup(3)), "tensor_ranks is 2; it must be the group's"),
    (lambda: study.best_linear_code(torch.eye(3), 0), "code_size is 0; it must be at least 1"),
)


def test_summaries_average_parts_first_and_give_the_range_over_seeds():
    def one(seed: int, part: str, values: list[float]) -> Spectrum:
        keys = {"matrix": "weight gradient", "depth": "middle", "sentences": 8}
        return Spectrum(part=part, seed=seed, values=torch.tensor(values).double(), **keys)

    equal, single = [1.0, 1.0], [1.0, 0.0]  # areas 0 and 1/4
    spectra = [one(0, "a", equal), one(0, "b", single), one(1, "a", single), one(1, "b", single)]
    row = spectrum.summary_rows(spectra)[0]
    assert (row["quantity"], row["matrix"], row["unit"]) == ("area_above_diagonal", "weight gradient", "share")
    assert (row["low"], row["value"], row["high"]) == pytest.approx((0.125, 0.1875, 0.25))
    curves = spectrum.mean_curves(spectra, "middle", 8)["weight gradient"]
    torch.testing.assert_close(curves, torch.tensor([[0.75, 1.0], [1.0, 1.0]]).double())
    # Curves of unlike length meet on the shorter one.
    keys = {"matrix": "activation", "part": "", "depth": "middle", "sentences": 8}
    pair = [Spectrum(seed=k, values=torch.ones(k).double(), **keys) for k in (2, 3)]
    curves = spectrum.mean_curves(pair, "middle", 8)["activation"]
    torch.testing.assert_close(curves, torch.tensor([[0.5, 1.0], [0.5, 1.0]]).double())


def by_definition() -> dict[str, torch.Tensor]:
    """Take the middle layer's matrices from one whole padded batch by plain autograd, without ranks or hooks."""
    encoder = load_encoder("stand-in")
    text = glue.load("sst2", "train", limit=40, seed=0)
    model = BertForSequenceClassification(BertConfig.from_hugging_face(encoder.config, seed=0))
    load_hugging_face(model, encoder.state_dict)
    tokens = encoder.encode(*text.texts, max_tokens=128)
    kept = []
    model.encoder.layers[0].register_forward_hook(lambda layer, inputs, output: kept.append(output))
    logits = model(tokens["input_ids"], tokens["attention_mask"], tokens["token_type_ids"])
    loss = functional.cross_entropy(logits, torch.tensor(text.labels))
    (gradient,) = torch.autograd.grad(loss, kept[0], retain_graph=True)
    loss.backward()
    is_token = tokens["attention_mask"].bool()
    weights = to_hugging_face(model, gradients=True)
    return {
        "activation": kept[0][is_token],
        "activation gradient": gradient[is_token],
        "weight gradient": weights["encoder.layer.0.output.dense.weight"],
    }


def test_micro_batches_and_ranks_give_the_spectra_of_the_whole_batch():
    measured = spectrum.measure(Setting(**SMALL))
    of_middle = [curve for curve in measured.spectra if curve.depth == "middle" and curve.part in ("", "mlp.output")]
    by_matrix = {curve.matrix: curve.values for curve in of_middle}
    for name, matrix in by_definition().items():
        expected = spectrum.singular_values(matrix)
        torch.testing.assert_close(by_matrix[name], expected, rtol=1e-3, atol=1e-5 * float(expected[0]))


def test_in_full_every_layer_and_matrix_stands_for_itself_and_stand_ins_say_so():
    measured = spectrum.measure(Setting(**SMALL, in_full=True))
    names = {curve.matrix for curve in measured.spectra}
    assert {"weight gradient: mlp.input", "message: attention.output", "weight gradient"} <= names
    assert {curve.depth for curve in measured.spectra} == {"middle", "last"}
    assert [source.kind for source in measured.data] == [SourceKind.STAND_IN, SourceKind.STAND_IN]


def test_real_ranks_measure_the_same_as_virtual_ones(run_on_open_ranks, monkeypatch):
    monkeypatch.setattr("workbench.launch.run_on_ranks", run_on_open_ranks)
    setting = Setting(**SMALL, tensor_ranks=4)
    real, virtual = spectrum.measure_on_ranks(setting), spectrum.measure(setting)
    assert real.configuration == {**virtual.configuration, "ranks": "real"}
    for curve, expected in zip(real.spectra, virtual.spectra, strict=True):
        assert (curve.matrix, curve.part, curve.depth) == (expected.matrix, expected.part, expected.depth)
        torch.testing.assert_close(curve.values, expected.values, rtol=1e-3, atol=1e-5 * float(expected.values[0]))
    # A rank sends no more directions after attention than it has columns.
    place = ("message", "attention.output", "last")
    (values,) = (curve.values for curve in virtual.spectra if (curve.matrix, curve.part, curve.depth) == place)
    assert len(values) == 64
    assert int((values > 1e-5 * values[0]).sum()) == 64 // 4


@pytest.fixture(scope="module")
def text(generated_data):
    return study.encode_text(4, encoder="stand-in")


def test_the_lost_share_is_that_of_lengths_and_the_best_linear_code_loses_least():
    # sent has length 5, the error length 3
    assert study.lost_share(torch.tensor([0.0, 4.0]), torch.tensor([3.0, 4.0])) == pytest.approx(3 / 5)
    assert study.lost_share(torch.zeros(2), torch.tensor([3.0, 4.0])) == 1
    matrix = torch.diag(torch.tensor([1.0, 6.0, 2.0]))
    torch.testing.assert_close(study.best_linear_code(matrix, 1), torch.diag(torch.tensor([0.0, 6.0, 0.0])))
    torch.testing.assert_close(study.best_linear_code(matrix, 3), matrix)
    matrix = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    best = study.lost_share(study.best_linear_code(matrix, 3), matrix)
    for seed in range(20):
        code = torch.linalg.qr(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))).Q
        assert study.lost_share(matrix @ code @ code.T, matrix) >= best


def test_partial_sums_of_a_layer_add_up_to_what_it_uses_and_losses_are_those_of_the_decoded_messages(text):
    layer = text.model.layers[1]
    message_RNH = text.messages_RNH[1, "mlp.output"]
    assert len(message_RNH) == 2 and message_RNH.shape[1:] == text.hidden_NH[1].shape
    # Post-layer norm: the output is norm(residual + sum + bias), so swapping ranks' parts changes nothing.
    torch.testing.assert_close(message_RNH.sum(0), message_RNH.flip(0).sum(0))
    assert layer.get_submodule("mlp.output").reduction is None  # as it was
    (row,) = (row for row in study.losses(text, ["T4"]) if row["layer"] == 2 and row["reduction"] == "attention")
    message_RNH = text.messages_RNH[1, "attention.output"]
    keep = method("T4").kept_share(text.hidden_size)
    arrived = sum(TopK(keep)(part) for part in message_RNH)
    assert row["lost_share"] == pytest.approx(study.lost_share(arrived, message_RNH.sum(0)))
    assert {row["lost_share"] for row in study.losses(text, ["w/o"])} == {0.0}


def test_an_error_starts_in_the_compressed_layer_and_the_model_is_as_before(text):
    compressed = (("w/o", [0]), ("T1", [1]), ("w/o", [1]))
    before, in_layer_2, again = (study.error_path(text, name, layers) for name, layers in compressed)
    assert [row["lost_share"] for row in before] == [row["lost_share"] for row in again] == [0.0, 0.0]
    assert in_layer_2[0]["lost_share"] == 0 and in_layer_2[1]["lost_share"] > 0
    assert [row["is_compressed"] for row in in_layer_2] == [False, True]
    with pytest.raises(ValueError, match=r"layers has 2; it must be in 0\.\.1"):
        study.error_path(text, "T1", [2])
