"""The contract that every codec keeps; a new codec is added to CODECS."""

import copy
import math
import pickle
from itertools import product

import pytest
import torch

from workbench.compression import (
    DGC,
    FP16,
    Aggregation,
    AutoEncoder,
    EFSign,
    ErrorFeedback,
    Identity,
    OneBit,
    Quantize,
    QuantizeFeatures,
    RandomK,
    TopK,
)
from workbench.compression.wire import packed, unpacked

HIDDEN = 16
SHAPES = [(HIDDEN,), (3, HIDDEN), (2, 5, HIDDEN), (0, HIDDEN), (1, 1, HIDDEN)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CODECS = {
    "identity": Identity,
    "fp16": FP16,
    "top-k by share": lambda: TopK(0.1),
    "top-k by number, int32": lambda: TopK(7, index_dtype=torch.int32),
    "random-k by share": lambda: RandomK(0.25, seed=3),
    "random-k by number": lambda: RandomK(5, seed=3),
    "1 bit": lambda: Quantize(1),
    "2 bits": lambda: Quantize(2),
    "3 bits": lambda: Quantize(3),
    "4 bits": lambda: Quantize(4),
    "8 bits": lambda: Quantize(8),
    "2 bits by feature": lambda: QuantizeFeatures(2),
    "3 bits by feature": lambda: QuantizeFeatures(3),
    "8 bits by feature": lambda: QuantizeFeatures(8),
    "sign and mean magnitude": EFSign,
    "sign and two means": OneBit,
    "deep gradient compression": lambda: DGC(0.1),
    "deep gradient compression without masking, int32": lambda: DGC(7, masking=False, index_dtype=torch.int32),
    "auto-encoder": lambda: AutoEncoder(HIDDEN, 4, seed=3),
    "error feedback on top-k": lambda: ErrorFeedback(TopK(0.1)),
    "error feedback on sign and mean magnitude": lambda: ErrorFeedback(EFSign()),
    "error feedback on auto-encoder": lambda: ErrorFeedback(AutoEncoder(HIDDEN, 4, seed=3)),
}


@pytest.fixture(params=CODECS)
def codec(request):
    return CODECS[request.param]()


def normal(shape, dtype=torch.float32, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype=dtype, device=device)


def check_round_trip(codec, x):
    payload = codec.encode(x)
    decoded = codec.decode(payload)
    on_the_wire = sum(tensor.numel() * tensor.element_size() for tensor in payload.tensors)
    assert payload.num_bytes == on_the_wire == codec.payload_bytes(x.shape, x.dtype)
    assert (decoded.shape, decoded.dtype, decoded.device) == (x.shape, x.dtype, x.device)
    assert (payload.shape, payload.dtype) == (x.shape, x.dtype)
    with torch.no_grad():
        out = torch.full_like(x, math.nan)
        assert codec.decode(payload, out=out) is out
        assert torch.equal(out, decoded)


NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NEEDS_A_GPU])])
def test_payload_has_the_promised_bytes_and_comes_back_in_shape_and_dtype(codec, device):
    for shape, dtype in product(SHAPES, DTYPES):
        check_round_trip(copy.deepcopy(codec).to(device), normal(shape, dtype, device=device))


def test_a_payload_comes_back_from_its_bytes(codec):
    payload = codec.encode(normal((3, HIDDEN)))
    row = packed(payload)
    assert row.dtype == torch.uint8 and row.numel() == payload.num_bytes
    restored = unpacked(row, payload)
    assert all(torch.equal(a, b) for a, b in zip(restored.tensors, payload.tensors, strict=True))


def test_a_tensor_that_is_not_contiguous_encodes_like_its_copy(codec):
    x = normal((HIDDEN, 6)).t()
    again = copy.deepcopy(codec)
    expected, actual = codec.encode(x.contiguous()), again.encode(x)
    assert all(torch.equal(a, b) for a, b in zip(expected.tensors, actual.tensors, strict=True))


