"""Two techniques in one training: beside Gemini's checkpoints a hook resumes; FlexTP and compressed activations."""

import pytest
import torch

from tests.cases import tidy
from tests.contracts import hooked
from tests.contracts import test_atp_in_own_training as meshes
from tests.contracts import test_flextp_in_own_training as flexible
from tests.contracts.test_zen_in_own_training import Text, wrapped
from tests.contracts.test_zen_in_own_training import batch as words
from tests.techniques.atp.atp_models import language_model
from tests.techniques.gemini.own_trainings import Training, resumes
from workbench.compression import DGC, AutoEncoder, ErrorFeedback, RandomK
from workbench.techniques import atp
from workbench.techniques.activation_compression import compress

# --- checkpoints in memory beside a hook that exchanges gradients


class WithZen(Training):
    """A sparse gradient stays until the next iteration begins, so that a checkpoint holds it."""

    def build(self):
        return Text(sparse=True)

    def wrap(self):
        self.model = wrapped(self.net, with_zen=True)

    def prepare(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, iteration):
        self.optimizer.zero_grad()
        self.model(words(iteration)).square().mean().backward()
        self.optimizer.step()


class WithEspresso(Training):
    technique = "espresso"

    def build(self):
        return hooked.net()

    def wrap(self):
        self.model = hooked.early(self.net)

    def prepare(self):
        self.extra = {"exchange": hooked.attach(self.technique, self.model)}

    def loss(self, x):
        return self.model(x[:, :7]).square().mean()


class WithCupcake(WithEspresso):
    technique = "cupcake"


@pytest.mark.parametrize("kind", [WithZen, WithEspresso, WithCupcake])
def test_a_training_with_a_hook_resumes_from_a_checkpoint_in_memory_with_its_bits(pools, kind):
    assert pools(2).run(tidy, resumes, kind) == [[], []]


class WithTorchsSparseSum(WithZen):
    """Buckets hold several dense gradients, whose places set the order of their sums; two ranks would not show it."""

    def wrap(self):
        self.model = wrapped(self.net, with_zen=False, bucket_cap_mb=25)


@pytest.mark.parametrize("half", [1, 3])  # torch does not say after its first pass where the others are
def test_sparse_gradients_leave_the_places_of_the_others_in_their_buckets_as_they_were(pools, half):
    assert pools(4).run(tidy, resumes, WithTorchsSparseSum, half=half) == [[]] * 4


# --- checkpoints in memory beside a technique that changes the model


class WithCodes(Training):
    """Residuals and random streams of codecs are a part of the module's state."""

    def build(self):
        net = super().build()
        compress(net, ErrorFeedback(RandomK(0.25)), layers=["0"])
        compress(net, DGC(0.25), layers=["3"])
        return net


class WithFlexTP(Training):
    """Columns are dropped, and their gradients are those of the iteration before."""

    def build(self):
        drawn = torch.rand((), dtype=torch.float64)
        net, self.group = flexible.build("workbench")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(drawn)
        return net

    def prepare(self):
        self.balancer = flexible.balanced(self.net, self.group, flexible.SAME_NEXT)
        self.extra = {"balancer": self.balancer}

    def step(self, iteration):
        flexible.step_of(self.model, self.balancer, self.optimizer, iteration)


class WithAtp(Training):
    def build(self):
        net = language_model()
        atp.parallelize(net, (2, 1))
        return net

    def step(self, iteration):
        self.optimizer.zero_grad()
        meshes.loss_of(self.model, iteration).backward()
        self.optimizer.step()


def test_codecs_of_activations_resume_with_their_residuals_and_streams():
    assert resumes(WithCodes) == []


@pytest.mark.parametrize("kind", [WithFlexTP, WithAtp])
def test_a_tensor_parallel_training_resumes_from_a_checkpoint_in_memory_with_its_bits(pools, kind):
    assert pools(2).run(tidy, resumes, kind) == [[], []]


# --- a straggler's columns migrate where activations are compressed


def compressed(kind: str, is_balanced: bool) -> list[torch.Tensor]:
    """Train a model whose cut layers send learned codes; return gradients and weights.

    Codes are linear: the sum of the ranks' codes does not depend on who multiplied which column. Top-K would choose
    among other parts of the sum.
    """
    model, group = flexible.build(kind)
    compress(model, AutoEncoder(flexible.WIDTH, 3, dtype=torch.float64), layers=["down"])
    balancer = flexible.balanced(model, group) if is_balanced else flexible.Plain()
    optimizer, all_gradients = flexible.sgd(model), []
    for number in range(4):
        flexible.step_of(model, balancer, optimizer, number)
        all_gradients += flexible.gradients(model)
    if is_balanced:
        assert balancer.plan.senders == (1,), balancer.plan
        balancer.remove()
    return all_gradients + flexible.locals_of(model.parameters())


def both(kind):
    return compressed(kind, True), compressed(kind, False)


@pytest.mark.parametrize("kind", flexible.KINDS)
def test_columns_migrate_under_compressed_activations_as_under_whole_ones(pools, kind):
    for balanced, plain in pools(2).run(tidy, both, kind):
        assert any(not torch.equal(a, plain[0]) for a in plain[1:])
        for tensor, expected in zip(balanced, plain, strict=True):
            torch.testing.assert_close(tensor, expected)
