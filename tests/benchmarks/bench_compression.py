"""The codecs: one thread, warm buffers, results equal to the definition bit for bit on activations drawn here."""

import time
from functools import partial

import torch
from torch import Tensor

from workbench.compression import FP16, AutoEncoder, Codec, Quantize, RandomK, TopK
from workbench.compression.quantize import dequantize_rows_by_definition, quantize_rows_by_definition
from workbench.study.measuring import Benchmark, BenchmarkRow, paired_ratio

# All work is done in one thread, so its own clock shuts out other processes.
CLOCK = time.thread_time

# [batch, sequence, hidden] of the study's fine-tuning, and of a small encoder.
LARGE, SMALL = (32, 512, 1024), (32, 512, 384)


def activations(shape: tuple[int, ...]) -> Tensor:
    """Draw activations; channels differ in scale by a factor of about 10."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.exp(0.5 * torch.randn(shape[-1], generator=generator))
    return torch.randn(shape, generator=generator) * scale


def copy_share_row(name: str, codec: Codec, x: Tensor) -> BenchmarkRow:
    """Compare encode plus decode with copying the tensor into a touched buffer."""
    buffer, out = torch.empty_like(x).fill_(1), torch.empty_like(x).fill_(1)
    share = paired_ratio(lambda: buffer.copy_(x), lambda: codec.decode(codec.encode(x), out=out), clock=CLOCK)
    return BenchmarkRow(
        name=f"{name}: share of copy bandwidth, encode and decode",
        figure=100 * share.median,
        unit="%",
        low=100 * share.low,
        high=100 * share.high,
    )


def plain_round_trip(x: Tensor, bits: int) -> Tensor:
    """Quantise and back as plain PyTorch does it: one operation after the other."""
    per_byte, levels = 8 // bits, 2**bits - 1
    bias = x.amin(-1, keepdim=True).half().float()
    scale = ((x.amax(-1, keepdim=True) - bias) / levels).half().float()
    codes = ((x - bias) * (1 / scale)).round().clamp(0, levels).to(torch.uint8)
    packed = codes[..., ::per_byte].clone()
    for position in range(1, per_byte):
        packed |= codes[..., position::per_byte] << position * bits
    unpacked = torch.stack([packed >> position * bits & levels for position in range(per_byte)], dim=-1)
    return unpacked.flatten(-2).float() * scale + bias


def quantize(bits: int) -> list[BenchmarkRow]:
    x, codec = activations(LARGE), Quantize(bits)
    ratio = paired_ratio(lambda: codec.decode(codec.encode(x)), lambda: plain_round_trip(x, bits), clock=CLOCK)
    equal, most = _equals_definition(codec, x), None if bits == 8 else 0.2
    return [
        BenchmarkRow.of(f"Quantize({bits}) over plain PyTorch, {list(LARGE)} fp32", ratio, most=most, equal=equal),
        copy_share_row(f"Quantize({bits})", codec, x),
    ]


def _equals_definition(codec: Quantize, x: Tensor) -> bool:
    """Compare message and result with the definition and with the plain formulation."""
    message = quantize_rows_by_definition(x.view(-1, x.shape[-1]), codec.bits)
    decoded = dequantize_rows_by_definition(message, codec.bits, x.shape[-1], x.dtype).view_as(x)
    payload = codec.encode(x)
    results = codec.decode(payload), codec.decode(payload, out=torch.empty_like(x)), plain_round_trip(x, codec.bits)
    return torch.equal(payload.tensors[0], message) and all(torch.equal(result, decoded) for result in results)


def topk() -> list[BenchmarkRow]:
    rows = [_topk_row(activations(shape), keep) for shape in (LARGE, SMALL) for keep in (0.01, 0.02, 0.05, 0.1)]
    return [*rows, _zeros_row(TopK(0.01)), copy_share_row("TopK(0.1)", TopK(0.1), activations(LARGE))]


def _zeros_row(codec: TopK) -> BenchmarkRow:
    """Compare a tensor that is zero almost everywhere, as the gradient of an embedding, to a full one."""
    full = activations(LARGE)
    rows = torch.zeros_like(full)
    rows.view(-1, full.shape[-1])[::200] = 1.0
    ratio = paired_ratio(partial(codec.encode, rows), partial(codec.encode, full), rounds=6, warmup=1, clock=CLOCK)
    return BenchmarkRow.of(f"TopK({codec.keep}): 0.5 % not zero over all, {list(LARGE)} fp32", ratio, most=2)


def _topk_row(x: Tensor, keep: float) -> BenchmarkRow:
    codec = TopK(keep)
    k = codec.num_kept(x.shape)
    kept = codec.encode(x).tensors[0].abs().sort(descending=True).values
    equal = torch.equal(kept, torch.topk(x.abs().flatten(), k).values)
    ratio = paired_ratio(
        lambda: codec.encode(x), lambda: torch.topk(x.abs().flatten(), k), rounds=6, warmup=1, clock=CLOCK
    )
    name = f"TopK({keep}) over torch.topk, {list(x.shape)} fp32"
    return BenchmarkRow.of(name, ratio, most=0.5, equal=equal)


def randomk() -> list[BenchmarkRow]:
    rows, x = [], activations(LARGE)
    for keep in (0.01, 0.02, 0.05, 0.1):
        random_k, top_k = RandomK(keep, seed=0), TopK(keep)
        ratio = paired_ratio(partial(random_k.encode, x), partial(top_k.encode, x), clock=CLOCK)
        rows.append(BenchmarkRow.of(f"RandomK({keep}) over TopK({keep}), {list(LARGE)} fp32", ratio, most=1))
    return [*rows, copy_share_row("RandomK(0.1)", RandomK(0.1), x)]


def dense() -> list[BenchmarkRow]:
    x = activations(LARGE)
    with torch.no_grad():
        return [copy_share_row("FP16", FP16(), x), copy_share_row("AutoEncoder(100)", AutoEncoder(1024, 100), x)]


def sums() -> list[BenchmarkRow]:
    codecs = {"TopK(0.02)": TopK(0.02), "RandomK(0.1)": RandomK(0.1)}
    codecs |= {f"Quantize({bits})": Quantize(bits) for bits in (2, 4, 8)}
    return [_sum_row(name, codec, dtype) for name, codec in codecs.items() for dtype in (torch.float32, torch.float16)]


def _sum_row(name: str, codec: Codec, dtype: torch.dtype) -> BenchmarkRow:
    x = activations(LARGE).to(dtype)
    payloads = [codec.encode(x.roll(rank, dims=1)) for rank in range(4)]
    equal = torch.equal(codec.decode_sum(payloads), codec.decode_sum_by_definition(payloads))
    ratio = paired_ratio(
        lambda: codec.decode_sum(payloads), lambda: codec.decode_sum_by_definition(payloads), rounds=6, clock=CLOCK
    )
    row = f"{name}: sum of 4 messages over decoding each, {list(LARGE)} {str(dtype).removeprefix('torch.')}"
    return BenchmarkRow.of(row, ratio, most=1, equal=equal)


BENCHMARKS = [
    *(
        Benchmark(
            name=f"compression-quantize-{bits}",
            asks="Encode plus decode against the plain PyTorch formulation.",
            run=lambda bits=bits: quantize(bits),
        )
        for bits in (2, 4, 8)
    ),
    Benchmark(name="compression-topk", asks="Encode against torch.topk of all magnitudes.", run=topk),
    Benchmark(name="compression-randomk", asks="Encode against TopK's.", run=randomk),
    Benchmark(name="compression-sums", asks="Summing four ranks' messages against decoding each.", run=sums),
    Benchmark(name="compression-dense", asks="FP16 and AutoEncoder against a copy.", run=dense),
]
