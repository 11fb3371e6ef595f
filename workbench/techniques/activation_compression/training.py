"""A small BERT under compression on real ranks, codecs of variants, and sent bytes; no optimizer, no data."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.compression import Codec, ErrorFeedback, Payload, RandomK
from workbench.compression.codec import site_seed
from workbench.compression.randomk import random_indices_by_definition
from workbench.models.bert import BertConfig, BertEncoder
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Mesh, Pipeline, open_mesh
from workbench.parallel.traffic import tcp_bytes_sent
from workbench.timeline import Kind, Recorder

from .cost import Setting, Variant
from .method import method
from .runtime import EncoderGradients, compress

__all__ = ["compressed_pipeline", "sent_bytes", "setting_codec", "small_batch"]

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
    """Build this rank's stage of a BERT, compressed as set; its loss is the mean square of the last hidden states."""
    codec = setting_codec(setting, seed=seed) if codec is None else codec
    config = BertConfig(
        hidden_size=setting.hidden,
        num_layers=setting.layers,
        num_heads=max(HEADS, setting.tp),
        mlp_size=4 * setting.hidden,
        vocab_size=VOCABULARY,
        max_positions=setting.sequence,
        seed=seed,
    )
    dtype = DTYPES[setting.value_bytes]
    encoder = BertEncoder(config, mesh.tensor_group, mesh.stage, device=device, dtype=dtype)
    held = mesh.stage.layers(setting.layers)
    chosen = [index for index, layer in enumerate(held) if setting.is_compressed(layer)]
    if chosen and setting.tp > 1:  # a single rank reduces nothing, so nothing of it is encoded
        gradients = EncoderGradients(mesh.tensor_group) if setting.fuse_gradients else None
        compress(encoder, codec, layers=chosen, fused=setting.is_fused, gradients=gradients)

    def boundary(layer: int) -> Boundary | None:
        if layer in (0, setting.layers) or not setting.is_compressed(layer):
            return None
        return Boundary(codec.for_site(f"boundary.{layer}", setting.hidden).to(device))

    return Pipeline(
        encoder,
        mesh,
        hidden_size=setting.hidden,
        num_micro_batches=setting.num_micro_batches,
        loss=lambda output, targets: (output.float() - targets[:, None, None]).square().mean(),
        before=boundary(held.start),
        after=boundary(held.stop),
        dtype=dtype,
        device=device,
        recorder=recorder,
    )


def small_batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """Make the tokens [batch, sequence] and targets [batch] of one iteration, always the same."""
    batch = setting.micro_batch * setting.num_micro_batches
    inputs = torch.arange(batch * setting.sequence).reshape(batch, setting.sequence) % (VOCABULARY - 1) + 1
    return inputs, torch.zeros(batch)


def sent_bytes(settings: list[Setting]) -> list[int]:
    """Run one training step a setting and return the bytes that this rank wrote to TCP sockets in each.

    Runs on every rank of a group whose size is tp·pp of each setting. A first step, not counted, opens connections;
    headers of the transport's messages are included.
    """
    meshes = {(tp, pp): open_mesh(tensor=tp, pipeline=pp) for tp, pp in dict.fromkeys((s.tp, s.pp) for s in settings)}
    sent = []
    for setting in settings:
        pipeline = compressed_pipeline(setting, meshes[setting.tp, setting.pp])
        inputs, targets = small_batch(setting)
        pipeline.step(inputs, targets)
        dist.barrier()
        before = tcp_bytes_sent()
        pipeline.step(inputs, targets)
        sent.append(tcp_bytes_sent() - before)
    return sent


# --- codecs


def setting_codec(
    setting: Setting, variant: Variant = Variant.PLAIN, recorder: Recorder | None = None, seed: int = 0
) -> Codec:
    """Build the codec of a setting or of a variant; with a recorder, every encoding and decoding is noted."""
    types = {"dtype": DTYPES[setting.value_bytes], "index_dtype": {4: torch.int32, 8: torch.int64}[setting.index_bytes]}
    codec = method(setting.method).codec(setting.hidden, seed=seed, **types)
    if variant is Variant.LITERAL:
        codec = LiteralRandomK(codec.keep, seed, index_dtype=types["index_dtype"])
    if variant is Variant.FEEDBACK:
        codec = ErrorFeedback(codec)
    return codec if recorder is None else RecordedCodec(codec, recorder)


class LiteralRandomK(RandomK):
    """Random-K that draws positions as the paper's implementation does, one Python number at a time."""

    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose random positions, ascending."""
        generator = random.Random(int(self._stream.integers(2**62)))
        return torch.tensor(random_indices_by_definition(x.numel(), num_kept, generator))

    def for_site(self, site: str, hidden: int | None = None) -> LiteralRandomK:
        """Make a codec whose stream depends on (seed, site)."""
        codec = LiteralRandomK(self.keep, site_seed(self.seed, site), index_dtype=self.index_dtype)
        codec.site = site
        return codec


class RecordedCodec(Codec):
    """A codec that does all as the one it wraps; encodings and decodings become a recorder's actions, with the site."""

    def __init__(self, codec: Codec, recorder: Recorder, site: str = "") -> None:
        super().__init__()
        self.codec, self.site, self._recorder = codec, site, recorder
        self.aggregation, self.is_linear = codec.aggregation, codec.is_linear

    def encode(self, x: Tensor) -> Payload:
        with self._recorder.during(f"encode {self.site}", Kind.ENCODE):
            return self.codec.encode(x)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        with self._recorder.during(f"decode {self.site}", Kind.DECODE):
            return self.codec.decode(payload, out=out)

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        with self._recorder.during(f"decode {self.site}", Kind.DECODE):
            return self.codec.decode_sum(payloads)

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        return self.codec.input_gradient(grad_output, payload)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        return self.codec.payload_bytes(shape, dtype)

    def for_site(self, site: str, hidden: int | None = None) -> RecordedCodec:
        return RecordedCodec(self.codec.for_site(site, hidden), self._recorder, site)

    def for_rank(self, rank: int) -> RecordedCodec:
        return RecordedCodec(self.codec.for_rank(rank), self._recorder, self.site)
