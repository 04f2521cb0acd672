"""Every model of transformers: a watch records exactly its weights, or the error has the reason."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.pairwise import everything
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
from helpers.model_zoo import build  # noqa: E402
from helpers.model_zoo.outcome import outcome  # noqa: E402

SAMPLE = {
    "LlamaModel": "exact",
    "Cohere2Model": "exact",
    "DeepseekV3Model": "exact",  # keys are wider than values
    "GraniteSWAModel": "exact",  # sinks
    "LayoutLMModel": "exact",  # a mask of one row
    "Phi4MultimodalVisionModel": "exact",  # dense attention of another name, and no mask
    "Qwen2VisionTransformerPretrainedModel": "exact",  # a call a chunk
    "SamVisionModel": "exact",  # calls torch's fused attention without the interface
    "T5Model": "exact",
    "BlipModel": "exact",  # from here on a softmax of their own, and an adapter
    "BloomModel": "exact",
    "DebertaModel": "exact",
    "DebertaV2Model": "exact",
    "FalconModel": "exact",
    "GPTJModel": "exact",
    "GPTNeoModel": "exact",
    "FlavaModel": "exact",
    "MPNetModel": "exact",
    "MegatronBertModel": "exact",
    "MptModel": "exact",
    "RemBertModel": "exact",
    "TapasModel": "exact",
    "TrOCRDecoder": "exact",
    "ViltModel": "exact",
    "VisualBertModel": "exact",
    "XGLMModel": "exact",
    "XLNetModel": "exact",
    "CanineModel": "dense",  # from here on a softmax of their own, and no adapter
    "ClapModel": "dense",  # half of it by the interface
    "DinatModel": "refused",  # a package that is not installed
    "Inkling2TextModel": "refused",  # an unknown argument
    "LongT5Model": "refused",  # blocks of keys
}
"""The models that run without ``--all``, and their results."""


def _names() -> list[str]:
    return list(build.classes()) if everything() else list(SAMPLE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _names())
def test_the_weights_of_every_model_are_exact_or_dense_or_refused(name):
    build.quiet()
    result = outcome(build.classes()[name] if everything() else build.named(name))
    assert result.kind == SAMPLE.get(name, result.kind)
    assert result.kind != "refused" or result.reason


@pytest.mark.filterwarnings("ignore")
def test_unsupported_attention_does_not_matter_outside_the_chosen_layers():
    build.quiet()
    model = build.built(build.named("LongT5Model"))
    inputs = {name: torch.randint(3, 90, (2, 11)) for name in ("input_ids", "decoder_input_ids")}
    chosen = "decoder.block.1.layer.1.EncDecAttention"
    with (
        pytest.raises(InvalidArgument, match="\\(LongT5LocalAttention\\) computes"),
        regard.watch(model),
        torch.no_grad(),
    ):
        model(**inputs)
    with regard.watch(model, layers=[chosen]) as result, torch.no_grad():
        model(**inputs)
    assert [layer.name for layer in result.layers] == [chosen]


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


def test_attention_to_selected_keys_does_not_matter_outside_the_chosen_layers():
    x, message = torch.randn(1, 2, 5, 4), "SparseAttention selects the keys"
    with pytest.raises(InvalidArgument, match=message), regard.watch(HalfSparse()) as result:
        result.model(x)
    with regard.watch(HalfSparse(), layers=["dense"]) as result:
        output = result.model(x)
    assert [layer.name for layer in result.layers] == ["dense"]
    assert torch.equal(output, HalfSparse()(x))


@pytest.mark.filterwarnings("ignore")
def test_modules_named_attn_are_found_among_recorded_ones(monkeypatch):
    build.quiet()
    codes = {f"IMGIMG{''.join('ABCDEFGHIJ'[int(digit)] for digit in str(code))}Z": 3 + code for code in range(64)}
    more = {"vocabulary_map": {"<image>": 150, **codes}, "vq_config.num_embeddings": 64}
    monkeypatch.setattr(build, "OVERRIDES", [*build.OVERRIDES, ("^ChameleonModel", more)])
    model = build.built(build.named("ChameleonModel"))
    words, picture = torch.tensor([[150, 5, 6, 7]]), torch.randn(1, 3, 16, 16)
    with regard.watch(model) as result, torch.no_grad():
        model(words)
    assert len(result.layers) == 2
    with regard.watch(model) as result, torch.no_grad():
        model(words, picture)
    dense = [layer for layer in result.layers if layer.is_dense]
    assert len(result.layers) == 2 + len(dense)
    assert {type(model.get_submodule(layer.name)).__name__ for layer in dense} == {"ChameleonVQVAEEncoderAttnBlock"}
