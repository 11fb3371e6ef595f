"""A small BERT under compression on real ranks, and the bytes that its sockets send.

Source: "Does compressing activations help model parallel training?", sections 3.2, 3.3 and 4.1.
Simplified: the loss is the mean square of the last hidden states, since only what travels matters here.
Left out: optimizers and data; the accuracy study brings them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.models.bert import BertConfig, BertEncoder
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Mesh, Pipeline, open_mesh
from workbench.parallel.wire import tcp_bytes_sent

from .cost import Setting
from .method import method
from .runtime import compress

__all__ = ["compressed_pipeline", "sent_bytes"]

HEADS = 4
VOCABULARY = 64
DTYPES = {2: torch.float16, 4: torch.float32}  # by bytes of a value


def compressed_pipeline(setting: Setting, mesh: Mesh, *, device: str = "cpu", seed: int = 0) -> Pipeline:
    """Build this rank's stage of a BERT encoder, compressed as the setting says.

    Args:
        setting: sizes, method and which layers; `setting.tp` and `setting.pp` are those of the mesh.
        mesh: this rank's place.
        device: of parameters and messages.
        seed: of the weights.

    Returns:
        A pipeline ready to `step`.

    Source: section 3.3; both forward reductions of a compressed layer, and the boundary in front of it.
    """
    dtype = DTYPES[setting.value_bytes]
    config = BertConfig(
        hidden_size=setting.hidden, num_layers=setting.layers, num_heads=HEADS, mlp_size=4 * setting.hidden,
        vocab_size=VOCABULARY, max_positions=setting.sequence, seed=seed,
    )  # fmt: skip
    encoder = BertEncoder(config, mesh.tensor_group, mesh.stage, device=device, dtype=dtype)
    held = mesh.stage.layers(setting.layers)
    chosen = [index for index, layer in enumerate(held) if setting.is_compressed(layer)]
    if chosen:
        compress(encoder, method(setting.method).codec(setting.hidden, dtype=dtype, seed=seed), layers=chosen)
    return Pipeline(
        encoder, mesh, hidden_size=setting.hidden, num_micro_batches=setting.num_micro_batches, loss=_mean_square,
        before=_boundary(setting, held.start, dtype, device, seed), after=_boundary(setting, held.stop, dtype, device, seed),
        dtype=dtype, device=device,
    )  # fmt: skip


def _boundary(setting: Setting, layer: int, dtype: torch.dtype, device: str, seed: int) -> Boundary | None:
    if layer in (0, setting.layers) or not setting.is_compressed(layer):
        return None
    codec = method(setting.method).codec(setting.hidden, dtype=dtype, seed=seed)
    return Boundary(codec.for_site(f"boundary.{layer}", setting.hidden).to(device))


def _mean_square(output: Tensor, targets: Tensor) -> Tensor:
    return (output.float() - targets[:, None, None]).square().mean()


def sent_bytes(settings: list[Setting]) -> list[int]:
    """Run one training step a setting and return the payload bytes this rank's sockets sent in each.

    Runs on every rank of a group whose size is tp·pp of each setting. A first step, not counted, opens connections.

    Args:
        settings: what to run, one after the other.

    Returns:
        Bytes that this rank wrote to TCP sockets, a setting each; headers of the transport's own messages included.
    """
    meshes = {(s.tp, s.pp): None for s in settings}
    meshes = {(tp, pp): open_mesh(tensor=tp, pipeline=pp) for tp, pp in meshes}
    return [_sent_by_one_step(setting, meshes[setting.tp, setting.pp]) for setting in settings]


def _sent_by_one_step(setting: Setting, mesh: Mesh) -> int:
    pipeline = compressed_pipeline(setting, mesh)
    batch = setting.micro_batch * setting.num_micro_batches
    inputs = torch.arange(batch * setting.sequence).reshape(batch, setting.sequence) % (VOCABULARY - 1) + 1
    targets = torch.zeros(batch)
    pipeline.step(inputs, targets)
    dist.barrier()
    before = tcp_bytes_sent()
    pipeline.step(inputs, targets)
    return tcp_bytes_sent() - before
