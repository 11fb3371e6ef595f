"""Models with sparse gradients: a predictor of clicks, a translator, and a language model with a sampled softmax."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.cases import refusals
from workbench.models.language import LogUniform, SampledLSTM, log_probability
from workbench.models.recommender import DeepFM, interactions, interactions_by_definition
from workbench.models.translation import Translator


def built(make, *sizes, seed=0, **widths):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*sizes, **widths)


def test_interactions_are_the_inner_products_of_all_pairs():
    fields = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    assert interactions(fields).tolist() == [11 + 17 + 39]  # 1·3 + 2·4, 1·5 + 2·6, 3·5 + 4·6
    drawn = torch.randn(5, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(interactions(drawn), interactions_by_definition(drawn))


def test_a_click_is_scored_by_linear_terms_interactions_and_a_perceptron():
    model = built(DeepFM, 3, num_categories=2, num_numbers=1, width=1, hidden=(1,))
    with torch.no_grad():
        model.embedding.weight.copy_(torch.tensor([[2.0], [3.0], [5.0]]))
        model.first_order.weight.copy_(torch.tensor([[0.1], [0.2], [0.4]]))
        model.number_factors.fill_(0.5)
        model.number_weights.weight.fill_(10.0)
        model.number_weights.bias.fill_(100.0)
        model.perceptron[0].weight.fill_(1.0)
        model.perceptron[0].bias.zero_()
        model.perceptron[2].weight.fill_(1000.0)
        model.perceptron[2].bias.zero_()
    logit = model(torch.tensor([[0, 2]]), torch.tensor([[4.0]]))
    # Fields 2, 5 and 4 · 0.5 = 2. Linear 0.1 + 0.4 + 40 + 100, pairs 10 + 4 + 10, perceptron 1000 · 9.
    torch.testing.assert_close(logit, torch.tensor([140.5 + 24 + 9000]))


def test_padding_changes_no_score_and_a_word_is_scored_without_the_words_behind_it():
    model = built(Translator, 9, 7, width=4, hidden=6)
    source, target = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.tensor([[1, 3, 4, 5], [1, 6, 2, 3]])
    scores = model(source, target)
    assert scores.shape == (2, 4, 7)
    padded = model(functional.pad(source, (0, 2)), functional.pad(target, (0, 1)))
    torch.testing.assert_close(padded[:, :4], scores)
    changed = target.clone()
    changed[:, 2] = 5
    later = model(source, changed)
    torch.testing.assert_close(later[:, :2], scores[:, :2])
    assert not torch.allclose(later[:, 2], scores[:, 2])


def test_a_words_probability_to_be_sampled_follows_zipfs_law():
    # Of three words, log(k + 2) / (k + 1) over log 4: 1/2, 0.2925, 0.2075. In two tries 1 - 1/4 for the first.
    ranks = torch.arange(3)
    torch.testing.assert_close(log_probability(ranks, 3, 1).exp(), torch.tensor([0.5, 0.29248, 0.20752]))
    torch.testing.assert_close(log_probability(ranks, 3, 2).exp()[0], torch.tensor(0.75))
    sampler = LogUniform(num_words=3, num_sampled=1)
    first = [sampler.draw(np.random.default_rng(seed)) for seed in range(2000)]
    shares = np.bincount([rows[0] for rows, _ in first], minlength=3) / 2000
    assert shares == pytest.approx([0.5, 0.2925, 0.2075], abs=0.04) and {tries for _, tries in first} == {1}


def test_a_draw_holds_as_many_distinct_words_as_asked_and_is_the_same_for_equal_seeds():
    sampler = LogUniform(num_words=50, num_sampled=40)
    (rows, tries), (again, _) = sampler.draw(np.random.default_rng(1)), sampler.draw(np.random.default_rng(1))
    assert len(rows) == 40 and (np.diff(rows) > 0).all() and rows[0] >= 0 and rows[-1] < 50
    assert tries > 40 and np.array_equal(rows, again)


def test_with_all_words_sampled_the_loss_is_that_of_the_full_softmax():
    model = built(SampledLSTM, 6, width=3, hidden=4)
    ids, targets = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 0]])
    sampled = model(ids, targets, torch.arange(6), 10**6)  # after many tries every word is in the sample
    assert sampled.shape == (1, 3, 7) and torch.isinf(sampled).sum() == 3  # a true word does not count twice
    full = functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(functional.cross_entropy(sampled.flatten(0, 1), torch.zeros(3).long()), full)


test_sizes_that_do_not_fit_are_refused = refusals(
    (lambda: DeepFM(0), "num_rows is 0; it must be a whole number of at least 1"),
    (lambda: Translator(9, 9, width=4, hidden=5), "hidden is 5; it must be even"),
    (lambda: SampledLSTM(9, width=0, hidden=2), "width is 0; it must be"),
    (lambda: LogUniform(num_words=3, num_sampled=4), "num_sampled is 4; it must be at most num_words, 3"),
)
