"""A small BERT under compression on real ranks, and the bytes that its sockets send; no optimizer, no data."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.compression import Codec
from workbench.models.bert import BertConfig, BertEncoder
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Mesh, Pipeline, open_mesh
from workbench.parallel.traffic import tcp_bytes_sent
from workbench.timeline import Recorder

from .cost import Setting
from .method import method
from .runtime import EncoderGradients, compress

__all__ = ["compressed_pipeline", "sent_bytes", "small_batch"]

HEADS = 4  # or as many as there are tensor-parallel ranks
VOCABULARY = 64
DTYPES = {2: torch.float16, 4: torch.float32}  # by bytes of a value


def compressed_pipeline(
    setting: Setting,
    mesh: Mesh,
    *,
    codec: Codec | None = None,
    recorder: Recorder | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Pipeline:
    """Build this rank's stage of a BERT encoder, compressed as the setting says.

    Returns:
        A pipeline ready to `step`; its loss is the mean square of the last hidden states.
    """
    dtype = DTYPES[setting.value_bytes]
    if codec is None:
        codec = method(setting.method).codec(setting.hidden, dtype=dtype, seed=seed)
    config = BertConfig(
        hidden_size=setting.hidden,
        num_layers=setting.layers,
        num_heads=max(HEADS, setting.tp),
        mlp_size=4 * setting.hidden,
        vocab_size=VOCABULARY,
        max_positions=setting.sequence,
        seed=seed,
    )
    encoder = BertEncoder(config, mesh.tensor_group, mesh.stage, device=device, dtype=dtype)
    held = mesh.stage.layers(setting.layers)
    chosen = [index for index, layer in enumerate(held) if setting.is_compressed(layer)]
    if chosen and setting.tp > 1:  # a single rank reduces nothing, so nothing of it is encoded
        gradients = EncoderGradients(mesh.tensor_group) if setting.fuse_gradients else None
        compress(encoder, codec, layers=chosen, fused=setting.is_fused, gradients=gradients)
    return Pipeline(
        encoder,
        mesh,
        hidden_size=setting.hidden,
        num_micro_batches=setting.num_micro_batches,
        loss=_mean_square,
        before=_boundary(setting, held.start, codec, device),
        after=_boundary(setting, held.stop, codec, device),
        dtype=dtype,
        device=device,
        recorder=recorder,
    )


def _boundary(setting: Setting, layer: int, codec: Codec, device: str) -> Boundary | None:
    if layer in (0, setting.layers) or not setting.is_compressed(layer):
        return None
    return Boundary(codec.for_site(f"boundary.{layer}", setting.hidden).to(device))


def _mean_square(output: Tensor, targets: Tensor) -> Tensor:
    return (output.float() - targets[:, None, None]).square().mean()


def sent_bytes(settings: list[Setting]) -> list[int]:
    """Run one training step a setting and return the payload bytes this rank's sockets sent in each.

    Runs on every rank of a group whose size is tp·pp of each setting. A first step, not counted, opens connections.

    Returns:
        Bytes that this rank wrote to TCP sockets for each setting, headers of the transport's messages included.
    """
    meshes = {(s.tp, s.pp): None for s in settings}
    meshes = {(tp, pp): open_mesh(tensor=tp, pipeline=pp) for tp, pp in meshes}
    return [_sent_by_one_step(setting, meshes[setting.tp, setting.pp]) for setting in settings]


def _sent_by_one_step(setting: Setting, mesh: Mesh) -> int:
    pipeline = compressed_pipeline(setting, mesh)
    inputs, targets = small_batch(setting)
    pipeline.step(inputs, targets)
    dist.barrier()
    before = tcp_bytes_sent()
    pipeline.step(inputs, targets)
    return tcp_bytes_sent() - before


def small_batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """Make the tokens [batch, sequence] and targets [batch] of one iteration, always the same."""
    batch = setting.micro_batch * setting.num_micro_batches
    inputs = torch.arange(batch * setting.sequence).reshape(batch, setting.sequence) % (VOCABULARY - 1) + 1
    return inputs, torch.zeros(batch)
