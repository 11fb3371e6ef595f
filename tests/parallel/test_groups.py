"""Tensor groups, stages and the boundaries between them, with all ranks in one process; bytes that are sent."""

import socket

import pytest
import torch
from torch import nn

from tests.cases import refusals
from workbench import parallel
from workbench.compression import FP16, AutoEncoder, ErrorFeedback, Identity, Quantize, RandomK, TopK
from workbench.compression.codec import site_seed
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import VirtualPipeline
from workbench.parallel.traffic import tcp_bytes_sent


def test_sum_adds_partials_copy_sums_gradients_and_gather_keeps_types_and_order():
    group = parallel.VirtualTensorGroup(2)
    a, b = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    total = group.sum([a, 10 * b])
    total.backward(torch.tensor([1.0, 3.0]))
    assert total.tolist() == [11.0, 22.0]
    assert (a.grad.tolist(), b.grad.tolist()) == ([1.0, 3.0], [10.0, 30.0])
    x = torch.tensor([2.0], requires_grad=True)
    y = group.copy(x)
    sum(y * weight for weight in (1.0, 10.0, 100.0)).backward()
    assert (y.item(), x.grad.item()) == (2.0, 111.0)
    messages = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    assert [message.tolist() for message in group.gather(messages)] == [[1, 2], [3, 4]]
    assert not any(message.requires_grad for message in group.gather([a, b]))


def test_traffic_counts_the_bytes_that_one_rank_contributes_and_none_of_a_group_of_one():
    group = parallel.VirtualTensorGroup(2)
    x = torch.ones(3, 4, requires_grad=True)
    with group.traffic.at("here"):
        y = group.copy(x)
    with group.traffic.at("there"):
        group.sum([y, y]).sum().backward()
        group.gather([torch.zeros(5, dtype=torch.uint8)] * 2)
    expected = {  # 12 fp32 elements are 48 bytes, 5 bytes are 5
        ("sum", "forward", 48, "there"),
        ("copy-backward", "backward", 48, "here"),
        ("gather", "forward", 5, "there"),
    }
    assert {(m.what, m.phase, m.message_bytes, m.site) for m in group.traffic} == expected
    assert group.traffic.num_bytes() == 101
    assert group.traffic.num_bytes(phase="forward") == 53
    assert group.traffic.num_bytes(site="there") == 53
    group.traffic.clear()
    assert len(group.traffic) == 0
    with group.traffic.at("boundary", phase=parallel.Phase.BACKWARD):
        group.traffic.record(parallel.MessageKind.SEND, torch.zeros(2, dtype=torch.float16), num_ranks=2)
    sent = {"what": parallel.MessageKind.SEND, "phase": parallel.Phase.BACKWARD, "site": "boundary"}
    assert group.traffic.messages == [parallel.Message(message_bytes=4, num_ranks=2, **sent)]
    alone = parallel.VirtualTensorGroup(1)
    alone.copy(alone.sum([x])).sum().backward()
    assert len(alone.traffic) == 0


def test_layers_and_codecs_derive_the_same_seed_from_the_same_name():
    places = [(0, ""), (3, "layers.1.mlp.output"), (0, "a"), (0, "b"), (1, "a"), (0, "a")]
    seeds = [parallel.generator_for(*place).initial_seed() for place in places]
    assert seeds == [site_seed(*place) for place in places]
    assert len(set(seeds)) == 5  # one place is named twice


def test_stages_hold_consecutive_equal_runs():
    stages = [parallel.Stage(index=index, num_stages=3) for index in range(3)]
    assert [list(stage.layers(6)) for stage in stages] == [[0, 1], [2, 3], [4, 5]]
    assert [(stage.is_first, stage.is_last) for stage in stages] == [(True, False), (False, False), (False, True)]


PARTS = [nn.Identity(), nn.Identity()]
THREE_BATCHES = VirtualPipeline(PARTS, num_micro_batches=3)


test_groups_stages_and_pipelines_that_cannot_be_are_refused = refusals(
    (lambda: parallel.VirtualTensorGroup(2).sum([torch.ones(1)]), "tensors: 1 given.*2 ranks"),
    (lambda: parallel.VirtualTensorGroup(0), "size: 0"),
    (parallel.ProcessTensorGroup, "torch.distributed is not initialised"),
    (lambda: parallel.Stage(index=0, num_stages=3).layers(7), "num_layers: 7 is not divisible by 3"),
    (lambda: parallel.Stage(index=3, num_stages=3), r"index: 3 is not in 0\.\.2"),
    (lambda: parallel.Stage(index=0, num_stages=0), "num_stages: 0"),
    (lambda: VirtualPipeline(PARTS, boundaries=[Boundary()] * 2), "boundaries: 2 given; 2 stages have 1"),
    (lambda: THREE_BATCHES.evaluate(torch.ones(4, 1, 1)), "num_micro_batches: 3 does not divide a batch of 4"),
)


