"""BERT in one process and on four real gloo ranks, cut by (tensor, pipeline), against `transformers`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from small_models import LAYER_SIZES, small_model
from torch.nn import functional

from tests.cases import refusals
from workbench import models
from workbench.compression import FP16, AutoEncoder, Codec, ErrorFeedback, Quantize, RandomK, TopK
from workbench.parallel import Stage, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Mesh, Pipeline, Schedule, VirtualPipeline, open_mesh

NUM_LABELS = 3


def hugging_face_model(name: str, **changes):
    sizes = {**LAYER_SIZES, "vocab_size": 64, "max_position_embeddings": 32, "num_labels": NUM_LABELS}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return small_model(name, "BertConfig", **sizes | dropout | changes)


def our_config(model) -> models.BertConfig:
    return models.BertConfig.from_hugging_face(model.config.to_dict())


def batch() -> dict[str, torch.Tensor]:
    """Three sequences of 7 tokens, two of them padded, each with two segments."""
    ids = torch.randint(1, 64, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = mask[2, 2:] = 0
    return {"ids": ids * mask, "mask": mask, "types": (torch.arange(7) > 3).long().expand(3, 7)}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("name", "options"), [("BertForMaskedLM", {}), ("BertForSequenceClassification", {"num_labels": NUM_LABELS})]
)
def test_virtual_ranks_equal_transformers_in_logits_and_all_gradients(name, options, size):
    plain = hugging_face_model(name)
    before = torch.get_rng_state()
    model = getattr(models, name)(our_config(plain), VirtualTensorGroup(size), **options)
    assert models.load_hugging_face(model, plain.state_dict()).missing == ()
    inputs = batch()
    logits, expected = model(*inputs.values()), plain(*inputs.values()).logits
    assert torch.equal(torch.get_rng_state(), before)
    logits.square().mean().backward()
    expected.square().mean().backward()
    gradients = {name.removeprefix("bert."): parameter.grad for name, parameter in plain.named_parameters()}
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(models.to_hugging_face(model, gradients=True), gradients, rtol=1e-4, atol=1e-6)


def test_weights_survive_loading_and_collecting_also_under_the_old_names_of_layer_norms():
    plain = hugging_face_model("BertForSequenceClassification")
    state = plain.state_dict()
    old = {}
    for name, tensor in state.items():
        old[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    for weights in (state, old):
        model = models.BertForSequenceClassification(our_config(plain), VirtualTensorGroup(4), NUM_LABELS)
        models.load_hugging_face(model, weights)
        collected = models.to_hugging_face(model)
        assert all(torch.equal(collected[name.removeprefix("bert.")], tensor) for name, tensor in state.items())


def test_a_checkpoint_without_a_head_says_so_and_one_without_a_layer_is_refused():
    plain = hugging_face_model("BertForMaskedLM")
    state, model = plain.state_dict(), models.BertForSequenceClassification(our_config(plain), num_labels=NUM_LABELS)
    head = [f"{part}.{kind}" for part in ("pooler.dense", "classifier") for kind in ("weight", "bias")]
    assert models.load_hugging_face(model, state).missing == tuple(head)
    loaded = models.load_hugging_face(models.BertEncoder(our_config(plain)), state)
    assert loaded.missing == () and all(name.startswith("cls.") for name in loaded.unused)
    cut = {name: tensor for name, tensor in state.items() if "layer.1.intermediate" not in name}
    with pytest.raises(ValueError, match="2 weights are missing, first 'encoder.layer.1.interm"):
        models.load_hugging_face(model, cut)
    state["bert.embeddings.word_embeddings.weight"] = torch.zeros(65, 16)
    with pytest.raises(ValueError, match=r"word_embeddings.weight: shape \(65, 16\)"):
        models.load_hugging_face(model, state)


def config_with(**changes):
    return models.BertConfig.from_hugging_face(hugging_face_model("BertModel").config.to_dict() | changes)


test_sizes_and_sequences_that_are_not_covered_are_refused = refusals(
    (lambda: config_with(hidden_act="relu"), "hidden_act: 'relu'"),
    (lambda: config_with(position_embedding_type="relative_key"), "position_embedding_type"),
    (lambda: models.BertConfig.tiny(num_layers=0), "num_layers: 0"),
    (lambda: models.BertEncoder(models.BertConfig.tiny())(torch.ones(1, 33).long()), "33 tokens are more"),
)


CONFIG = models.BertConfig.tiny(dropout=0.1, attention_dropout=0.1)
MESHES = [(1, 4), (2, 2), (4, 1)]
NUM_MICRO_BATCHES = 4
FULL_BYTES = 2 * 6 * 16 * 4


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(4)


@dataclass
class Job:
    """One model, cut and encoded in one way."""

    model: type
    codec: Codec | None = None
    schedule: Schedule = Schedule.GPIPE
    config: models.BertConfig = CONFIG

    def part(self, group, stage: Stage):
        return self.model(self.config, group, stage=stage)

    def boundary(self, stage_index: int, traffic=None) -> Boundary:
        return Boundary(self.codec and self.codec.for_site(f"boundary.{stage_index}"), traffic)


def ids() -> torch.Tensor:
    return torch.randint(1, 64, (8, 6), generator=torch.Generator().manual_seed(0))


def padding_mask() -> torch.Tensor:
    mask = torch.ones(8, 6, dtype=torch.long)
    mask[1, 4:] = mask[6, 2:] = 0
    return mask


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


OPTIONS = {"num_micro_batches": NUM_MICRO_BATCHES, "loss": cross_entropy}


def run(pipeline: Pipeline | VirtualPipeline, model: type) -> dict:
    """Evaluate, take two steps' gradients, evaluate again."""
    targets = ids() if model is models.BertForMaskedLM else torch.arange(8) % 2
    first, _ = (pipeline.step(ids(), targets, attention_mask=padding_mask()) for _ in range(2))
    output = pipeline.evaluate(ids(), attention_mask=padding_mask())
    return {"loss": first.loss, "trained": first.output, "evaluated": output}


