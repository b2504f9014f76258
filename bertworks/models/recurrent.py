"""Recurrent networks over packed sequences.

- `BiLSTM`: vectors that depend on all tokens before and behind; `LSTMBlock`: a layer of an encoder
- `LSTMDecoder`: writes a text while it reads another one; `DecoderState`: what it knows of it
- `DirectedBlock`: a layer of two LSTMs, one of each direction, with projections and clips
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertworks.models.attention import Source
from bertworks.models.layers import Linear, dropout, initialize
from bertworks.models.layout import Layout
from bertworks.models.settings import DecoderConfig, TransformerConfig


class BiLSTM(nn.Module):
    """A bidirectional LSTM, by default of two layers, initialized as in torch, without dropout.

    Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005. It computes in the precision of
    its weights: torch has no LSTM in bf16 for processors without instructions for it.

    units: of each direction, in each layer.
    """

    def __init__(self, input_size: int, units: int, num_layers: int = 2):
        super().__init__()
        self.lstm = nn.LSTM(input_size, units, num_layers, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, input_size] -> [T, 2 units]: forward, then backward."""
        lengths = layout.cu_seqlens.diff().cpu()
        padded = layout.pad(x).to(next(self.lstm.parameters()).dtype)
        rectangle = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        # In evaluation mode cuDNN has no gradients of an LSTM, which explanations need.
        fast = torch.backends.cudnn.flags(enabled=self.training or not torch.is_grad_enabled())
        with torch.autocast(x.device.type, enabled=False), fast:
            outputs, _ = self.lstm(rectangle)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=layout.max_seqlen)
        return layout.unpad(states)


class LSTMBlock(nn.Module):
    """A layer of an encoder: a bidirectional LSTM with half of the width in each direction."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.dropout = c.hidden_dropout
        self.both = BiLSTM(c.hidden_size, c.hidden_size // 2, num_layers=1)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the states that this block reads."""
        return next(self.both.parameters()).dtype

    def forward(
        self, x: Tensor, layout: Layout, rows: Tensor | None = None, *unused: object
    ) -> Tensor:
        """Return the states after this block: [T, hidden] -> [T, hidden].

        rows: see `Block.forward`. The inputs behind it, which other blocks have, are None.
        """
        states = dropout(self.both(x, layout), self.dropout if self.training else 0.0)
        return states if rows is None else states.index_select(0, rows)


class DirectedLSTM(nn.Module):
    """An LSTM that reads from left to right, with a projection of its outputs and with clips.

    Sak et al. 2014, without peepholes. The cells c and the outputs h that the next step reads are
    limited: c = clip(sigmoid(f) c + sigmoid(i) tanh(g)), h = clip(W (sigmoid(o) tanh(c))). A new
    LSTM forgets little, as 1 is added to the gate f of each step (Jozefowicz et al. 2015, section
    2.2). Each sequence starts from zeros.

    torch has no LSTM with clips, and computes one with a projection step by step: for both a loop
    over the places of a batch is here, which is about as fast (docs/concepts/family.md).
    """

    def __init__(self, c: TransformerConfig):
        super().__init__()
        width = c.hidden_size // 2
        cells = c.ffn_size
        # rows: input gate, forget gate, candidate, output gate, as in torch
        self.weight_ih = nn.Parameter(torch.empty(4 * cells, width))
        self.weight_hh = nn.Parameter(torch.empty(4 * cells, width))
        self.bias = nn.Parameter(torch.empty(4 * cells))
        self.weight_hr = nn.Parameter(torch.empty(width, cells)) if cells != width else None
        self.cell_clip = c.cell_clip
        self.projection_clip = c.projection_clip
        for weight in (self.weight_ih, self.weight_hh, self.weight_hr):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of every place: [B, L, width] -> [B, L, width]."""
        shift = self.bias.new_tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(len(self.bias) // 4)
        bias = self.bias + shift
        hidden = x.new_zeros(len(x), x.shape[2])
        cell = x.new_zeros(len(x), len(bias) // 4)
        if self.weight_hr is None and not self.cell_clip and not self.projection_clip:
            weights = [self.weight_ih, self.weight_hh, bias, torch.zeros_like(bias)]
            start = hidden[None], cell[None]
            result: Tensor
            result, _, _ = torch.lstm(x, start, weights, True, 1, 0.0, self.training, False, True)
            return result
        largest_cell = self.cell_clip or math.inf
        largest_output = self.projection_clip or math.inf
        outputs = []
        for of_input in F.linear(x, self.weight_ih, bias).unbind(1):
            gates = torch.addmm(of_input, hidden, self.weight_hh.t())
            i, f, g, o = gates.chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            cell = cell.clamp(-largest_cell, largest_cell)
            hidden = o.sigmoid() * cell.tanh()
            if self.weight_hr is not None:
                hidden = F.linear(hidden, self.weight_hr)
            hidden = hidden.clamp(-largest_output, largest_output)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class DirectedBlock(nn.Module):
    """A layer of two LSTMs that never meet (Peters et al. 2018, section 3.1).

    One reads the first half of the states from left to right, the other one the second half from
    right to left. All layers but the first one add what they read to what they return; the next
    step of their LSTMs reads the output without it.

    number: of the layer, from 0.
    """

    def __init__(self, c: TransformerConfig, number: int):
        super().__init__()
        self.dropout = c.hidden_dropout
        self.has_residual = number > 0
        self.left_to_right = DirectedLSTM(c)
        self.right_to_left = DirectedLSTM(c)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the states that this block reads."""
        return self.left_to_right.bias.dtype

    def forward(
        self, x: Tensor, layout: Layout, rows: Tensor | None = None, *unused: object
    ) -> Tensor:
        """Return the states after this block: [T, hidden] -> [T, hidden].

        rows: see `Block.forward`. The inputs behind it, which other blocks have, are None.
        """
        x = dropout(x.to(self.dtype), self.dropout if self.training else 0.0)
        first, second = x.chunk(2, 1)
        order = layout.backwards
        with torch.autocast(x.device.type, enabled=False):
            # Padding comes after every token: what is computed there is not read.
            forward = layout.unpad(self.left_to_right(layout.pad(first)))
            backward = layout.unpad(self.right_to_left(layout.pad(second[order])))
        states = torch.cat([forward, backward[order]], 1)
        if self.has_residual:
            states = states + x
        return states if rows is None else states.index_select(0, rows)


