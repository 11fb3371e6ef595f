"""A language model of words with two separate tables, and the sampled softmax that makes both gradients sparse.

After Jozefowicz et al., 2016: a step scores the true words and a sample of others; a sampled word's score is
reduced by the logarithm of its probability to be in the sample, so that the loss estimates that of all words.
(`architectures.WordLSTM` ties its tables and scores all words.)

Shapes: B = batch, S = sequence, E = embedding, K = sampled words, V = all words.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from workbench.checks import require_counts

__all__ = ["LogUniform", "SampledLSTM"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogUniform:
    """Draws words by Zipf's law: rank k with the probability log((k + 2) / (k + 1)) / log(V + 1)."""

    num_words: int  # V, the most frequent word first
    num_sampled: int  # K, distinct words of a draw

    def __post_init__(self) -> None:
        require_counts(1, num_words=self.num_words, num_sampled=self.num_sampled)
        if self.num_sampled > self.num_words:
            raise ValueError(f"num_sampled is {self.num_sampled}; it must be at most num_words, {self.num_words}")

    def draw(self, generator: np.random.Generator) -> tuple[np.ndarray, int]:
        """Draw until K words are distinct: return them, sorted, int64 [K], and the number of tries."""
        drawn = np.empty(0, dtype=np.int64)
        while True:
            uniform = generator.random(2 * self.num_sampled)
            more = np.exp(uniform * np.log(self.num_words + 1)).astype(np.int64) - 1
            drawn = np.append(drawn, more.clip(max=self.num_words - 1))
            firsts = np.sort(np.unique(drawn, return_index=True)[1])
            if len(firsts) >= self.num_sampled:
                num_tries = int(firsts[self.num_sampled - 1]) + 1
                return np.unique(drawn[:num_tries]), num_tries


def log_probability(ranks: Tensor, num_words: int, num_tries: int) -> Tensor:
    """Return the logarithm of the probability that words are among `num_tries` draws of `LogUniform`."""
    share = torch.log1p(1 / (ranks.double() + 1)) / np.log(num_words + 1)
    return torch.log(-torch.expm1(num_tries * torch.log1p(-share))).float()


class SampledLSTM(nn.Module):
    """An LSTM layer and a projection, between the table of words read and the table of words predicted.

    Args:
        num_words: V.
        width: E.
        hidden: Cells of the LSTM.
        sparse: Whether the two tables have sparse gradients.
    """

    def __init__(self, num_words: int, *, width: int, hidden: int, sparse: bool = False):
        super().__init__()
        require_counts(1, num_words=num_words, width=width, hidden=hidden)
        self.encoder = nn.Embedding(num_words, width, sparse=sparse)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.projection = nn.Linear(hidden, width)
        self.decoder = nn.Embedding(num_words, width, sparse=sparse)
        nn.init.uniform_(self.decoder.weight, -(width**-0.5), width**-0.5)

    def forward(
        self, ids_BS: Tensor, targets_BS: Tensor | None = None, sampled_K: Tensor | None = None, num_tries: int = 0
    ) -> Tensor:
        """Score the next word at every position.

        Args:
            ids_BS: int64.
            targets_BS: int64, the true next words; None scores all words.
            sampled_K: Distinct words of `LogUniform.draw`.
            num_tries: Tries of that draw.

        Returns:
            Logits [B, S, V]; with targets [B, S, 1 + K], the true word first.
        """
        x_BSE = self.projection(self.lstm(self.encoder(ids_BS))[0])
        if targets_BS is None or sampled_K is None:
            return x_BSE @ self.decoder.weight.T
        true_BS = (x_BSE * self.decoder(targets_BS)).sum(dim=-1)
        true_BS = true_BS - log_probability(targets_BS, self.decoder.num_embeddings, num_tries)
        other_BSK = x_BSE @ self.decoder(sampled_K).T
        other_BSK = other_BSK - log_probability(sampled_K, self.decoder.num_embeddings, num_tries)
        other_BSK = other_BSK.masked_fill(targets_BS[..., None] == sampled_K, -torch.inf)
        return torch.cat([true_BS[..., None], other_BSK], dim=-1)