def test_equal_seeds_give_equal_payloads_at_equal_sites_only(codec):
    x = normal((3, HIDDEN))
    first, second = codec.for_site("a"), copy.deepcopy(codec).for_site("a")
    for _ in range(3):
        pairs = zip(first.encode(x).tensors, second.encode(x).tensors, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_summed_payloads_decode_to_the_sum_and_gathered_ones_say_so(codec):
    codec.eval()
    x, y = normal((3, HIDDEN), seed=1), normal((3, HIDDEN), seed=2)
    payloads = [codec.encode(x), codec.encode(y)]
    apart = codec.decode_sum_by_definition(payloads)
    torch.testing.assert_close(codec.decode_sum(payloads), apart, rtol=0, atol=0)
    if codec.aggregation is Aggregation.SUM:
        total = tuple(a + b for a, b in zip(payloads[0].tensors, payloads[1].tensors, strict=True))
        together = codec.decode(type(payloads[0])(tensors=total, shape=x.shape, dtype=x.dtype))
        # Half-precision codes of magnitude up to 8 are rounded by at most 2**-9 each time.
        torch.testing.assert_close(together, apart, rtol=0, atol=3 * 2**-9 if isinstance(codec, FP16) else 1e-5)
    else:
        assert codec.aggregation is Aggregation.GATHER
    with pytest.raises(ValueError, match="payloads is empty"):
        codec.decode_sum([])


def test_a_sum_has_the_bits_of_its_definition_also_where_zeros_are_negative(codec):
    codec.eval()
    zeros = [normal((3, HIDDEN), seed=seed) * 0.0 for seed in range(3)]
    for dtype, inputs in product(DTYPES, (zeros[:1], zeros[:2], [*zeros, normal((3, HIDDEN))])):
        integers = torch.int32 if dtype is torch.float32 else torch.int16
        payloads = [codec.encode(x.to(dtype)) for x in inputs]
        fast, by_definition = codec.decode_sum(payloads), codec.decode_sum_by_definition(payloads)
        assert torch.equal(fast.view(integers), by_definition.view(integers))


@torch.no_grad()
def test_a_place_for_the_result_that_does_not_fit_is_refused(codec):
    payload, turned = codec.encode(normal((3, HIDDEN))), torch.empty(HIDDEN, 3)
    rule = r"out has shape .*: it must be contiguous, of shape \(3, 16\), torch.float32, on cpu"
    for out in (torch.empty(3, HIDDEN + 1), turned, torch.empty(3, HIDDEN).double(), turned.t()):
        with pytest.raises(ValueError, match=rule):
            codec.decode(payload, out=out)


def test_forward_gives_decode_of_encode_also_in_another_process_and_leaves_input_and_global_generator_alone(codec):
    x, state = normal((3, HIDDEN)), torch.get_rng_state()
    before, again, sent = x.clone(), copy.deepcopy(codec), pickle.loads(pickle.dumps(codec))
    decoded = codec(x)
    assert torch.equal(decoded, again.decode(again.encode(x)))
    assert torch.equal(decoded, sent(x))
    codec.for_site("layer 3")(x)
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)


def test_backward_follows_the_stated_gradient(codec):
    x, grad = normal((3, HIDDEN)).requires_grad_(), normal((3, HIDDEN), seed=1)
    again = copy.deepcopy(codec)
    codec(x).backward(grad)
    if codec.aggregation is Aggregation.GATHER:
        expected = again.input_gradient(grad, again.encode(x))
    else:
        twin = x.detach().clone().requires_grad_()
        (expected,) = torch.autograd.grad(again.decode(again.encode(twin)), twin, grad)
    assert torch.equal(x.grad, expected)


def test_an_element_that_is_not_finite_arrives_as_not_finite_at_whatever_place_and_not_in_the_next(codec):
    for value, dtype, place in product([math.inf, -math.inf, math.nan], DTYPES, range(0, 3 * HIDDEN, 11)):
        x = normal((3, HIDDEN), dtype)
        x.view(-1)[place] = value
        good, bad = codec.encode(normal((3, HIDDEN), dtype)), codec.encode(x)
        assert not codec.decode(bad).isfinite().all()
        assert not codec.decode_sum([good, bad]).isfinite().all()
        assert codec.decode(codec.encode(normal((3, HIDDEN), dtype))).isfinite().all()


@pytest.mark.parametrize(("value", "dtype"), [(1e38, torch.float32), (1e38, torch.bfloat16), (6e4, torch.float16)])
def test_finite_elements_whose_sum_overflows_are_sent_as_they_are(value, dtype):
    x = torch.full((3, HIDDEN), value, dtype=dtype)
    assert torch.equal(RandomK(5).encode(x).tensors[0], x.view(-1)[:5])


def test_what_is_remembered_can_be_multiplied_by_powers_of_two_bit_for_bit(codec):
    other, xs = copy.deepcopy(codec), [normal((3, HIDDEN), seed=seed) for seed in range(3)]
    for x, factor, scale in zip(xs, [1.0, 4.0, 0.125], [1.0, 4.0, 0.5], strict=True):
        other.rescale_(factor)
        expected, rescaled = codec.decode(codec.encode(x)) * scale, other.decode(other.encode(x * scale))
        if not isinstance(codec, Quantize | QuantizeFeatures | FP16):  # scales in half precision are rounded
            assert torch.equal(rescaled, expected)


def test_gathered_payloads_carry_no_graph(codec):
    payload = codec.encode(normal((3, HIDDEN)).requires_grad_())
    if codec.aggregation is Aggregation.GATHER:
        assert not any(tensor.requires_grad for tensor in payload.tensors)
    else:
        assert all(tensor.requires_grad for tensor in payload.tensors)


def test_a_saved_codec_continues_bit_for_bit_in_a_new_object(codec, request, tmp_path):
    site = "layer 3"
    codec = codec.for_site(site).for_rank(1)
    xs = [normal((3, HIDDEN), seed=seed) for seed in range(5)]
    for x in xs[:2]:
        codec.encode(x)
    torch.save(codec.state_dict(), tmp_path / "state.pt")
    resumed = CODECS[request.node.callspec.params["codec"]]().for_site("another").for_rank(0)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for x in xs[2:]:
        for tensor, expected in zip(resumed.encode(x).tensors, codec.encode(x).tensors, strict=True):
            assert torch.equal(tensor, expected)


@pytest.mark.parametrize("name", [name for name, build in CODECS.items() if build().is_linear])
def test_a_linear_code_of_a_product_is_the_product_with_the_code(name):
    # In float64: sums of 7 and 16 terms of size 1, rounded to 2**-53.
    codec = CODECS[name]().double()
    x, weight = normal((3, 7), torch.float64), normal((7, HIDDEN), torch.float64, seed=1)
    (of_product,), (of_weight,) = codec.encode(x @ weight).tensors, codec.encode(weight).tensors
    torch.testing.assert_close(x @ of_weight, of_product, rtol=1e-12, atol=1e-13)