class DecoderState:
    """What an LSTM has kept of B texts that it writes, and of the S sources that it reads.

    Equally many texts in a row have the same source.

    Args:
        source: the last states of the encoder.
        keys: [tokens of the source, hidden]: what the decoder compares its states with.
        hidden, cell: [layers, B, hidden]: the state of the recurrence.

    Attributes:
        fed: [B, hidden]: with input feeding what the token before was predicted from.
        present: bool [S, L]: which places hold a token of a source.
        maps: the attention of the tokens that were read, [S, B / S * n, L] each; None: it is not
            kept.
    """

    maps: list[Tensor] | None = None

    def __init__(self, source: Source, keys: Tensor, hidden: Tensor, cell: Tensor):
        self.hidden = hidden
        self.cell = cell
        self.fed = torch.zeros_like(hidden[-1])
        self.present = source.layout.present
        self.values = source.layout.pad(source.states)
        self.keys = source.layout.pad(keys)
        self._layout = Layout.of([1] * len(self.fed), self.fed.device)

    def next_layout(self) -> Layout:
        """Return the layout of the next token of each text."""
        return self._layout

    def keep(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Drop all texts but `rows`, and all sources but `sources`: see `KeyValueCache.keep`."""
        self.hidden = self.hidden[:, rows]
        self.cell = self.cell[:, rows]
        self.fed = self.fed[rows]
        if sources is not None:
            self.present, self.values, self.keys = (
                x[sources] for x in (self.present, self.values, self.keys)
            )
            self._layout = Layout.of([1] * len(rows), rows.device)


class LSTMDecoder(nn.Module):
    """An LSTM that writes a text while it reads another one (Sutskever et al. 2014).

    Its first state is computed from the last ones of the two directions of the encoder. With
    multiplicative attention (Luong et al. 2015, sections 3 and 3.1) a token is predicted from
    tanh(W [s; c]): s is the state of the LSTM, c the mean of the source's states by the softmax of
    s W h. With additive attention (Bahdanau et al. 2015, section 3.1 and appendix A) the weights
    are those of v tanh(W s + U h), s is the state before the token is read, and the LSTM reads c
    with the token; the published output layer, a maxout layer, is not there.

    Its embeddings are those of the encoder.
    """

    def __init__(self, c: TransformerConfig, decoder: DecoderConfig):
        super().__init__()
        hidden = c.hidden_size
        self.attention = decoder.attention
        self.feeds_inputs = decoder.input_feeding
        # whether a token is read with what is known only after the one before
        self.is_stepwise = self.feeds_inputs or self.attention == "additive"
        self.num_layers = decoder.num_hidden_layers
        self.dropout = c.hidden_dropout
        self.start_state = Linear(hidden, 2 * self.num_layers * hidden)
        self.lstm = nn.LSTM(
            hidden * (1 + self.is_stepwise),
            hidden,
            self.num_layers,
            batch_first=True,
            dropout=c.hidden_dropout if self.num_layers > 1 else 0.0,
        )
        if self.attention != "none":
            self.key = Linear(hidden, hidden, bias=False)
            self.combine = Linear(2 * hidden, hidden)
        if self.attention == "additive":
            self.query = Linear(hidden, hidden)
            self.score = Linear(hidden, 1, bias=False)
        initialize(self, c)

    def start(self, source: Source, texts: int = 1, room: int = 0) -> DecoderState:
        """Return the state before the first token of some texts for each source.

        room: of a cache, which this decoder does not need.
        """
        states, layout = source
        forward, backward = states.chunk(2, 1)
        ends = torch.cat([forward[layout.last], backward[layout.first]], 1)
        first = torch.tanh(self.start_state(ends)).unflatten(1, (2, self.num_layers, -1))
        hidden, cell = first.repeat_interleave(texts, 0).permute(1, 2, 0, 3).contiguous()
        keys = states if self.attention == "none" else self.key(states)
        return DecoderState(source, keys, hidden, cell)

    def forward(
        self, embeddings: Tensor, layout: Layout, source: Source, state: DecoderState | None = None
    ) -> list[Tensor]:
        """Return the embeddings, and what the next tokens are predicted from: [T, hidden] each.

        state: after the tokens of the passes before, or of `start`; it is changed. None: the tokens
            are the first ones.
        """
        if state is None:
            state = self.start(source)
        x = layout.pad(embeddings.to(self.start_state.weight.dtype))
        parts = x.split(1, 1) if self.is_stepwise else [x]
        outputs = torch.cat([self._read(part, state) for part in parts], 1)
        return [embeddings, layout.unpad(outputs)]

    def probabilities(self, states: Tensor, state: DecoderState) -> Tensor:
        """Return the attention that states pay to the tokens of their source.

        [B, n, hidden] -> [S, B / S * n, L]. Rows sum to 1; places without a token have 0.
        """
        queries = states.reshape(len(state.keys), -1, states.shape[2])
        if self.attention == "multiplicative":
            scores = queries @ state.keys.transpose(1, 2)
        else:
            sums = self.query(queries)[:, :, None] + state.keys[:, None]
            scores = self.score(torch.tanh(sums)).squeeze(-1)
        return scores.masked_fill(~state.present[:, None], -torch.inf).softmax(-1)

    def cross_attention_maps(
        self, states: Sequence[Tensor], layout: Layout, source: Source
    ) -> list[Tensor]:
        """Return the attention of tokens (rows) to those of the source, of the only head there is.

        [B, 1, max_seqlen, max_seqlen of the source]; [] without attention. states: as `forward`
        returns them.
        """
        state = self.start(source)
        state.maps = []
        self(states[0], layout, source, state)
        if not state.maps:
            return []
        return [torch.cat(state.maps, 1)[:, None] * layout.present[:, None, :, None]]

    def _context(self, states: Tensor, state: DecoderState) -> Tensor:
        """Return the means of the source's states by the attention: [B, n, hidden] for as many."""
        probabilities = self.probabilities(states, state)
        if state.maps is not None:
            state.maps.append(probabilities)
        return (probabilities @ state.values).view_as(states)

    def _read(self, x: Tensor, state: DecoderState) -> Tensor:
        """Read the next tokens, [B, n, hidden], and return what those behind are predicted from."""
        context = None
        if self.attention == "additive":
            context = self._context(state.hidden[-1][:, None], state)
            x = torch.cat([x, context], -1)
        elif self.feeds_inputs:
            x = torch.cat([x, state.fed[:, None]], -1)
        outputs: Tensor
        outputs, (state.hidden, state.cell) = self.lstm(x, (state.hidden, state.cell))
        if self.attention == "multiplicative":
            context = self._context(outputs, state)
        if context is not None:
            outputs = torch.tanh(self.combine(torch.cat([outputs, context], -1)))
        outputs = dropout(outputs, self.dropout if self.training else 0.0)
        state.fed = outputs[:, -1]
        return outputs
