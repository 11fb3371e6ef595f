"""What arrives of an activation: shares by hand, messages that add up, and errors that start where they are made."""

import pytest
import torch

from workbench.compression import TopK
from workbench.techniques.activation_compression import reconstruction as study
from workbench.techniques.activation_compression.method import method

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def text():
    with pytest.MonkeyPatch.context() as patch:  # the same generated text on every machine
        patch.delenv("WORKBENCH_DATA", raising=False)
        return study.encode_text(4, encoder="stand-in")


def test_the_lost_share_is_the_length_of_the_error_over_the_length_of_what_was_sent():
    # sent has length 5, the error length 3
    assert study.lost_share(torch.tensor([0.0, 4.0]), torch.tensor([3.0, 4.0])) == pytest.approx(3 / 5)
    assert study.lost_share(torch.zeros(2), torch.tensor([3.0, 4.0])) == 1


def test_the_best_linear_code_keeps_the_largest_singular_values():
    matrix = torch.diag(torch.tensor([1.0, 6.0, 2.0]))
    torch.testing.assert_close(study.best_linear_code(matrix, 1), torch.diag(torch.tensor([0.0, 6.0, 0.0])))
    torch.testing.assert_close(study.best_linear_code(matrix, 3), matrix)
    with pytest.raises(ValueError, match="code_size is 0; it must be at least 1"):
        study.best_linear_code(matrix, 0)


def test_no_random_code_of_the_same_size_loses_less_than_the_best_one():
    matrix = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    best = study.lost_share(study.best_linear_code(matrix, 3), matrix)
    for seed in range(20):
        code = torch.linalg.qr(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))).Q
        assert study.lost_share(matrix @ code @ code.T, matrix) >= best


def test_the_partial_sums_of_a_layer_add_up_to_what_the_layer_uses(text):
    layer = text.model.layers[1]
    message_RNH = text.messages_RNH[1, "mlp.output"]
    assert len(message_RNH) == 2 and message_RNH.shape[1:] == text.hidden_NH[1].shape
    # Post-layer norm: the output is norm(residual + sum + bias), so swapping ranks' parts changes nothing.
    torch.testing.assert_close(message_RNH.sum(0), message_RNH.flip(0).sum(0))
    assert layer.get_submodule("mlp.output").reduction is None  # as it was


def test_losses_are_those_of_the_decoded_messages(text):
    (row,) = (row for row in study.losses(text, ["T4"]) if row["layer"] == 2 and row["reduction"] == "attention")
    message_RNH = text.messages_RNH[1, "attention.output"]
    keep = method("T4").kept_share(text.hidden_size)
    arrived = sum(TopK(keep)(part) for part in message_RNH)
    assert row["lost_share"] == pytest.approx(study.lost_share(arrived, message_RNH.sum(0)))


def test_a_method_that_sends_everything_loses_nothing(text):
    assert {row["lost_share"] for row in study.losses(text, ["w/o"])} == {0.0}


def test_an_error_starts_in_the_compressed_layer_and_the_model_is_as_before(text):
    before, in_layer_2, again = (
        study.error_path(text, "w/o", [0]),
        study.error_path(text, "T1", [1]),
        study.error_path(text, "w/o", [1]),
    )
    assert [row["lost_share"] for row in before] == [row["lost_share"] for row in again] == [0.0, 0.0]
    assert in_layer_2[0]["lost_share"] == 0 and in_layer_2[1]["lost_share"] > 0
    assert [row["is_compressed"] for row in in_layer_2] == [False, True]


def test_layers_that_do_not_exist_are_refused(text):
    with pytest.raises(ValueError, match=r"index 2 is outside 0\.\.1"):
        study.error_path(text, "T1", [2])
