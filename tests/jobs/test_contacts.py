"""regard.jobs.contacts equals transformers' predict_contacts, in memory that does not grow with the number of heads."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertModel, EsmConfig, EsmForMaskedLM, EsmModel

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.jobs import contacts

CLS, EOS, PAD = 0, 2, 1


def make(kind=EsmModel, layers=2, heads=4, positions="rotary"):
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=33,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=64,
        max_position_embeddings=100,
        pad_token_id=PAD,
        mask_token_id=32,
        initializer_range=0.3,  # weights that differ
        position_embedding_type=positions,
    )
    model = kind(config).eval()
    base = model if kind is EsmModel else model.esm
    nn.init.normal_(base.contact_head.regression.weight, std=5)  # as trained ones: predictions are not all 0.5
    nn.init.normal_(base.contact_head.regression.bias)
    return model


def proteins(*lengths):
    """Ids of proteins of different lengths, padded; and their mask."""
    ids = torch.full((len(lengths), max(lengths) + 2), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[0], row[1 : length + 1], row[length + 1] = CLS, torch.randint(4, 24, (length,)), EOS
    return ids, (ids != PAD).long()


@pytest.mark.parametrize("cells", [2**22, 100])
@pytest.mark.parametrize("lengths", [(30,), (1,), (30, 12, 29)])
@pytest.mark.parametrize("kind", [EsmModel, EsmForMaskedLM])
def test_contacts_are_those_of_transformers(kind, lengths, cells, monkeypatch):
    """With eager attention; the number of rows at once does not matter."""
    monkeypatch.setattr("regard.jobs.esm.CELLS_AT_ONCE", cells)
    model, (ids, mask) = make(kind), proteins(*lengths)
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager.predict_contacts(ids, mask)
    actual = contacts(model, ids, mask)
    assert actual.dtype == torch.float32
    assert not actual.requires_grad
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    if lengths == (30,):
        assert expected.std() > 0.05
        torch.testing.assert_close(contacts(model, ids), actual)


@pytest.mark.parametrize("implementation", ["eager", "regard"])
def test_every_attention_implementation_does(implementation):
    model, (ids, mask) = make(positions="absolute"), proteins(20, 9)
    expected = contacts(model, ids, mask)
    if implementation == "regard":
        import regard.transformers  # noqa: F401
    model.set_attn_implementation(implementation)
    torch.testing.assert_close(contacts(model, ids, mask), expected, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.size = max([self.size, *(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))])
        return result


def test_nothing_is_larger_than_one_map(monkeypatch):
    """Those of all heads would have 64 times as many numbers."""
    monkeypatch.setattr("regard.jobs.esm.CELLS_AT_ONCE", 20_000)
    model, (ids, mask) = make(layers=4, heads=16), proteins(200)
    with Largest() as largest:
        contacts(model, ids, mask)
    assert largest.size == 202**2


def test_what_is_not_esm_is_refused():
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9))
    with pytest.raises(InvalidType, match="model: expected one with the contact head of ESM, as EsmModel, got BertMo"):
        contacts(bert, torch.ones(1, 5).long())
    model = make()
    model.contact_head.regression = nn.Linear(7, 1)
    with pytest.raises(InvalidArgument, match=r"model: .* with a weight for each of 8 heads, got 7"):
        contacts(model, proteins(5)[0])


def test_shapes_that_do_not_fit_are_refused_before_the_model_runs():
    model, (ids, mask) = make(), proteins(5)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(InvalidArgument, match=r"input_ids: expected \(batch, 3 or more tokens\), got \(7,\)"):
        contacts(model, ids[0])
    with pytest.raises(InvalidArgument, match=r"got \(1, 2\)"):
        contacts(model, ids[:, :2])
    with pytest.raises(
        InvalidArgument, match=r"attention_mask: expected shape \(batch, tokens\) = \(1, 7\), got \(7,\)"
    ):
        contacts(model, ids, mask[0])
    with pytest.raises(InvalidType, match="input_ids: expected an integer tensor, got list"):
        contacts(model, ids.tolist())
    with pytest.raises(InvalidType, match="input_ids: expected an integer tensor, got float32"):
        contacts(model, ids.float())


def test_the_name_is_public():
    assert regard.jobs.contacts is contacts
