"""RNNsearch of Bahdanau, Cho and Bengio 2015: a recurrent encoder-decoder with additive attention."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.models.config import Rate, Size, TokenId, check_config
from regard.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, Tying
from regard.models.layers import to_autocast_dtype
from regard.native.linear import Linear
from regard.nn.additive_attention import AdditiveAttention
from regard.ops import AttentionOutput
from regard.ops.masks import Padding
from regard.validation import config_class


@config_class
class RNNSearchConfig(EncoderDecoderConfig):
    """Sizes, dropout rate and token ids of an RNNsearch; the defaults are the sizes of the paper.

    Args:
        vocab_size: Size of the source vocabulary, or of the vocabulary of both sides.
        tgt_vocab_size: Size of the target vocabulary. Default: vocab_size.
        d_model: Size of the embeddings and of the decoder's output, from which logits are computed.
        hidden_size: Size of the recurrent states: the decoder's, and the encoder's in each direction.
        d_attention: Size of the attention's hidden layer. Default: hidden_size.
        dropout: Dropout rate for the embeddings, the encoder's output and the decoder's output.
        max_seq_len: Maximum length of generated sequences, in tokens.
        tie_embeddings: Which weights are shared, as in `regard.models.TransformerConfig`; ``"none"`` in the
            paper.
        pad_id: Padding token id.
        bos_id: Token id that starts the decoder's input.
        eos_id: Token id that ends a sequence.

    Raises:
        InvalidArgument: With every field that is out of bounds, unknown or inconsistent.

    Examples:
        >>> RNNSearchConfig(30000).hidden_size
        1000
    """

    vocab_size: Size = field(kw_only=False)
    tgt_vocab_size: Size | None = None
    d_model: Size = 620
    hidden_size: Size = 1000
    d_attention: Size | None = None
    dropout: Rate = 0.0
    max_seq_len: Size = 1024
    tie_embeddings: Tying = "none"
    pad_id: TokenId = 0
    bos_id: TokenId = 1
    eos_id: TokenId = 2

    def num_layers_and_heads(self, kind: str) -> tuple[int, int]:
        """Number of layers and of heads of one kind of attention; only ``"cross"`` has any."""
        return (1, 1) if kind == "cross" else (0, 0)


class RNNSearch(EncoderDecoder):
    """Recurrent encoder-decoder with additive attention.

    A bidirectional GRU encodes the source; a GRU decoder attends to its states at every step. hⱼ concatenates the
    encoder's forward and backward state at source token j. At step i, the decoder computes attention weights Pᵢⱼ from
    its previous state sᵢ₋₁, and its next state from the previous target token yᵢ₋₁ and the context cᵢ:

        Pᵢⱼ = softmax over j of v · tanh(W sᵢ₋₁ + U hⱼ + b), cᵢ = Σⱼ Pᵢⱼ hⱼ
        sᵢ = GRU(sᵢ₋₁; yᵢ₋₁, cᵢ), s₀ = tanh(W₀ ←h₁), logitsᵢ = E · maxout(R [sᵢ, yᵢ₋₁, cᵢ])

    Maxout takes the maximum of each pair of adjacent units. The paper's output layer reads sᵢ in the text and sᵢ₋₁ in
    the appendix; here it reads sᵢ. The GRUs are torch's: the reset gate applies after the matrix product, r ∘ (U s), in
    the paper before it. Training, translation and recording work as for `regard.models.Transformer`.

    Initialization: recurrent matrices are orthogonal, the attention's weights as in
    `regard.nn.AdditiveAttention`, all other matrices from Xavier's uniform distribution, embeddings from
    N(0, 1 / d_model), biases 0.

    Args:
        config: Sizes, dropout rate and token ids.

    Reference:
        Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", section 3
        and appendix A.

    Examples:
        >>> import torch
        >>> model = RNNSearch(RNNSearchConfig(100, d_model=16, hidden_size=12)).eval()
        >>> src, tgt = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
        >>> output = model(src, tgt, src_lengths=torch.tensor([7, 4]), output_attentions=True)
        >>> output.logits.shape, output.attentions.cross[0].weights.shape
        (torch.Size([2, 5, 100]), torch.Size([2, 1, 5, 7]))
    """

    min_source_length = 1  # the decoder's initial state needs a source token

    def __init__(self, config: RNNSearchConfig) -> None:
        super().__init__(check_config(config, RNNSearchConfig))
        d_model, hidden_size = config.d_model, config.hidden_size
        self.encoder = nn.GRU(d_model, hidden_size, batch_first=True, bidirectional=True)
        self.initial_state = Linear(hidden_size, hidden_size)
        self.attention = AdditiveAttention(hidden_size, 2 * hidden_size, config.d_attention or hidden_size)
        self.decoder_cell = nn.GRUCell(d_model + 2 * hidden_size, hidden_size)
        self.readout = Linear(hidden_size + d_model + 2 * hidden_size, 2 * d_model)
        self.lm_head = self._build_lm_head()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights again, as the class documents."""
        for linear in (self.initial_state, self.readout, self.lm_head):
            nn.init.xavier_uniform_(linear.weight)
        for name, weight in (*self.encoder.named_parameters(), *self.decoder_cell.named_parameters()):
            if name.startswith("weight"):  # stacked: reset gate, update gate, new state
                for gate in weight.chunk(3):
                    nn.init.orthogonal_(gate) if "_hh" in name else nn.init.xavier_uniform_(gate)
        for name, bias in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(bias)
        self.attention.reset_parameters()
        self._reset_embeddings()  # last: the output projection may share their matrix

    @property
    def memory_dim(self) -> int:
        return 2 * self.config.hidden_size

    @property
    def attention_layers(self) -> dict[str, Any]:
        return {"cross.0": self.attention}

    def new_cache(self) -> RecurrentCache:
        """An empty cache for `decode`."""
        return RecurrentCache()

    def _encode(
        self, src: Tensor, src_lengths: Tensor | None, output_attentions: bool
    ) -> tuple[Tensor, tuple[AttentionOutput, ...]]:
        """The encoder's states, forward and backward concatenated; zeros at padding."""
        embedded = self._embed(src, self.src_embedding)
        lengths = torch.full((len(src),), src.shape[1], device="cpu") if src_lengths is None else src_lengths.cpu()
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = functional_call(self.encoder, _parameters_as(self.encoder, embedded.dtype), (packed,))
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=src.shape[1])
        return self.dropout(memory), ()

    def _decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        src_lengths: Tensor | None,
        cache: RecurrentCache | None,
        output_attentions: bool,
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[AttentionOutput, ...]]:
        embedded = self._embed(tgt, self.tgt_embedding)
        states, attended = self._unroll(embedded, memory, src_lengths, cache or self.new_cache())
        merged = self.readout(torch.cat([states, embedded, attended.output], -1))
        return self.dropout(merged.unflatten(-1, (-1, 2)).amax(-1)), (), (attended,) if output_attentions else ()

    def _unroll(
        self, embedded: Tensor, memory: Tensor, src_lengths: Tensor | None, cache: RecurrentCache
    ) -> tuple[Tensor, AttentionOutput]:
        """Run the decoder over all target tokens: its states (rows, target, hidden_size), and its attention."""
        mask = None if src_lengths is None else Padding(src_lengths)
        if cache.state is None or cache.key is None:
            backward = memory[:, 0, self.config.hidden_size :]  # at the first token: it has read the whole source
            cache.state = torch.tanh(self.initial_state(backward)).repeat_interleave(len(embedded) // len(memory), 0)
            cache.key = self.attention.project_key(memory)
        states, contexts = [cache.state], []
        parameters = _parameters_as(self.decoder_cell, embedded.dtype)
        for token in embedded.unbind(1):  # (rows, d_model)
            query = states[-1].unflatten(0, (len(memory), -1))  # (sentences, beams, hidden_size)
            context = self.attention(query, memory, mask=mask, projected_key=cache.key).output.flatten(0, 1)
            contexts.append(context)
            states.append(functional_call(self.decoder_cell, parameters, (torch.cat([token, context], -1), states[-1])))
        cache.state, cache.length = states[-1], cache.length + embedded.shape[1]
        queries = torch.stack(states[:-1], 1).unflatten(0, (len(memory), -1)).flatten(1, 2)
        weights = self.attention.weights(queries, memory, mask=mask, projected_key=cache.key)
        return torch.stack(states[1:], 1), AttentionOutput(torch.stack(contexts, 1), weights, {}, memory[:, None])

    def _embed(self, ids: Tensor, embedding: nn.Embedding) -> Tensor:
        """(batch, tokens) → (batch, tokens, d_model)."""
        return self.dropout(to_autocast_dtype(embedding(ids)))


def _parameters_as(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The parameters of a recurrent module in this dtype: autocast does not cast them on a CPU."""
    return {name: parameter.to(dtype) for name, parameter in module.named_parameters()}


class RecurrentCache:
    """State of the decoder between steps: a `regard.nn.cache.Cache`, with one row per beam."""

    def __init__(self) -> None:
        self.length = 0
        """Number of tokens in each row."""
        self.state: Tensor | None = None  # (rows, hidden_size)
        self.key: Tensor | None = None  # (sentences, 1, source, d_attention), the projected memory

    def batch_repeat_interleave(self, beams: int) -> None:
        """Continue the one row of each sentence with several beams."""
        if self.state is not None:
            self.state = self.state.repeat_interleave(beams, 0)

    def reorder_cache(self, rows: Tensor) -> None:
        """Continue row ``rows[i]`` as row i; both are beams of the same sentence."""
        if self.state is not None:
            self.state = self.state.index_select(0, rows)

    def batch_select_indices(self, sentences: Tensor, rows: Tensor) -> None:
        """Continue with some sentences only, and row ``rows[i]``, counted before the others left, as row i."""
        if self.key is not None:
            self.key = self.key.index_select(0, sentences)
        self.reorder_cache(rows)
