"""Every model of transformers with attn_implementation="regard": its outputs are the same, or it is refused."""

from __future__ import annotations

import pytest

from helpers.pairwise import everything

pytest.importorskip("transformers")
import regard.transformers
from helpers.model_zoo import build
from helpers.model_zoo.variants import drop_in_outcome

SAMPLE = {
    "LlamaModel": "exact",
    "BigBirdPegasusModel": "exact",  # half of it adds the mask itself
    "BridgeTowerModel": "exact",  # layers that call themselves causal get no mask
    "DeepseekV4Model": "exact",  # masks that the model extends
    "Gemma4AudioModel": "exact",  # masks that the model cuts
    "GptOssModel": "exact",  # sinks
    "InformerModel": "exact",  # no mask where dense attention has none
    "LayoutLMModel": "exact",  # a mask of one row
    "LongT5Model": "exact",  # half of it by the interface
    "PegasusXModel": "exact",  # causal by its mask alone
    "Qwen2VisionTransformerPretrainedModel": "exact",  # a call a chunk
    "T5Model": "exact",
    "BloomModel": "refused",  # no interface
    "FalconModel": "refused",
    "GlmMoeDsaModel": "refused",  # selects keys
    "Inkling2TextModel": "refused",  # an unknown argument
}
"""The models that run without ``--all``, and their results."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(build.classes()) if everything() else list(SAMPLE))
def test_outputs_of_every_model(name, monkeypatch):
    monkeypatch.setattr(regard.transformers, "MAX_DENSE_CELLS", 0)
    build.quiet()
    outcome = drop_in_outcome(build.classes()[name] if everything() else build.named(name))
    assert outcome.kind == SAMPLE.get(name, outcome.kind)
    assert outcome.kind == "exact" or outcome.reason
