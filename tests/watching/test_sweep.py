"""Every model of transformers: what a watch sees are exactly the weights, or it says why it sees none."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.pairwise import everything
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
from helpers.model_zoo import build  # noqa: E402
from helpers.model_zoo.sweep import outcome  # noqa: E402

SAMPLE = {
    "LlamaModel": "exact",
    "Cohere2Model": "exact",
    "DeepseekV3Model": "exact",  # keys are wider than values
    "GraniteSWAModel": "exact",  # sinks
    "LayoutLMModel": "exact",  # a mask of one row
    "Phi4MultimodalVisionModel": "exact",  # dense attention of another name, and no mask
    "Qwen2VisionTransformerPretrainedModel": "exact",  # a call a chunk
    "SamVisionModel": "exact",  # torch's fused attention, called beside the interface
    "T5Model": "exact",
    "BloomModel": "refused",  # no interface
    "DinatModel": "refused",  # a package that is not installed
    "Inkling2TextModel": "refused",  # an argument that nobody knows
    "LongT5Model": "refused",  # half of it by the interface
}
"""What is run without ``--all``, and what comes of it."""


def _names() -> list[str]:
    return list(build.classes()) if everything() else list(SAMPLE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _names())
def test_the_weights_of_every_model_are_exact_or_refused(name):
    build.quiet()
    found = outcome(build.classes()[name] if everything() else build.named(name))
    assert found.kind == SAMPLE.get(name, found.kind)
    assert found.kind == "exact" or found.said


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_heard_may_stand_beside_what_is_chosen():
    build.quiet()
    model = build.built(build.named("LongT5Model"))
    given = {name: torch.randint(3, 90, (2, 11)) for name in ("input_ids", "decoder_input_ids")}
    chosen = "decoder.block.1.layer.1.EncDecAttention"
    with (
        pytest.raises(InvalidArgument, match="\\(LongT5LocalAttention\\): computes"),
        regard.watch(model),
        torch.no_grad(),
    ):
        model(**given)
    with regard.watch(model, layers=[chosen]) as seen, torch.no_grad():
        model(**given)
    assert [layer.name for layer in seen.layers] == [chosen]


class SparseAttention(torch.nn.Module):
    def forward(self, x, **options):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS["sdpa"](self, x, x, x, None, **options)[0].transpose(1, 2)


class HalfSparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.sparse = SparseAttention(), SparseAttention()

    def forward(self, x):
        return self.sparse(self.dense(x), indices=torch.zeros(1))


def test_attention_to_selected_keys_may_stand_beside_what_is_chosen():
    x, message = torch.randn(1, 2, 5, 4), "SparseAttention selects the keys"
    with pytest.raises(InvalidArgument, match=message), regard.watch(HalfSparse()) as result:
        result.model(x)
    with regard.watch(HalfSparse(), layers=["dense"]) as result:
        output = result.model(x)
    assert [layer.name for layer in result.layers] == ["dense"]
    assert torch.equal(output, HalfSparse()(x))


@pytest.mark.filterwarnings("ignore")
def test_what_is_called_attention_for_short_is_not_missed_beside_what_is_heard(monkeypatch):
    build.quiet()
    codes = {f"IMGIMG{''.join('ABCDEFGHIJ'[int(digit)] for digit in str(code))}Z": 3 + code for code in range(64)}
    more = {"vocabulary_map": {"<image>": 150, **codes}, "vq_config.num_embeddings": 64}
    monkeypatch.setattr(build, "OVERRIDES", [*build.OVERRIDES, ("^ChameleonModel", more)])
    model = build.built(build.named("ChameleonModel"))
    words, picture = torch.tensor([[150, 5, 6, 7]]), torch.randn(1, 3, 16, 16)
    with regard.watch(model) as seen, torch.no_grad():
        model(words)
    assert len(seen.layers) == 2
    said = "\\(ChameleonVQVAEEncoderAttnBlock\\): computes attention in its own code"
    with pytest.raises(InvalidArgument, match=said), regard.watch(model), torch.no_grad():
        model(words, picture)


@pytest.mark.filterwarnings("ignore")
def test_a_mask_that_is_no_matrix_is_refused():
    build.quiet()
    model = build.built(build.named("LlamaModel"))
    model.set_attn_implementation("flex_attention")
    said = r"'flex_attention', whose mask is not a tensor .*\(\"sdpa\"\)"
    with pytest.raises(InvalidArgument, match=said), regard.watch(model), torch.no_grad():
        model(torch.randint(3, 90, (2, 11)))
