"""What a watch keeps, and where: values, files, a limit; and compiled models."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

import pytest
import torch
from torch import nn

import regard
from helpers.model_zoo.families import FAMILIES, built, padding
from regard.analysis import head_scores
from regard.errors import InvalidArgument, InvalidFile, InvalidType, RegardError

SDPA = nn.functional.scaled_dot_product_attention


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "t5"])
def test_weights_times_values_give_the_output(name):
    model, inputs = built(name), FAMILIES[name].inputs()
    outputs = {}
    hooks = [
        module.register_forward_hook(lambda module, args, output, name=each: outputs.update({name: output[0]}))
        for each, module in model.named_modules()
    ]
    with regard.watch(model, keep_values=True) as result, torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    for layer in result.layers:
        value = layer.value
        rows = layer.weights.dense() @ value.repeat_interleave(layer.weights.shape[1] // value.shape[1], 1)
        rows = rows.transpose(1, 2).flatten(2)
        module = model.get_submodule(layer.name)
        last = next((part for part in ("c_proj", "o_proj", "o") if hasattr(module, part)), None)
        rows = getattr(module, last)(rows) if last else rows
        assert torch.allclose(rows, outputs[layer.name], atol=1e-5), layer.name


def test_values_of_a_generation_are_joined():
    model = built("gpt2")
    ids = torch.randint(3, 90, (2, 5))
    with regard.watch(model, keep_values=True) as steps, torch.no_grad():
        words = model.generate(ids, max_new_tokens=6, do_sample=False)
    with regard.watch(model, keep_values=True) as once, torch.no_grad():
        model(words[:, :-1])
    for one, other in zip(steps.layers, once.layers, strict=True):
        assert torch.allclose(one.value, other.value, atol=1e-5)


def test_values_of_torchs_own_module():
    layer = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True, kdim=8, vdim=12)
    query, key, value = torch.randn(2, 5, 32), torch.randn(2, 7, 8), torch.randn(2, 7, 12)
    with regard.watch(layer, keep_values=True) as result:
        output, _ = layer(query, key, value)
    rows = (result.layers[0].weights.dense() @ result.layers[0].value).transpose(1, 2).flatten(2)
    assert torch.allclose(layer.out_proj(rows), output, atol=1e-5)


@pytest.mark.parametrize("positions", [None, regard.nn.AlibiPositions(4), regard.nn.RelativePositions(8)])
def test_values_of_layers_of_this_library(positions):
    torch.manual_seed(0)
    layer = regard.nn.MultiHeadAttention(32, 4, num_kv_heads=2, positions=positions).eval()
    x = torch.randn(2, 7, 32)
    with regard.watch(layer, keep_values=True) as result, torch.no_grad():
        attended = layer(x)
    if isinstance(positions, regard.nn.RelativePositions):  # whose output is more than their weighted sum
        assert result.layers[0].value is None
        return
    value = result.layers[0].value.repeat_interleave(2, 1)
    rows = (result.layers[0].weights.dense() @ value).transpose(1, 2).flatten(2)
    assert torch.allclose(layer.out_proj(rows), attended.output, atol=1e-5)


def test_values_go_into_a_file(tmp_path):
    model = built("gpt2")
    with regard.watch(model, keep_values=True) as result, torch.no_grad():
        model(torch.randint(3, 90, (1, 5)))
    result.recording.select().save(tmp_path / "a.regard")
    again = regard.load(tmp_path / "a.regard")
    assert all(torch.equal(one.value, other.value) for one, other in zip(again.layers, result.layers, strict=True))


def test_values_are_kept_only_on_request():
    model = built("bert")
    with regard.watch(model) as result, torch.no_grad():
        model(**FAMILIES["bert"].inputs())
    assert result.layers[0].value is None


@pytest.mark.parametrize("where", ["cpu", "folder"])
def test_offloaded_results_are_the_same(where, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.watching.retention.MIN_FILE_BYTES", 1)
    model, ids = built("mistral"), torch.randint(3, 90, (2, 9))
    with regard.watch(model) as here, torch.no_grad():
        model.generate(ids, max_new_tokens=4, do_sample=False)
    with regard.watch(model, offload=tmp_path if where == "folder" else "cpu") as there, torch.no_grad():
        model.generate(ids, max_new_tokens=4, do_sample=False)
    for one, other in zip(here.layers, there.layers, strict=True):
        assert torch.equal(one.weights.dense(), other.weights.dense())
    assert here.nbytes == there.nbytes
    assert list(tmp_path.iterdir()) == []  # the files have no names


def test_a_watch_stops_before_its_memory_limit():
    model, inputs = built("bert"), FAMILIES["bert"].inputs()
    with regard.watch(model) as result, torch.no_grad():
        model(**inputs)
    with regard.watch(model, max_bytes=result.nbytes) as all_of_it, torch.no_grad():
        model(**inputs)
    assert all_of_it.nbytes == result.nbytes
    stopped = regard.watch(model, max_bytes=result.nbytes - 1)
    with pytest.raises(InvalidArgument, match=r"max_bytes: with encoder\.layer\.1"), stopped, torch.no_grad():
        model(**inputs)
    assert stopped.result.nbytes == result.nbytes // 2
    with regard.watch(model) as again, torch.no_grad():  # nothing is left behind
        model(**inputs)
    assert len(again.layers) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"offload": "nowhere"}, "offload: expected 'cpu' or an existing folder, got 'nowhere'"),
        ({"max_bytes": 0}, "max_bytes: expected an int of at least 1, or None, got 0"),
        (
            {"keep_values": True, "keep_qk": False, "measure": "entropy"},
            "keep_values: values are kept with queries and keys",
        ),
    ],
)
def test_invalid_options_are_refused(options, error):
    with pytest.raises(InvalidArgument, match=error):
        regard.watch(built("bert"), **options)


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_compiled_model_is_watched(when):
    """While it is watched it runs as it was written: afterwards it is compiled again."""
    model, inputs = built("gpt2"), FAMILIES["gpt2"].inputs()
    with torch.no_grad():
        plain = model(**inputs).logits
        compiled = torch.compile(model, backend="aot_eager")
        if when == "before":
            compiled(**inputs)
        with regard.watch(compiled if when == "before" else model, "entropy") as result:
            output = compiled(**inputs).logits
        assert torch.equal(output, plain)
        assert [layer.name for layer in result.layers] == ["transformer.h.0.attn", "transformer.h.1.attn"]
        assert torch.allclose(compiled(**inputs).logits, plain, atol=1e-5)


def test_two_watches_on_one_model_are_refused_and_on_two_are_not():
    one, other = built("bert"), built("gpt2")
    with regard.watch(one) as outer, torch.no_grad():
        with pytest.raises(InvalidArgument, match="BertModel is being watched already"), regard.watch(one):
            pass
        with (
            pytest.raises(InvalidArgument, match="BertEncoder is being watched already, as encoder of BertModel"),
            regard.watch(one.encoder),
        ):
            pass
        with regard.watch(other) as inner:
            other(**FAMILIES["gpt2"].inputs())
            one(**FAMILIES["bert"].inputs())
    assert (len(outer.layers), len(inner.layers)) == (2, 2)


def test_chosen_heads_keep_their_numbers(tmp_path):
    model, inputs = built("bert"), FAMILIES["bert"].inputs()
    with regard.watch(model) as full, torch.no_grad():
        model(**inputs)
    with regard.watch(model, heads=torch.tensor([3, 1])) as some, torch.no_grad():
        model(**inputs)
    ids = inputs["input_ids"]
    every, chosen = (head_scores(each.recording, tokens=ids) for each in (full, some))
    assert chosen["head"] == [3, 1, 3, 1]
    assert chosen["entropy"] == pytest.approx([every["entropy"][position] for position in (3, 1, 7, 5)])
    some.recording.select(0).save(tmp_path / "some.regard")
    recording = regard.load(tmp_path / "some.regard")
    assert set(regard.analysis.edge_table(recording, 1)["head"]) == {1, 3}
    figure = regard.analysis.plot_weights(recording.layers[0], [1])
    (panel,) = [axis for axis in figure.axes if axis.images]
    assert panel.get_title().endswith("head 1")
    assert torch.allclose(torch.tensor(panel.images[0].get_array()), full.layers[0].weights.dense()[0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"heads": 1}, "heads: expected a list of int, got 1"),
        ({"heads": "1"}, "heads: expected a list of int, got '1'"),
        ({"heads": [True]}, "heads: expected a list of int, got True"),
        ({"heads": [1.0]}, "heads: expected a list of int, got 1.0"),
        ({"heads": []}, "heads: expected at least one"),
        ({"heads": [1, 1]}, "heads: expected different indices"),
        ({"layers": [0]}, "layers: expected a list of str, got 0"),
        ({"layers": "encoder.layer.9"}, "unknown module 'encoder.layer.9', did you mean"),
        ({"ablate": [0]}, "ablate: expected a dict by module name, got list"),
        ({"ablate": {"encoder": 0}}, "ablate: expected a list with at least one entry for encoder, got 0"),
        ({"knockout": {"encoder": (0, 1)}}, "knockout: expected pairs of positions from 0 for encoder, got 0"),
        ({"offload": 1}, "offload: expected 'cpu' or an existing folder"),
    ],
)
def test_options_of_wrong_types_are_named(options, error):
    with pytest.raises(RegardError, match=error):
        regard.watch(built("bert"), **options)


def test_a_knockout_without_effect_is_reported():
    model, name = built("bert"), "encoder.layer.0.attention.self"
    with (
        pytest.raises(InvalidArgument, match=r"attention\.self may query 0 attend to key 1000"),
        regard.watch(model, knockout={name: [(0, 1), (0, 1000)]}),
        torch.no_grad(),
    ):
        model(**FAMILIES["bert"].inputs())


def test_layers_by_name_and_index_and_the_repr():
    model, inputs = built("bert"), FAMILIES["bert"].inputs()
    with regard.watch(model) as result, torch.no_grad():
        model(**inputs)
    name = "encoder.layer.1.attention.self"
    assert result.layers[-1].name == result.layers[name].name == result.layers["encoder.layer.1"].name == name
    assert name in result.layers
    assert "encoder" not in result.layers
    with pytest.raises(InvalidArgument, match=r"'encoder' has several layers: encoder\.layer\.0"):
        assert result.layers["encoder"]
    assert repr(result).startswith("WatchResult(BertModel: 1 recording, LayerList(2 layers: 2 encoder), ")
    assert repr(result.layers[0]) == "Layer('encoder.layer.0.attention.self', encoder)"
    by_id, by_word = (
        head_scores(result.recording, tokens=each) for each in (inputs["input_ids"], [["[SEP]"] * 11] * 2)
    )
    assert by_id["separator"] != by_word["separator"]
    for wrong in (3, "text"):
        with pytest.raises(InvalidType, match="tokens: expected"):
            head_scores(result.recording, tokens=wrong)
    for wrong in (torch.tensor([[5]]), torch.empty(0, 0, dtype=torch.int64), torch.tensor([[-2]])):
        with pytest.raises(InvalidArgument, match=r"beam_indices: expected"):
            result.select_beams(wrong)


def test_measures_count_towards_nbytes():
    model, inputs = built("bert"), FAMILIES["bert"].inputs()
    with regard.watch(model, measure=["entropy", regard.TopK(2)], keep_qk=False) as result, torch.no_grad():
        model(**inputs)
    rows = [layer.measured["entropy"].numel() for layer in result.layers]
    assert result.nbytes == sum(rows) * (4 + 2 * (4 + 8))  # an entropy, two weights and two numbers of keys each
    assert repr(result.recordings[0]) == f"Recording(model_name='BertModel', {len(rows)} layers: {len(rows)} encoder)"


def test_ctrl_c_leaves_nothing_behind():
    class Interrupted(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            self.attention(x, x, x)
            raise KeyboardInterrupt

    model, x = Interrupted(), torch.randn(1, 2, 5, 8)
    modes = len(torch.overrides._get_current_function_mode_stack())
    watch = regard.watch(model)
    with pytest.raises(KeyboardInterrupt), watch:
        model(x[0])
    assert len(torch.overrides._get_current_function_mode_stack()) == modes
    recorded = [len(each.layers) for each in watch.result.recordings]
    nn.functional.scaled_dot_product_attention(x, x, x)
    assert [len(each.layers) for each in watch.result.recordings] == recorded
    with pytest.raises(KeyboardInterrupt), regard.watch(model):
        model(x[0])


def test_watches_may_end_in_any_order():
    def stance():
        return torch._dynamo.eval_frame._stance.stance

    models = [nn.MultiheadAttention(8, 2) for _ in range(2)]
    x, before = torch.randn(5, 8), stance()
    first, second = (regard.watch(model) for model in models)
    first.__enter__()
    second.__enter__()
    models[0](x, x, x)
    first.__exit__(None, None, None)
    assert stance() == "force_eager"
    models[1](x, x, x)
    second.__exit__(None, None, None)
    assert stance() == before


def test_modules_without_hooks_are_skipped():
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        scripted = torch.jit.script(nn.Linear(8, 8))
    model = nn.Sequential(scripted, nn.TransformerEncoderLayer(8, 2, batch_first=True))
    with regard.watch(model) as result:
        model(torch.randn(1, 5, 8))
    assert [layer.name for layer in result.layers] == ["1.self_attn"]


def test_a_watch_that_cannot_begin_leaves_nothing_behind(monkeypatch):
    class Full(OrderedDict):
        def __setitem__(self, number, hook):
            raise MemoryError

    model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    with monkeypatch.context() as patch:
        patch.setattr(model.self_attn, "_forward_hooks", Full())
        with pytest.raises(MemoryError), regard.watch(model):
            pass
    tables = [name for name in vars(model) if "forward" in name and name.endswith(("hooks", "with_kwargs", "called"))]
    assert len(tables) >= 5
    assert not any(vars(module)[table] for module in model.modules() for table in tables)
    with regard.watch(model) as result:
        model(torch.randn(1, 5, 8))
    assert len(result.layers) == 1


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve disk space in advance")
def test_a_full_disk_is_reported_and_not_written_to(tmp_path, monkeypatch):
    def full(handle, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr("regard.watching.retention.MIN_FILE_BYTES", 0)
    model = nn.MultiheadAttention(8, 2)
    x = torch.randn(5, 8)
    with pytest.raises(InvalidFile, match=r"offload: .*No space left on device"), regard.watch(model, offload=tmp_path):
        model(x, x, x)
    assert list(tmp_path.iterdir()) == []


def test_layers_skipped_in_one_pass_are_recorded_in_the_next():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))

        def forward(self, x, left_out):
            for number, layer in enumerate(self.layers):
                if number not in left_out:
                    x = layer(x, x, x)[0]
            return x

    torch.manual_seed(0)
    model, left_out = Dropped().eval(), [{0}, {1}, {0, 2}, set(), {1, 2}]
    inputs = [torch.randn(1, 5, 8) for _ in left_out]
    with regard.watch(model) as result, torch.no_grad():
        for x, dropped in zip(inputs, left_out, strict=True):
            model(x, dropped)
    for recording, x, dropped in zip(result.recordings, inputs, left_out, strict=True):
        with regard.watch(model) as alone, torch.no_grad():
            model(x, dropped)
        assert [layer.name for layer in recording.layers] == [layer.name for layer in alone.layers]
        for one, other in zip(recording.layers, alone.layers, strict=True):
            assert torch.equal(one.weights.dense(), other.weights.dense())


def test_a_limit_counts_measures_masks_and_biases():
    ids = torch.randint(3, 90, (2, 40))
    model = built("t5").encoder  # with a bias, (1, heads, 40, 40)
    with regard.watch(model) as result, torch.no_grad():
        model(ids)
    bias = 4 * 40 * 40 * 4
    assert result.nbytes >= bias + sum(layer.weights.request.query.nbytes * 2 for layer in result.layers)
    stopped = regard.watch(model, max_bytes=bias)
    with pytest.raises(InvalidArgument, match="more than"), stopped, torch.no_grad():
        model(ids)
    with regard.watch(model, "entropy", keep_qk=False) as result, torch.no_grad():
        model(ids)
    assert result.nbytes == sum(layer.measured["entropy"].nbytes for layer in result.layers)
    with regard.watch(model, "entropy", keep_qk=False, max_bytes=result.nbytes) as again, torch.no_grad():
        model(ids)
    assert again.nbytes == result.nbytes
    stopped = regard.watch(model, "entropy", keep_qk=False, max_bytes=result.nbytes - 1)
    with pytest.raises(InvalidArgument, match=r"more than .*, or measure less"), stopped, torch.no_grad():
        model(ids)


def test_growing_measures_count_once():
    model = built("gpt2")
    options = {"max_new_tokens": 12, "do_sample": False}
    with regard.watch(model, ["entropy", "received"], keep_qk=False) as result:
        model.generate(torch.randint(3, 90, (1, 5)), **options)
    with regard.watch(model, ["entropy", "received"], keep_qk=False, max_bytes=2 * result.nbytes):
        model.generate(torch.randint(3, 90, (1, 5)), **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"offload": "cpu"}, {"heads": [0, 1]}, {"keep_values": True}])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_keys_of_cross_attention_are_kept_once(options, num_beams):
    model, ids = built("bart"), torch.randint(3, 90, (1, 12))
    with regard.watch(model, layers=["model.decoder"], **options) as result:
        model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, num_beams=num_beams)
    calls = next(each for each in result._recordings[-1].values() if each.kind == "cross")._calls
    assert len(calls) == 8
    assert len({call.key.data_ptr() for call in calls}) == 1
    with regard.watch(model, max_bytes=2 * result.nbytes, layers=["model.decoder"], **options):
        model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, num_beams=num_beams)


@pytest.mark.parametrize("where", [None, "cpu", "folder"])
def test_a_static_cache_counts_with_the_keys_that_are_used(where, tmp_path):
    model = built("llama")
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    offload = tmp_path if where == "folder" else where
    with regard.watch(model, offload=offload) as result:
        model.generate(torch.randint(3, 90, (1, 5)), **options)
    for layer in result.layers:
        request = layer.weights.request
        assert request.key.shape[2] == 7


def test_a_sequence_of_a_batch_with_an_irregular_mask_is_recorded(tmp_path):
    model, ids = built("bert"), torch.randint(3, 90, (2, 400))
    mask = (torch.rand(2, 1, 400, 400, generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(400).bool()
    with regard.watch(model) as result, torch.no_grad():
        model(ids, attention_mask=mask)
    for number in (0, 1):
        recording = result.recording.select(number)
        recording.save(tmp_path / "a.regard")
        for one in (recording, regard.load(tmp_path / "a.regard")):
            for layer, full in zip(one.layers, result.layers, strict=True):
                torch.testing.assert_close(layer.weights[0, 1, 7], full.weights[number, 1, 7])


def test_weights_of_padded_batches_know_their_padding(tmp_path):
    model, ids = built("bert"), torch.randint(3, 90, (2, 11))
    with regard.watch(model, ["received"]) as result, torch.no_grad():
        model(ids, attention_mask=padding("right"))
    layer = result.layers[0]
    torch.testing.assert_close(layer.measured["received"], layer.weights.received())
    torch.testing.assert_close(layer.weights.received().sum(-1)[:, 0], torch.tensor([11.0, 7.0]))
    result.recording.select(1).save(tmp_path / "a.regard")
    loaded = regard.load(tmp_path / "a.regard").layers[0].weights
    assert loaded.valid_queries.tolist() == [[True] * 7 + [False] * 4]
    torch.testing.assert_close(loaded.received(), layer.weights.at(batch=1).received())
    loss = regard.nn.entropy_loss(layer.weights, ceiling=0.1)
    alone = regard.nn.entropy_loss(layer.weights, ceiling=0.1, row_weights=padding("right")[:, None])
    torch.testing.assert_close(loss, alone)
