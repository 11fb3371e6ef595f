"""BERT on four real gloo ranks, cut by (tensor, pipeline), against `transformers` and in one process."""

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from workbench.compression import FP16, AutoEncoder, Codec, ErrorFeedback, Quantize, RandomK, TopK
from workbench.launch import Ranks
from workbench.models import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    load_hugging_face,
    to_hugging_face,
)
from workbench.parallel import Stage, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Mesh, Pipeline, Schedule, VirtualPipeline, open_mesh

pytestmark = pytest.mark.timeout(90)

CONFIG = BertConfig.tiny(dropout=0.1, attention_dropout=0.1)
WITHOUT_DROPOUT = BertConfig.tiny()
MESHES = [(1, 4), (2, 2), (4, 1)]
NUM_MICRO_BATCHES = 4
FULL_BYTES = 2 * 6 * 16 * 4


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, preload=("workbench.models", "workbench.parallel.pipeline")) as pool:
        yield pool


@dataclass
class Job:
    """One model, cut and encoded in one way."""

    model: type
    codec: Codec | None = None
    schedule: Schedule = Schedule.GPIPE
    config: BertConfig = CONFIG
    state: dict | None = None

    def part(self, group, stage: Stage):
        part = self.model(self.config, group, stage=stage)
        if self.state is not None:
            load_hugging_face(part, self.state)
        return part

    def boundary(self, stage_index: int, traffic=None) -> Boundary:
        codec = self.codec and self.codec.for_site(f"boundary.{stage_index}")
        return Boundary(codec, traffic)


def ids() -> torch.Tensor:
    return torch.randint(1, 64, (8, 6), generator=torch.Generator().manual_seed(0))


def padding_mask() -> torch.Tensor:
    mask = torch.ones(8, 6, dtype=torch.long)
    mask[1, 4:] = mask[6, 2:] = 0
    return mask


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def run(pipeline: Pipeline | VirtualPipeline, model: type) -> dict:
    """Evaluate, take two steps' gradients, evaluate again."""
    targets = ids() if model is BertForMaskedLM else torch.arange(8) % 2
    first, _ = (pipeline.step(ids(), targets, attention_mask=padding_mask()) for _ in range(2))
    output = pipeline.evaluate(ids(), attention_mask=padding_mask())
    return {"loss": first.loss, "trained": first.output, "evaluated": output}


def on_a_rank(mesh: Mesh, job: Job) -> dict:
    part = job.part(mesh.tensor_group, mesh.stage)
    pipeline = Pipeline(
        part,
        mesh,
        hidden_size=16,
        num_micro_batches=NUM_MICRO_BATCHES,
        loss=cross_entropy,
        schedule=job.schedule,
        before=job.boundary(mesh.stage.index),
        after=job.boundary(mesh.stage.index + 1),
    )
    mesh.tensor_group.traffic.clear()
    result = run(pipeline, job.model)
    sent = [m for m in mesh.tensor_group.traffic if m.what == "send" and "stage" in m.site]
    codecs = {
        f"{boundary.site}.{name}": parameter.grad
        for boundary in (pipeline.before, pipeline.after)
        if boundary is not None
        for name, parameter in boundary.named_parameters()
        if parameter.grad is not None
    }
    return result | {
        "sent": [(m.phase, m.site, m.message_bytes) for m in sent],
        "gradients": to_hugging_face(part, gradients=True),
        "codecs": codecs,
    }


def on_every_rank(sizes: tuple[int, int], jobs: list[Job]) -> list[dict]:
    mesh = open_mesh(tensor=sizes[0], pipeline=sizes[1])
    return [on_a_rank(mesh, job) for job in jobs]


def in_one_process(sizes: tuple[int, int], job: Job) -> dict:
    group = VirtualTensorGroup(sizes[0])
    stages = [Stage(index=index, num_stages=sizes[1]) for index in range(sizes[1])]
    parts = [job.part(group, stage) for stage in stages]
    pipeline = VirtualPipeline(
        parts,
        num_micro_batches=NUM_MICRO_BATCHES,
        loss=cross_entropy,
        boundaries=[job.boundary(stage.index, group.traffic) for stage in stages[1:]],
    )
    result = run(pipeline, job.model)
    gradients, codecs = {}, {}
    for part in parts:
        gradients |= to_hugging_face(part, gradients=True)
    for boundary in pipeline.boundaries:
        codecs |= {f"{boundary.site}.{n}": p.grad for n, p in boundary.named_parameters()}
    return result | {"gradients": gradients, "codecs": codecs}


def merged(results: list[dict], sizes: tuple[int, int]) -> dict:
    """Put together what the stages' first tensor ranks know; the last stage has the output."""
    stages = results[:: sizes[0]]
    whole = {key: stages[-1][key] for key in ("loss", "trained", "evaluated")}
    for key in ("gradients", "codecs"):
        whole[key] = {name: t for stage in stages for name, t in stage[key].items()}
    return whole


