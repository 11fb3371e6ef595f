"""A small translator after GNMT (Wu et al., 2016): LSTMs read and write, the lower writing layer steers the attention.

One layer reads in both directions, two write; the attention's result feeds the upper layer, so that a whole sentence is
computed at once. Attention is by inner products.

Shapes: B = batch, S = source, T = target, E = embedding, H = hidden, V = words.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from workbench.checks import require_counts

__all__ = ["PADDING", "Translator"]

PADDING = 0  # the id behind a sentence's end, in both languages; its rows get no gradient


class Translator(nn.Module):
    """Scores the next word of a translation.

    Args:
        num_source, num_target: Words of either language.
        width: E.
        hidden: H, even.
        sparse: Whether the two tables have sparse gradients.
    """

    def __init__(self, num_source: int, num_target: int, *, width: int, hidden: int, sparse: bool = False):
        super().__init__()
        require_counts(1, num_source=num_source, num_target=num_target, width=width)
        if hidden < 2 or hidden % 2:
            raise ValueError(f"hidden is {hidden}; it must be even, for two directions")
        self.source = nn.Embedding(num_source, width, padding_idx=PADDING, sparse=sparse)
        self.target = nn.Embedding(num_target, width, padding_idx=PADDING, sparse=sparse)
        self.reader = nn.LSTM(width, hidden // 2, batch_first=True, bidirectional=True)
        self.lower = nn.LSTM(width, hidden, batch_first=True)
        self.upper = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.output = nn.Linear(hidden, num_target)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Score the word after every target word, from the source and the target up to it: logits [B, T, V].

        Args:
            source_BS: int64, each sentence at least one word, then `PADDING`.
            target_BT: int64, each sentence's start and words, then `PADDING`.
        """
        read_BSH, state = self._read(source_BS)
        lower_BTH, _ = self.lower(self.target(target_BT), state)
        scores_BTS = lower_BTH @ read_BSH.transpose(1, 2)
        scores_BTS = scores_BTS.masked_fill(source_BS[:, None] == PADDING, -torch.inf)
        seen_BTH = scores_BTS.softmax(dim=-1) @ read_BSH
        upper_BTH, _ = self.upper(torch.cat([lower_BTH, seen_BTH], dim=-1))
        return self.output(upper_BTH)

    def _read(self, source_BS: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Read sentences to their ends; return the output at every word, and the last states of both directions."""
        lengths = (source_BS != PADDING).sum(dim=1).cpu()
        packed = pack_padded_sequence(self.source(source_BS), lengths, batch_first=True, enforce_sorted=False)
        read, states = self.reader(packed)
        read_BSH, _ = pad_packed_sequence(read, batch_first=True, total_length=source_BS.shape[1])
        return read_BSH, tuple(torch.cat([*state], dim=-1)[None] for state in states)