def codec_gradients(boundaries: Iterable[Boundary]) -> dict:
    return {
        f"{boundary.site}.{name}": parameter.grad
        for boundary in boundaries
        for name, parameter in boundary.named_parameters()
        if parameter.grad is not None
    }


def on_a_rank(mesh: Mesh, job: Job) -> dict:
    part, stage = job.part(mesh.tensor_group, mesh.stage), mesh.stage.index
    boundaries = {"before": job.boundary(stage), "after": job.boundary(stage + 1)}
    pipeline = Pipeline(part, mesh, hidden_size=16, schedule=job.schedule, **boundaries, **OPTIONS)
    mesh.tensor_group.traffic.clear()
    result = run(pipeline, job.model)
    sent = [(m.phase, m.message_bytes) for m in mesh.tensor_group.traffic if m.what == "send" and "stage" in m.site]
    codecs = codec_gradients(boundary for boundary in (pipeline.before, pipeline.after) if boundary is not None)
    return result | {"sent": sent, "gradients": models.to_hugging_face(part, gradients=True), "codecs": codecs}


def on_every_rank(sizes: tuple[int, int], jobs: list[Job]) -> list[dict]:
    with pytest.raises(ValueError, match="tensor, pipeline: 3 x 2 is not the number of ranks, 4"):
        open_mesh(tensor=3, pipeline=2)
    mesh = open_mesh(tensor=sizes[0], pipeline=sizes[1])
    return [on_a_rank(mesh, job) for job in jobs]


def in_one_process(sizes: tuple[int, int], job: Job) -> dict:
    group = VirtualTensorGroup(sizes[0])
    stages = [Stage(index=index, num_stages=sizes[1]) for index in range(sizes[1])]
    parts = [job.part(group, stage) for stage in stages]
    boundaries = [job.boundary(stage.index, group.traffic) for stage in stages[1:]]
    pipeline = VirtualPipeline(parts, boundaries=boundaries, **OPTIONS)
    result = run(pipeline, job.model)
    gradients = {name: t for part in parts for name, t in models.to_hugging_face(part, gradients=True).items()}
    return result | {"gradients": gradients, "codecs": codec_gradients(pipeline.boundaries)}


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
    "masked-lm": Job(models.BertForMaskedLM),
    "classification 1F1B": Job(models.BertForSequenceClassification, schedule=Schedule.ONE_FORWARD_ONE_BACKWARD),
    "quantize 1F1B": Job(models.BertForSequenceClassification, Quantize(4), Schedule.ONE_FORWARD_ONE_BACKWARD),
    **{name: Job(models.BertForSequenceClassification, codec) for name, codec in CODECS.items()},
}


@pytest.fixture(scope="module")
def results_of(ranks):
    """Run all jobs on a mesh once for all tests; give each rank's results by the job's name."""

    @cache
    def results(sizes: tuple[int, int]) -> list[dict[str, dict]]:
        # Without stages there are no boundaries, and no codecs to try; one with an error is tried on more stages.
        on_stages = list(JOBS) if sizes == (2, 2) else ["top-k with error feedback"] if sizes[1] > 1 else []
        jobs = {name: job for name, job in JOBS.items() if name in on_stages or job.codec is None}
        by_rank = ranks.run(on_every_rank, sizes, list(jobs.values()))
        return [dict(zip(jobs, of_rank, strict=True)) for of_rank in by_rank]

    return results


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_real_ranks_equal_virtual_ones_in_loss_outputs_and_all_gradients(results_of, sizes):
    by_rank = results_of(sizes)
    for name in by_rank[0]:
        expected = in_one_process(sizes, JOBS[name])
        actual = merged([results[name] for results in by_rank], sizes)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("model", [models.BertForMaskedLM, models.BertForSequenceClassification])
def test_any_virtual_cut_equals_the_uncut_model_also_with_dropout(sizes, model):
    uncut = in_one_process((1, 1), Job(model))
    cut = in_one_process(sizes, Job(model))
    torch.testing.assert_close(cut, uncut, rtol=1e-4, atol=1e-6)


BYTES = {  # of one micro-batch over one boundary: (forward, backward)
    "masked-lm": (FULL_BYTES, FULL_BYTES),
    # 30 % of 192 elements are 58: fp32 values and int64 indices; their gradients, fp32.
    "top-k": (58 * (4 + 8), 58 * 4),
    "random-k": (58 * (4 + 8), 58 * 4),
    # 12 rows of 16 four-bit numbers, fp16 scale and bias; the gradient is full size.
    "quantize": (12 * (16 // 2 + 4), FULL_BYTES),
    "auto-encoder": (2 * 6 * 8 * 4, 2 * 6 * 8 * 4),
    "half": (FULL_BYTES // 2, FULL_BYTES // 2),
}


def test_boundaries_carry_the_bytes_that_the_paper_says(results_of):
    first, _, _, last = results_of((2, 2))
    for name in BYTES:
        forward, backward = first[name], last[name]
        steps = 2 * NUM_MICRO_BATCHES
        sent = sum(size for phase, size in forward["sent"] if phase == "forward")
        # One evaluation's messages come on top of the two steps' forward ones.
        assert sent == (steps + NUM_MICRO_BATCHES) * BYTES[name][0], name
        assert {phase for phase, _ in backward["sent"]} == {"backward"}, name
        assert sum(size for _, size in backward["sent"]) == steps * BYTES[name][1], name
