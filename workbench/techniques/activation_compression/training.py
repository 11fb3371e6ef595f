"""A small BERT under compression on real ranks, codecs of variants, and sent bytes; no optimizer, no data."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.compression import Codec, ErrorFeedback, Payload, Quantize, RandomK, TopK
from workbench.compression.quantize import dequantize_rows_by_definition, quantize_rows_by_definition
from workbench.compression.randomk import random_indices_by_definition
from workbench.compression.topk import largest_indices_by_definition
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
BOUNDARY = "boundary."  # begins the site of a message between two stages


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
        return Boundary(codec.for_site(f"{BOUNDARY}{layer}", setting.hidden).to(device))

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
    setting: Setting,
    variant: Variant = Variant.PLAIN,
    recorder: Recorder | None = None,
    seed: int = 0,
    least_s: tuple[float, float] = (0.0, 0.0),
) -> Codec:
    """Build the codec of a setting or of a variant; with a recorder, every encoding and decoding is noted.

    `least_s`: the seconds that encoding and decoding take at least for tensor communication; they are waited for.
    """
    dtype, index_dtype = DTYPES[setting.value_bytes], {4: torch.int32, 8: torch.int64}[setting.index_bytes]
    codec = method(setting.method).codec(setting.hidden, dtype=dtype, index_dtype=index_dtype, seed=seed)
    if variant is Variant.LITERAL:
        codec = literal(codec)
    if variant is Variant.FEEDBACK:
        codec = ErrorFeedback(codec)
    return codec if recorder is None else RecordedCodec(codec, recorder, least_s=least_s)


def literal(codec: Codec) -> Codec:
    """Return a gathered codec that gives the same messages, or equally distributed ones, by the slow definitions."""
    match codec:
        case TopK():
            return LiteralTopK(codec.keep, index_dtype=codec.index_dtype)
        case RandomK():
            return LiteralRandomK(codec.keep, codec.seed, index_dtype=codec.index_dtype)
        case Quantize():
            return LiteralQuantize(codec.bits)
    raise ValueError(f"codec={codec}: it must be TopK, RandomK or Quantize")


class LiteralTopK(TopK):
    """Top-K that sorts all elements."""

    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose the positions of largest magnitude, ascending."""
        return largest_indices_by_definition(x, num_kept)


class LiteralRandomK(RandomK):
    """Random-K that draws positions as the paper's implementation does, one Python number at a time."""

    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose random positions, ascending."""
        generator = random.Random(int(self._stream.integers(2**62)))
        return torch.tensor(random_indices_by_definition(x.numel(), num_kept, generator))


class LiteralQuantize(Quantize):
    """Quantisation with one operation after the other, and the codes packed bit by bit."""

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        payload = quantize_rows_by_definition(x.detach().flatten(0, -2), self.bits)
        return Payload(tensors=(payload,), shape=x.shape, dtype=x.dtype)

    @torch.no_grad()
    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        decoded = dequantize_rows_by_definition(payload.tensors[0], self.bits, payload.shape[-1], payload.dtype)
        return decoded.view(payload.shape) if out is None else out.copy_(decoded.view(payload.shape))

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        return self.decode_sum_by_definition(payloads)


class RecordedCodec(Codec):
    """A codec that does all as the one it wraps; encodings and decodings become a recorder's actions, with the site.

    `least_s`: see `setting_codec`; the message between two stages, whose site is a boundary, waits for nothing.
    """

    def __init__(
        self, codec: Codec, recorder: Recorder, site: str = "", least_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        super().__init__()
        self.codec, self.site, self._recorder, self._least_s = codec, site, recorder, least_s
        self.aggregation, self.is_linear = codec.aggregation, codec.is_linear

    @contextmanager
    def _at_least(self, half: str, kind: Kind, least_s: float) -> Iterator[None]:
        """Record one half of the codec, which ends after `least_s` seconds or later."""
        with self._recorder.during(f"{half} {self.site}", kind):
            end_s = time.perf_counter() + least_s
            yield
            time.sleep(max(0.0, end_s - time.perf_counter()))

    def encode(self, x: Tensor) -> Payload:
        with self._at_least("encode", Kind.ENCODE, self._least_s[0]):
            return self.codec.encode(x)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        with self._at_least("decode", Kind.DECODE, self._least_s[1]):
            return self.codec.decode(payload, out=out)

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        with self._at_least("decode", Kind.DECODE, self._least_s[1]):
            return self.codec.decode_sum(payloads)

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        return self.codec.input_gradient(grad_output, payload)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        return self.codec.payload_bytes(shape, dtype)

    def for_site(self, site: str, hidden: int | None = None) -> RecordedCodec:
        least_s = (0.0, 0.0) if site.startswith(BOUNDARY) else self._least_s
        return RecordedCodec(self.codec.for_site(site, hidden), self._recorder, site, least_s)

    def for_rank(self, rank: int) -> RecordedCodec:
        return RecordedCodec(self.codec.for_rank(rank), self._recorder, self.site, self._least_s)