CODECS = {
    "top-k": TopK(0.3),
    "random-k": RandomK(0.3, seed=1),
    "quantize": Quantize(4),
    "auto-encoder": AutoEncoder(16, 8, seed=2),
    "half": FP16(),
    "top-k with error feedback": ErrorFeedback(TopK(0.3)),
}
JOBS = {
    "masked-lm": Job(BertForMaskedLM),
    "classification 1F1B": Job(BertForSequenceClassification, schedule=Schedule.ONE_FORWARD_ONE_BACKWARD),
    "quantize 1F1B": Job(BertForSequenceClassification, Quantize(4), Schedule.ONE_FORWARD_ONE_BACKWARD),
    **{name: Job(BertForSequenceClassification, codec) for name, codec in CODECS.items()},
}


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_real_ranks_equal_virtual_ones_in_loss_outputs_and_all_gradients(ranks, sizes):
    # Without stages there are no boundaries, and no codecs to try.
    jobs = {name: job for name, job in JOBS.items() if sizes[1] > 1 or job.codec is None}
    results = ranks.run(on_every_rank, sizes, list(jobs.values()))
    for index, (name, job) in enumerate(jobs.items()):
        expected = in_one_process(sizes, job)
        actual = merged([result[index] for result in results], sizes)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("model", [BertForMaskedLM, BertForSequenceClassification])
def test_any_virtual_cut_equals_the_uncut_model_also_with_dropout(sizes, model):
    uncut = in_one_process((1, 1), Job(model))
    cut = in_one_process(sizes, Job(model))
    torch.testing.assert_close(cut, uncut, rtol=1e-4, atol=1e-6)


def transformers_model():
    import transformers  # here, so that ranks, which import this file, need not

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=64,
                hidden_size=16,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=32,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )


def test_real_ranks_equal_transformers_in_loss_logits_and_all_gradients(ranks):
    model = transformers_model()
    job = Job(BertForMaskedLM, config=WITHOUT_DROPOUT, state=model.state_dict())
    logits = model(ids(), padding_mask()).logits
    for _ in range(2):  # `run` takes two steps without an update: gradients add up
        loss = cross_entropy(model(ids(), padding_mask()).logits, ids())
        loss.backward()
    expected = {
        "loss": loss.detach(),
        "trained": logits.detach(),
        "evaluated": logits.detach(),
        "gradients": {n.removeprefix("bert."): p.grad for n, p in model.named_parameters()},
        "codecs": {},
    }
    for sizes in MESHES:
        results = ranks.run(on_every_rank, sizes, [job])
        actual = merged([result[0] for result in results], sizes)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


BYTES = {  # of one micro-batch over one boundary: (forward, backward)
    "none": (FULL_BYTES, FULL_BYTES),
    # 30 % of 192 elements are 58: fp32 values and int64 indices; their gradients, fp32.
    "top-k": (58 * (4 + 8), 58 * 4),
    "random-k": (58 * (4 + 8), 58 * 4),
    # 12 rows of 16 four-bit numbers, fp16 scale and bias; the gradient is full size.
    "quantize": (12 * (16 // 2 + 4), FULL_BYTES),
    "auto-encoder": (2 * 6 * 8 * 4, 2 * 6 * 8 * 4),
    "half": (FULL_BYTES // 2, FULL_BYTES // 2),
}


def test_boundaries_carry_the_bytes_that_the_paper_says(ranks):
    jobs = [Job(BertForSequenceClassification, CODECS.get(name)) for name in BYTES]
    first, last = (ranks.run(on_every_rank, (2, 2), jobs)[rank] for rank in (0, 3))
    for name, forward, backward in zip(BYTES, first, last, strict=True):
        steps = 2 * NUM_MICRO_BATCHES
        sent = sum(size for phase, _, size in forward["sent"] if phase == "forward")
        # One evaluation's messages come on top of the two steps' forward ones.
        assert sent == (steps + NUM_MICRO_BATCHES) * BYTES[name][0], name
        assert {phase for phase, *_ in backward["sent"]} == {"backward"}, name
        assert sum(size for *_, size in backward["sent"]) == steps * BYTES[name][1], name


def refusal(sizes: tuple[int, int]) -> str:
    try:
        open_mesh(tensor=sizes[0], pipeline=sizes[1])
    except ValueError as error:
        return str(error)
    return "accepted"


def test_a_mesh_of_another_size_than_the_ranks_is_refused(ranks):
    expected = "tensor, pipeline: 3 x 2 is not the number of ranks, 4"
    assert ranks.run(refusal, (3, 2)) == [expected] * 4
