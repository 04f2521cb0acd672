"""Unusual uses of a watch: each works or is refused, and the model stays as it was."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments

import regard
from regard.analysis import edge_table, head_scores, save_table
from regard.analysis.head_scores import HeadScoreAccumulator
from regard.errors import InvalidArgument, InvalidType
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from regard.watching.registry import active_listeners


@pytest.fixture
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99)
    return BertModel._from_config(config, attn_implementation="sdpa").eval()


IDS = torch.arange(20).view(2, 10)


@pytest.mark.parametrize("keep_qk", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_checkpointed_layers_know_their_mask_in_the_backward_pass(bert, keep_qk, padded):
    mask = torch.ones_like(IDS)
    if padded:
        mask[1, 6:] = 0
    gradients = []
    for checkpointed in (False, True):
        bert.train()
        bert.zero_grad()
        for module in bert.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if checkpointed:
            bert.activation_checkpointing_enable()
        with regard.watch(bert, ["received", "entropy"], keep_qk=keep_qk) as result:
            output = bert(IDS, attention_mask=mask)[0]
            loss = output.pow(2).mean() + sum(layer.measured["entropy"].mean() for layer in result.layers)
            loss.backward()
        gradients.append(bert.embeddings.word_embeddings.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)


def test_checkpointed_layers_without_measures(bert):
    bert.train().activation_checkpointing_enable()
    with regard.watch(bert) as result:
        bert(IDS)[0].square().mean().backward()
    assert result.layers[0].weights[0, 0, 0].sum().item() == pytest.approx(1)
    assert bert.embeddings.word_embeddings.weight.grad.any()


def test_only_heads_of_attention_can_be_ablated(bert):
    kwargs = {"input_ids": IDS}
    message = (
        "ablate: encoder.layer.1.attention did not compute attention in any forward pass; within it, "
        "encoder.layer.1.attention.self did"
    )
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}$"):
        regard.watching.intervention_effect(bert, kwargs, ablate={"encoder.layer.1.attention": [0, 1, 2, 3]})
    effect = regard.watching.intervention_effect(bert, kwargs, ablate={"encoder.layer.1.attention.self": [0]})
    assert effect.divergence.max() > 0


class Failing(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        raise RuntimeError("a step failed")


def test_a_failed_training_can_be_restarted(bert, tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, labels=None):
            return {"loss": self.bert(input_ids)[0].mean()}

    def trainer(model, *callbacks):
        arguments = TrainingArguments(
            tmp_path, max_steps=1, report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True, logging_steps=1
        )
        rows = [{"input_ids": row, "labels": 0} for row in IDS]
        return Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks))

    model = Model()
    callback = regard.watching.trainer_callback(every_n_steps=1)
    with pytest.raises(RuntimeError, match="a step failed"):
        trainer(model, Failing(), callback).train()
    with regard.watch(bert) as result:  # this watch ends that of the callback
        bert(IDS)
    assert len(result.layers) == 2
    assert not active_listeners()
    again = trainer(model, regard.watching.trainer_callback(every_n_steps=1))
    again.train()
    assert "attention/bert.encoder.layer.0.attention.self/entropy" in again.state.log_history[0]
    assert not active_listeners()


class Several(nn.Module):
    """Weights of several layers in one module."""

    def forward(self, x, memory):
        for _ in range(2):
            x = functional.scaled_dot_product_attention(x, x, x)
        return functional.scaled_dot_product_attention(x, memory, memory)


def test_several_calls_in_one_module_are_several_layers():
    x, memory = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    with regard.watch(Several(), ["entropy"]) as result:
        result.model(x, memory)
    assert [tuple(layer.weights.shape) for layer in result.layers] == [(1, 2, 5, 5), (1, 2, 5, 5), (1, 2, 5, 7)]
    assert [layer.name for layer in result.layers] == ["", "#2", "#3"]
    torch.testing.assert_close(result.layers[0].weights.dense(), (x @ x.mT / 8**0.5).softmax(-1), rtol=1e-5, atol=1e-6)


class Causal(nn.Module):
    def forward(self, x):
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_a_causal_layer_without_a_config_is_a_decoder_layer():
    with regard.watch(Causal()) as result:
        result.model(torch.randn(1, 2, 6, 8))
    assert [layer.kind for layer in result.layers] == ["decoder"]


class OwnAttention(nn.Module):
    def forward(self, x):
        return ((x @ x.mT).softmax(-1)[..., None] * x[..., None, :, :]).sum(-2)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.recorded, self.my_attention = Causal(), OwnAttention()

    def forward(self, x):
        return self.my_attention(self.recorded(x))


def test_custom_attention_next_to_recorded_attention_is_refused():
    message = r"my_attention \(OwnAttention\) computes attention in its own code, .*adapter.*, or .* passing layers="
    with pytest.raises(InvalidArgument, match=message), regard.watch(Mixed()) as result:
        result.model(torch.randn(1, 2, 6, 8))
    with regard.watch(Mixed(), layers=["recorded"]) as result:
        result.model(torch.randn(1, 2, 6, 8))
    assert len(result.layers) == 1


def test_a_knockout_reaches_dense_attention_too(bert):
    pairs = {"encoder.layer.0.attention.self": [(2, 3), (2, 4)]}
    outputs = []
    for implementation in ("sdpa", "eager"):
        bert.set_attn_implementation(implementation)
        with torch.no_grad(), regard.watch(bert, knockout=pairs) as result:
            output = bert(IDS, output_attentions=implementation == "eager")
        outputs.append(output[0])
    assert output.attentions[0][:, :, 2, 3:5].max() == 0
    torch.testing.assert_close(result.layers[0].weights.dense(), output.attentions[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def test_dense_attention_cannot_be_left_without_a_key(bert):
    bert.set_attn_implementation("eager")
    pairs = {"encoder.layer.0.attention.self": [(2, key) for key in range(10)]}
    message = "knockout: query 2 of encoder.layer.0.attention.self has no key left"
    with pytest.raises(InvalidArgument, match=message), regard.watch(bert, knockout=pairs):
        bert(IDS)


def test_a_watched_model_is_not_copied(bert):
    with regard.watch(bert) as result:
        bert(IDS)
        with pytest.raises(InvalidArgument, match="BertModel is being watched; copy or save it after the watch"):
            copy.deepcopy(bert)
    assert copy.deepcopy(bert)(IDS)[0].shape == (2, 10, 32)
    assert len(result.layers) == 2


def test_the_error_for_a_measure_that_was_not_computed(bert):
    with regard.watch(bert, ["entropy"]) as result:
        bert(IDS)
    with pytest.raises(InvalidArgument, match=r"measured: unknown name 'received'; measured are entropy"):
        result.layers[0].measured["received"]
    assert "received" not in result.layers[0].measured
    with pytest.raises(InvalidArgument, match="layers: expected a number below 2, the layers of BertModel, got 5"):
        assert result.layers[5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda seen: seen.recording.select("0"), "sequence: expected an int, or None, got '0'"),
        (lambda seen: seen.recording.select(True), "sequence: expected an int, or None, got True"),
        (
            lambda seen: seen.recording.select(0, tokens=3),
            "tokens: expected a list with a name for each token",
        ),
        (
            lambda seen: seen.recording.select(0, tokens="abcdefghij"),
            "tokens: expected a list with a name for each",
        ),
        (lambda seen: seen.select_beams("x"), "beam_indices: expected"),
        (lambda seen: edge_table(seen), "recording: expected a Recording, got WatchResult; pass its .recording"),
        (lambda seen: seen.recording.select(0, title=3), "title: expected a str, got 3"),
        (lambda seen: regard.load(3), "path: expected a path, got 3"),
        (
            lambda seen: head_scores(seen.recording, separator_tokens="[SEP]"),
            "separator_tokens: expected a list of tokens",
        ),
        (lambda seen: head_scores(seen.recording, tokenizer=3), "tokenizer: expected one of transformers, got int"),
        (lambda seen: regard.watching.TransformersModel(3), "model: expected a model of transformers, got int"),
        (lambda seen: save_table({"a": 3}, "a.csv"), "columns: expected a list as 'a', got 3"),
        (lambda seen: regard.watch(seen.model, keep_values="no"), "keep_values: expected True or False, got 'no'"),
    ],
)
def test_other_types_are_named(bert, call, message):
    with regard.watch(bert, ["entropy"]) as result:
        bert(IDS)
    with pytest.raises(InvalidType, match=re.escape(message)):
        call(result)


def test_tokens_may_be_ids_in_a_tensor(bert):
    with regard.watch(bert) as result:
        bert(IDS)
    assert result.recording.select(0, tokens=IDS[0]).layers[0].query_tokens[:3] == ("0", "1", "2")
    with pytest.raises(InvalidArgument, match="target_tokens: the recording has no decoder"):
        result.recording.select(0, target_tokens=IDS[0])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"ablate": {1: [0]}}, "ablate: unknown module 1"),
        (
            {"ablate": {"encoder.layer.0.attention.self": 0}},
            "a list with at least one entry for encoder.layer.0",
        ),
        ({"knockout": {"encoder.layer.0.attention.self": (0, 5)}}, "got 0; write [(query, key)]"),
    ],
)
def test_invalid_interventions_are_shown(bert, kwargs, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        regard.watch(bert, **kwargs)


def layer_of(batch: int = 1, **changes) -> Layer:
    weights = regard.weights(torch.randn(batch, 2, 3, 4), torch.randn(batch, 2, 3, 4))
    return Layer(
        **{"name": "a", "kind": "encoder", "weights": weights, "query_tokens": tuple("xyz"), "key_tokens": tuple("xyz")}
        | changes
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 2}, "layer 'a': weights: expected one sequence where tokens are named, got a batch of 2"),
        ({"key_tokens": "x"}, "layer 'a': key_tokens: expected a tuple of str, or None, got 'x'"),
        ({"measured": 3}, "layer 'a': measured: expected measures by name, got 3"),
        ({"head_indices": (1, 1)}, "2 different numbers from 0, one for each head, got (1, 1)"),
        ({"value": "x"}, "layer 'a': value: expected a tensor, or None, got 'x'"),
        ({"name": ["a"]}, "layer ['a']: name: expected a str, got ['a']"),
        ({"head_indices": 2}, "layer 'a': head_indices: expected a tuple of int, or None, got 2"),
    ],
)
def test_invalid_layers_are_refused(changes, message):
    with pytest.raises((InvalidArgument, InvalidType), match=re.escape(message)):
        layer_of(**changes)


def test_invalid_recordings_are_refused():
    with pytest.raises(InvalidArgument, match="every layer to have a name of its own, got 'a' 2 times"):
        Recording("t", "m", [layer_of(), layer_of()])
    with pytest.raises(InvalidType, match="layers: expected a list of Layer, got 3"):
        Recording("t", "m", 3)  # pyright: ignore[reportArgumentType]


def test_scores_take_marks_as_a_list():
    with pytest.raises(InvalidType, match="separator_tokens: expected a list of tokens"):
        HeadScoreAccumulator(3)
