"""Checkpoints of every iteration whose state lies on a CUDA device: locked memory, and figure 6.5d's sub-buffers.

Without a device the rows say so. The copy alone is compared with a plain copy to the host; the training is that of
figure 6.16 as far as one rank goes, with no peer to send to.
"""

import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist

from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.study.measuring import Benchmark, BenchmarkRow, paired_ratio
from workbench.techniques.gemini.measured.training import PoolContext
from workbench.techniques.gemini.runtime.checkpoints import CheckpointOptions, InMemoryCheckpoints
from workbench.techniques.gemini.runtime.encoding import PackedTree

STATE_BYTES = 1 << 30
RESERVED_BYTES = 128 << 20  # all sub-buffers together, as the text has it
BATCH, SEQUENCE, ACCUMULATED = 16, 512, 4
CONFIG = GPT2Config(hidden_size=768, num_layers=12, num_heads=12, vocab_size=8192, max_positions=SEQUENCE)
ROUNDS = 6
MISSING = [BenchmarkRow(name="there is no CUDA device", figure=float("nan"), unit="x")]


def copies() -> list[BenchmarkRow]:
    """Copy a state through 1 to 8 sub-buffers and as it is, in pairs."""
    if not torch.cuda.is_available():
        return MISSING
    tree = PackedTree({"state": torch.randn(STATE_BYTES // 4, device="cuda")})
    plain = torch.zeros(tree.num_bytes, dtype=torch.uint8)
    tree.write_(plain)
    rows = []
    for number in (0, 1, 2, 4, 8):
        pinned = [torch.empty(RESERVED_BYTES // 8, dtype=torch.uint8, pin_memory=True) for _ in range(number)]
        out = torch.zeros(tree.num_bytes, dtype=torch.uint8, pin_memory=not pinned)
        ratio = paired_ratio(
            lambda out=out, pinned=pinned: tree.write_(out, pinned), lambda: tree.write_(plain), rounds=ROUNDS
        )
        how = f"{number} sub-buffers" if number else "locked memory"
        name = f"{how}, {STATE_BYTES / ratio.a_s / 1e9:.1f} GB/s, over a plain copy"
        rows.append(BenchmarkRow.of(name, ratio, equal=torch.equal(out, plain)))
    return rows


def trainings() -> list[BenchmarkRow]:
    """Train with a checkpoint in every iteration and without, in pairs."""
    if not torch.cuda.is_available():
        return MISSING
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            plain, rows = _training(None), []
            for scheme in ("Blocking", "Unpipelined", "Gemini"):
                ratio = paired_ratio(_training(scheme), plain, rounds=ROUNDS, warmup=8)
                rows.append(BenchmarkRow.of(f"{scheme}, over no checkpoints ({ratio.b_s:.2f} s)", ratio))
            return rows
        finally:
            dist.destroy_process_group()


def _training(scheme: str | None) -> Callable[[], None]:
    torch.manual_seed(0)
    model = GPT2(CONFIG).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids_BS = torch.randint(CONFIG.vocab_size, (BATCH, SEQUENCE), device="cuda")
    options = CheckpointOptions(scheme=scheme or "Baseline", num_replicas=1, reserved_bytes=RESERVED_BYTES)
    checkpoints = InMemoryCheckpoints(PoolContext(0, 1), model, optimizer, options=options) if scheme else None

    def step() -> None:
        for _ in range(ACCUMULATED):
            model(ids_BS, ids_BS).backward()
        optimizer.step()
        optimizer.zero_grad()
        if checkpoints is not None:
            checkpoints.step()
        torch.cuda.synchronize()

    return step


BENCHMARKS = [
    Benchmark(name="gemini-device-copies", asks="A state on a device, through pinned sub-buffers.", run=copies),
    Benchmark(name="gemini-device-trainings", asks="A checkpoint in every iteration, on one device.", run=trainings),
]