def test_written_bytes_count_once_also_while_they_wait_for_a_slow_reader_and_received_ones_do_not():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            before = tcp_bytes_sent()
            client.sendall(bytes(1000))
            assert tcp_bytes_sent() - before == 1000
            accepted.recv(1000, socket.MSG_WAITALL)
            accepted.sendall(bytes(7))
            assert tcp_bytes_sent() - before == 1007
            client.setblocking(False)
            written = 1007
            with pytest.raises(BlockingIOError):
                while True:
                    written += client.send(bytes(100_000))
            assert tcp_bytes_sent() - before == written


def test_listening_and_other_sockets_and_files_count_nothing(tmp_path):
    before = tcp_bytes_sent()
    sender, receiver = socket.socketpair()
    with sender, receiver, open(tmp_path / "file", "wb") as file, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        sender.sendall(bytes(100))
        datagrams.sendto(bytes(100), ("127.0.0.1", 9))
        file.write(bytes(100))
        with socket.create_server(("127.0.0.1", 0)):
            assert tcp_bytes_sent() == before


def test_other_systems_get_a_clear_error(monkeypatch):
    monkeypatch.setattr(parallel.traffic.sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="Linux's TCP_INFO; this is darwin"):
        tcp_bytes_sent()


CODECS = [Identity(), FP16(), TopK(0.4), RandomK(0.4, seed=3), Quantize(2), AutoEncoder(8, 4, seed=3)]


def over(codec, x: torch.Tensor) -> tuple[torch.Tensor, Boundary]:
    boundary = Boundary(codec, site="here")
    boundary.prepare(x.shape, x.dtype, "cpu")
    return boundary.receive(*boundary.send(x)), boundary


def sent(boundary: Boundary, phase: str) -> list[int]:
    return [m.message_bytes for m in boundary.traffic if m.phase == phase]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
def test_a_boundary_gives_what_the_codec_gives_and_its_gradient(codec):
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    ours, alone = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, _ = over(codec.for_site("a"), ours)
    expected = codec.for_site("a")(alone)
    assert torch.equal(y, expected)
    weights = torch.arange(48.0).reshape(2, 3, 8)
    y.mul(weights).sum().backward()
    expected.mul(weights).sum().backward()
    torch.testing.assert_close(ours.grad, alone.grad)


def test_top_k_gets_the_gradients_of_the_kept_values_and_a_quantised_message_a_full_size_gradient():
    x = torch.tensor([[1.0, -5.0, 2.0, 4.0]], requires_grad=True)
    y, boundary = over(TopK(2), x)
    assert y.tolist() == [[0.0, -5.0, 0.0, 4.0]]
    y.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert x.grad.tolist() == [[0.0, 2.0, 0.0, 4.0]]
    assert sent(boundary, "forward") == [2 * 4, 2 * 8]  # fp32 values, int64 indices
    assert sent(boundary, "backward") == [2 * 4]
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]], requires_grad=True)
    y, boundary = over(Quantize(2), x)
    assert y.tolist() == [[0.0, 1.0, 2.0, 3.0]]  # four levels, four values
    y.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert x.grad.tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert sent(boundary, "forward") == [1 + 4, 0]  # packed, with fp16 scale and bias; token
    assert sent(boundary, "backward") == [4 * 4]


def test_an_example_does_not_advance_a_codecs_random_stream():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    codec = RandomK(0.5, seed=1)
    untouched = RandomK(0.5, seed=1).encode(x).tensors[1]
    boundary = Boundary(codec)
    boundary.prepare(x.shape, x.dtype, "cpu")
    assert torch.equal(boundary.send(x)[1], untouched)


def test_error_feedback_is_off_in_evaluation():
    boundary = Boundary(ErrorFeedback(TopK(1)))
    pipeline = VirtualPipeline(PARTS, boundaries=[boundary], loss=lambda output, targets: output.sum())
    x = torch.tensor([[[3.0, 2.0]]], requires_grad=True)
    assert pipeline.step(x, x).output.tolist() == [[[3.0, 0.0]]]  # 2 is remembered
    assert pipeline.evaluate(x).tolist() == [[[3.0, 0.0]]]
    assert boundary.training
    assert pipeline.step(x, x).output.tolist() == [[[0.0, 4.0]]]


CONFIG = parallel.TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32, dropout=0.2, attention_dropout=0.3)


def run_on(device: str, codec) -> dict:
    group = parallel.VirtualTensorGroup(2)
    parts = [parallel.TransformerLayer(CONFIG, group, site=f"layers.{i}", device=device) for i in range(2)]
    pipeline = VirtualPipeline(parts, boundaries=[Boundary(codec)], loss=lambda y, targets: y.square().mean())
    x = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0)).to(device)
    result = pipeline.step(x, x)
    grads = {n: p.grad.cpu() for n, p in nn.ModuleList(parts).named_parameters()}
    return {"loss": result.loss.cpu(), "output": result.output.cpu()} | grads


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("codec", [None, TopK(0.5), Quantize(4)], ids=["none", "top-k", "quantize"])
def test_a_gpu_gives_what_the_cpu_gives_dropout_included(codec):
    torch.testing.assert_close(run_on("cuda", codec), run_on("cpu", codec), rtol=1e-3, atol=1e-4)
