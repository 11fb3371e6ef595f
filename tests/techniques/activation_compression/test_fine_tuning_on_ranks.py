"""One step of fine-tuning under every method: virtual ranks in one process equal four real gloo ranks."""

import pytest
import torch

from workbench.datasets.glue import TASKS
from workbench.launch import Ranks
from workbench.models.hugging_face import to_hugging_face
from workbench.models.pretrained import stand_in_encoder
from workbench.parallel import VirtualTensorGroup
from workbench.parallel.pipeline import open_mesh
from workbench.techniques.activation_compression.accuracy import FineTuning, classifier, on_real_ranks, on_virtual_ranks
from workbench.techniques.activation_compression.method import METHODS
from workbench.training.loop import Recipe
from workbench.training.precision import PRECISIONS, computing_in

pytestmark = pytest.mark.timeout(90)

RECIPE = Recipe(epochs=1, batch=4, learning_rate=1e-3, seed=3)
IDS = torch.arange(4 * 7).reshape(4, 7) % 50 + 5
LABELS = torch.tensor([0, 1, 1, 0])
MASK = torch.ones(4, 7, dtype=torch.int64)
MASK[2, 5:] = 0


def setting(method: str, **changes) -> FineTuning:
    return FineTuning(task="mrpc", method=method, recipe=RECIPE, encoder="stand-in", **changes)


def codec_gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return gradients of learned codes by site and kind, whatever modules hold them."""
    weights = ((name, weight) for name, weight in module.named_parameters() if name.endswith((".encoder", ".decoder")))
    return {name.split("layers.")[-1]: weight.grad for name, weight in weights if weight.grad is not None}


def on_a_rank(method: str, precision: str) -> dict:
    mesh = open_mesh(tensor=2, pipeline=2)
    pipeline = on_real_ranks(setting(method), stand_in_encoder(), classifier(TASKS["mrpc"]), mesh)
    with computing_in(precision):
        result = pipeline.step(IDS, LABELS, attention_mask=MASK)
    part = pipeline.module.part
    return {
        "loss": result.loss,
        "output": result.output,
        "gradients": to_hugging_face(part, gradients=True),
        "codecs": codec_gradients(part),
        "boundary": [w.grad for end in (pipeline.before, pipeline.after) if end is not None for w in end.parameters()],
    }


def in_this_process(method: str, precision: str) -> dict:
    pipeline = on_virtual_ranks(setting(method), stand_in_encoder(), classifier(TASKS["mrpc"]), VirtualTensorGroup(2))
    with computing_in(precision):
        result = pipeline.step(IDS, LABELS, attention_mask=MASK)
    gradients = {}
    for part in pipeline.parts:
        gradients |= to_hugging_face(part, gradients=True)
    return {
        "loss": result.loss,
        "output": result.output,
        "gradients": gradients,
        "codecs": codec_gradients(pipeline.parts),
        "boundary": [weight.grad for weight in pipeline.boundaries.parameters()],
    }


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, preload=("workbench.techniques.activation_compression.accuracy",)) as pool:
        yield pool


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", METHODS)
def test_virtual_ranks_equal_real_ranks_in_loss_and_gradients(method, precision, ranks):
    here, there = in_this_process(method, precision), ranks.run(on_a_rank, method, precision)
    assert bool(here["codecs"]) == bool(here["boundary"]) == (method in ("A1", "A2"))
    for rank in (2, 3):  # the second stage's
        torch.testing.assert_close(there[rank]["loss"], here["loss"])
        torch.testing.assert_close(there[rank]["output"], here["output"])
    for first, second in ((0, 2), (1, 3)):
        torch.testing.assert_close(there[first]["gradients"] | there[second]["gradients"], here["gradients"])
        torch.testing.assert_close(there[second]["codecs"], here["codecs"])
        # The sender trains the encoding half of the boundary's codec, the receiver the decoding half.
        halves = [
            a if a is not None else b for a, b in zip(there[first]["boundary"], there[second]["boundary"], strict=True)
        ]
        torch.testing.assert_close(halves, here["boundary"])
