"""RNNsearch of Bahdanau, Cho and Bengio 2015: a recurrent encoder-decoder with attention, before the Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.checks import Checks
from regard.models.config import Rate, Size, TokenId, check_config, check_translator, validate
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.layers import to_autocast_dtype
from regard.models.transformer import Tying
from regard.nn.additive_attention import AdditiveAttention
from regard.nn.linear import Linear
from regard.ops import AttentionOutput
from regard.ops.masks import Padding


@dataclass(frozen=True)
class RnnSearchConfig:
    """What an RNNsearch is built from; the defaults are the sizes of the paper.

    Args:
        vocab_size: Number of words of the source, or of both sides.
        tgt_vocab_size: Number of words of the target. Default: one vocabulary for both sides.
        d_model: Width of the embeddings, and of what the final linear map reads.
        d_hidden: Width of the recurrent states, of the encoder in each direction.
        d_attention: Width of the hidden layer that weighs the source. Default: d_hidden.
        dropout: Dropped share of embeddings, annotations and what the final linear map reads.
        max_seq_len: The longest sequence that generation makes.
        tie_embeddings: ``"all"``: one matrix for both embeddings and the final linear map; ``"decoder"``: one for the
            target embedding and the final map; ``"none"`` (the paper's).
        pad_id: The word that fills up sequences.
        bos_id: The word that the decoder reads first.
        eos_id: The word that ends a sequence.

    Raises:
        InvalidArgument: With everything that does not fit.

    Example:
        >>> RnnSearchConfig(30000).d_hidden
        1000
    """

    vocab_size: Size
    tgt_vocab_size: Size | None = None
    d_model: Size = 620
    d_hidden: Size = 1000
    d_attention: Size | None = None
    dropout: Rate = 0.0
    max_seq_len: Size = 1024
    tie_embeddings: Tying = "none"
    pad_id: TokenId = 0
    bos_id: TokenId = 1
    eos_id: TokenId = 2

    def __post_init__(self) -> None:
        with Checks() as checks:
            if validate(self, checks):
                check_translator(checks, self)

    @property
    def decoder_vocab_size(self) -> int:
        """Number of words of the target."""
        return self.vocab_size if self.tgt_vocab_size is None else self.tgt_vocab_size

    def num_layers_and_heads(self, kind: str) -> tuple[int, int]:
        """The number of layers of one kind of attention, of which there is ``"cross"`` alone, and of heads."""
        return (1, 1) if kind == "cross" else (0, 0)


class RnnSearch(EncoderDecoder):
    """Recurrent encoder-decoder: two GRUs read the source, a third writes and attends to what they made of it.

    Forward and backward states of the encoder stand side by side as annotations hⱼ. Before its word i the decoder
    weighs them by its last state, and steps on:

        sᵢ = GRU(sᵢ₋₁; yᵢ₋₁, cᵢ), cᵢ = Σⱼ Pᵢⱼ hⱼ, Pᵢⱼ = softmax over j of v · tanh(W sᵢ₋₁ + U hⱼ + b)
        s₀ = tanh(W₀ ←h₁), logitsᵢ = E · maxout(R [sᵢ, yᵢ₋₁, cᵢ])

    Maxout takes the larger of each two neighbours. The paper's readout takes sᵢ in the text and sᵢ₋₁ in its appendix;
    here it is sᵢ. The GRUs are torch's, whose reset gate acts behind the product, r ∘ (U s), where the paper's acts
    before it. It is trained, translates and is looked at as a :class:`regard.models.Transformer`.

    Recurrent matrices begin orthogonal, the attention's as :class:`regard.nn.AdditiveAttention` says, all others from
    Xavier's uniform distribution, embeddings from N(0, 1 / d_model), biases at 0.

    Args:
        config: Sizes and rates.

    Reference:
        Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", section 3
        and appendix A.

    Example:
        >>> import torch
        >>> model = RnnSearch(RnnSearchConfig(100, d_model=16, d_hidden=12)).eval()
        >>> src, tgt = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
        >>> output = model(src, tgt, src_lengths=torch.tensor([7, 4]), output_attentions=True)
        >>> output.logits.shape, output.attentions.cross[0].weights.shape
        (torch.Size([2, 5, 100]), torch.Size([2, 1, 5, 7]))
    """

    min_source_length = 1  # a recurrent network reads something

    def __init__(self, config: RnnSearchConfig) -> None:
        super().__init__(check_config(config, RnnSearchConfig))
        d_model, d_hidden = config.d_model, config.d_hidden
        self.encoder = nn.GRU(d_model, d_hidden, batch_first=True, bidirectional=True)
        self.begin = Linear(d_hidden, d_hidden)
        self.attention = AdditiveAttention(d_hidden, 2 * d_hidden, config.d_attention or d_hidden)
        self.cell = nn.GRUCell(d_model + 2 * d_hidden, d_hidden)
        self.readout = Linear(d_hidden + d_model + 2 * d_hidden, 2 * d_model)
        self.lm_head = self._build_lm_head()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the class describes."""
        for linear in (self.begin, self.readout, self.lm_head):
            nn.init.xavier_uniform_(linear.weight)
        for name, weight in (*self.encoder.named_parameters(), *self.cell.named_parameters()):
            if name.startswith("weight"):  # of the reset gate, the update gate and the new state, one below the other
                for gate in weight.chunk(3):
                    nn.init.orthogonal_(gate) if "_hh" in name else nn.init.xavier_uniform_(gate)
        for name, bias in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(bias)
        self.attention.reset_parameters()
        self._reset_embeddings()  # after the linear map, with which it may be one

    @property
    def memory_dim(self) -> int:
        return 2 * self.config.d_hidden

    @property
    def attention_layers(self) -> dict[str, Any]:
        return {"cross.0": self.attention}

    def new_cache(self) -> RecurrentCache:
        """An empty cache for :meth:`decode`."""
        return RecurrentCache()

    def _encode(self, src: Tensor, src_lengths: Tensor | None) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """Annotations: forward states beside backward states, zeros behind a sequence's end."""
        embedded = self._embed(src, self.src_embedding)
        lengths = torch.full((len(src),), src.shape[1]) if src_lengths is None else src_lengths.cpu()
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = functional_call(self.encoder, _in_dtype(self.encoder, embedded.dtype), (packed,))
        annotations, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=src.shape[1])
        return self.dropout(annotations), ()

    def _decode(
        self, tgt: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: RecurrentCache | None
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        embedded = self._embed(tgt, self.tgt_embedding)
        states, attended = self._recur(embedded, memory, src_lengths, cache or self.new_cache())
        merged = self.readout(torch.cat([states, embedded, attended.output], -1))
        return self.dropout(merged.unflatten(-1, (-1, 2)).amax(-1)), (), (attended,)

    def _recur(
        self, embedded: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: RecurrentCache
    ) -> tuple[Tensor, AttentionOutput]:
        """The states after each word, (rows, target, d_hidden), and what was attended to for it."""
        mask = None if src_lengths is None else Padding(src_lengths)
        if cache.state is None or cache.key is None:
            first = memory[:, 0, self.config.d_hidden :]  # the backward state that has read the whole source
            cache.state = torch.tanh(self.begin(first)).repeat_interleave(len(embedded) // len(memory), 0)
            cache.key = self.attention.project_key(memory)
        states, contexts = [cache.state], []
        weights = _in_dtype(self.cell, embedded.dtype)
        for word in embedded.unbind(1):
            queries = states[-1].unflatten(0, (len(memory), -1))  # (sentences, beams, d_hidden)
            read = self.attention(queries, memory, mask=mask, projected_key=cache.key).output
            contexts.append(read.flatten(0, 1))
            states.append(functional_call(self.cell, weights, (torch.cat([word, contexts[-1]], -1), states[-1])))
        cache.state, cache.length = states[-1], cache.length + embedded.shape[1]
        asking = torch.stack(states[:-1], 1).unflatten(0, (len(memory), -1)).flatten(1, 2)
        asked = self.attention.weights(asking, memory, mask=mask, projected_key=cache.key)
        return torch.stack(states[1:], 1), AttentionOutput(torch.stack(contexts, 1), asked, {}, memory[:, None])

    def _embed(self, words: Tensor, embedding: nn.Embedding) -> Tensor:
        """(batch, tokens) → (batch, tokens, d_model)."""
        return self.dropout(to_autocast_dtype(embedding(words)))


def _in_dtype(recurrent: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of a recurrent module, which autocast leaves as they are on a CPU, in a dtype."""
    return {name: parameter.to(dtype) for name, parameter in recurrent.named_parameters()}


class RecurrentCache:
    """What the decoder goes on from: the state of each row, and the projected annotations of each sentence."""

    def __init__(self) -> None:
        self.length = 0
        """Number of words that each row has."""
        self.state: Tensor | None = None  # (rows, d_hidden)
        self.key: Tensor | None = None  # (sentences, 1, source, d_attention)

    def batch_repeat_interleave(self, beams: int) -> None:
        """Make of the one row of each sentence so many, which go on from it."""
        if self.state is not None:
            self.state = self.state.repeat_interleave(beams, 0)

    def reorder_cache(self, rows: Tensor) -> None:
        """Let row i go on from row ``rows[i]`` of the same sentence."""
        if self.state is not None:
            self.state = self.state.index_select(0, rows)

    def batch_select_indices(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with some sentences only, whose row i goes on from row ``rows[i]``, counted before others left."""
        if self.key is not None:
            self.key = self.key.index_select(0, sentences)
        self.reorder_cache(rows)
