"""Models of diffusers, timm and open_clip, watched: the weights are those of each library's own dense attention."""

from __future__ import annotations

from collections import defaultdict
from unittest import mock

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import regard

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Softmaxes(TorchFunctionMode):
    """The results of softmax in the modules of a model, by name."""

    def __init__(self, model):
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.inside, self.weights = [], defaultdict(list)
        for module in self.names:
            module.register_forward_pre_hook(lambda module, args: self.inside.append(module))
            module.register_forward_hook(self._leave)

    def _leave(self, module, args, output):
        self.inside.pop()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax":
            self.weights[self.names[self.inside[-1]].removesuffix(".softmax")].append(result)
        return result


def assert_layers_are(result, weights):
    assert [layer.name for layer in result.layers] == list(weights)
    for layer, (expected,) in zip(result.layers, weights.values(), strict=True):
        shape = layer.weights.shape
        torch.testing.assert_close(layer.weights.dense(), expected.reshape(shape), atol=1e-5, rtol=1e-4)


@pytest.fixture
def unet():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=12,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()


LATENTS, TEXT = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 12)
TEXT_MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("mask", [None, TEXT_MASK])
def test_a_unet_of_diffusers(unet, mask, is_fused):
    from diffusers.models.attention_processor import Attention, AttnProcessor

    options = {"timestep": 3, "encoder_hidden_states": TEXT, "encoder_attention_mask": mask}
    scores, weights = Attention.get_attention_scores, defaultdict(list)

    def get_attention_scores(self, *args):
        result = scores(self, *args)
        weights[names[self]].append(result)
        return result

    names = {module: name for name, module in unet.named_modules()}
    own = unet.attn_processors
    unet.set_attn_processor(AttnProcessor())
    with torch.no_grad(), mock.patch.object(Attention, "get_attention_scores", get_attention_scores):
        unet(LATENTS, **options)
    unet.set_attn_processor(own)
    if is_fused:
        unet.fuse_qkv_projections()
    with torch.no_grad():
        plain = unet(LATENTS, **options).sample
        with regard.watch(unet, ["entropy"]) as result:
            output = unet(LATENTS, **options).sample
    assert torch.equal(output, plain)
    assert_layers_are(result, weights)
    assert [layer.kind for layer in result.layers] == ["encoder", "cross"] * 4
    assert [tuple(layer.weights.shape) for layer in result.layers][:4] == [
        (2, 4, 64, 64),  # a query for each of 8 × 8 places
        (2, 4, 64, 5),
        (2, 4, 16, 16),
        (2, 4, 16, 5),
    ]


def test_each_step_of_a_diffusion_is_a_recording(unet):
    with regard.watch(unet, ["received"], layers=["mid_block"]) as result, torch.no_grad():
        latents = LATENTS
        for step in (9, 5, 1):
            latents = latents - unet(latents, step, TEXT).sample
    assert len(result.recordings) == 3
    one = result.recordings[1].select(1).layers.cross[0]
    assert one.name == "mid_block.attentions.0.transformer_blocks.0.attn2"
    assert one.weights.shape == (1, 4, 16, 5)


def test_a_processor_of_diffusers_with_its_own_softmax_is_dense(unet):
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    unet.set_attn_processor(AttnProcessor())
    with pytest.warns(UserWarning, match=r"the softmax of .*attn1"), regard.watch(unet) as dense, torch.no_grad():
        unet(LATENTS, 3, TEXT)
    unet.set_attn_processor(AttnProcessor2_0())
    with regard.watch(unet) as result, torch.no_grad():
        unet(LATENTS, 3, TEXT)
    assert len(result.layers) == len(dense.layers) == 8
    for own, fused in zip(dense.layers, result.layers, strict=True):
        assert (own.name, own.kind, own.is_dense, fused.is_dense) == (fused.name, fused.kind, True, False)
        torch.testing.assert_close(own.weights.dense(), fused.weights.dense(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["native", "flex", "_native_math"])
def test_backends_of_diffusers(backend):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    sizes = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2}
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, joint_attention_dim=12, pooled_projection_dim=6, axes_dims_rope=(2, 2, 4), **sizes
    ).eval()
    random = torch.Generator().manual_seed(1)
    inputs = {
        "hidden_states": torch.randn(1, 16, 4, generator=random),
        "encoder_hidden_states": torch.randn(1, 5, 12, generator=random),
        "pooled_projections": torch.randn(1, 6, generator=random),
        "timestep": torch.tensor([0.3]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(5, 3),
    }
    with regard.watch(model) as expected, torch.no_grad():
        plain = model(**inputs).sample
    model.set_attention_backend(backend)
    with regard.watch(model) as result, torch.no_grad():
        torch.testing.assert_close(model(**inputs).sample, plain, atol=1e-5, rtol=1e-5)
    assert [layer.name for layer in result.layers] == ["transformer_blocks.0.attn", "single_transformer_blocks.0.attn"]
    for layer, other in zip(result.layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), other.weights.dense(), atol=1e-5, rtol=1e-4)
        assert layer.weights.shape == (1, 2, 21, 21)


def _timm_models(timm):
    sizes = {"img_size": 32, "embed_dim": 32, "num_classes": 5}
    tokens = sizes | {"patch_size": 8, "depth": 2, "num_heads": 4}
    windows = sizes | {"patch_size": 2, "embed_dim": 16, "depths": (2, 1), "num_heads": (2, 4), "window_size": 4}
    return {
        "vit": lambda: timm.models.VisionTransformer(**tokens),
        "vit with a pooling layer": lambda: timm.models.VisionTransformer(
            **tokens, global_pool="map", class_token=False
        ),
        "beit": lambda: timm.models.Beit(**tokens, use_rel_pos_bias=True),
        "eva": lambda: timm.models.Eva(**tokens, use_rot_pos_emb=True),
        "swin": lambda: timm.models.SwinTransformer(**windows),
        "pvt": lambda: timm.create_model("pvt_v2_b0", num_classes=3),
        "mobilevit": lambda: timm.create_model("mobilevit_xxs", num_classes=3),
    }


@pytest.mark.parametrize("name", ["vit", "vit with a pooling layer", "beit", "eva", "swin", "pvt", "mobilevit"])
def test_models_of_timm(name):
    timm = pytest.importorskip("timm", exc_type=ImportError)
    make = _timm_models(timm)[name]
    try:
        timm.layers.set_fused_attn(False)
        dense = make().eval()
        timm.layers.set_fused_attn(True, experimental=True)
        model = make().eval()
    finally:
        timm.layers.set_fused_attn(True)
    model.load_state_dict(dense.state_dict())
    with torch.no_grad():
        with Softmaxes(dense) as softmaxes:
            dense(IMAGES)
        plain = model(IMAGES)
        with regard.watch(model, ["entropy"]) as result:
            output = model(IMAGES)
    assert torch.equal(output, plain)
    assert_layers_are(result, softmaxes.weights)


def _with_weights(attention, weights):
    """`nn.MultiheadAttention.forward` that also keeps the weights of each head."""
    forward = attention.forward

    def with_weights(*args, **options):
        output, of_heads = forward(*args, **{**options, "need_weights": True, "average_attn_weights": False})
        weights.append(of_heads)
        return output, None

    return with_weights


@pytest.mark.parametrize("vision", [{}, {"attentional_pool": True, "attn_pooler_heads": 4}, {"block_type": "custom"}])
def test_models_of_open_clip(vision):
    pytest.importorskip("open_clip", exc_type=ImportError)
    from open_clip.model import CLIP

    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
    text = {"context_length": 7, "vocab_size": 50, "width": 32, "heads": 4, "layers": 2}
    model, ids = CLIP(16, sizes | vision, text).eval(), torch.randint(1, 40, (2, 7))
    with torch.no_grad():
        plain = model(IMAGES, ids)
        with regard.watch(model, ["entropy"]) as result:
            output = model(IMAGES, ids)
    for one, other in zip(output[:2], plain[:2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    weights = defaultdict(list)
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            module.forward = _with_weights(module, weights[name])
    with torch.no_grad():
        model(IMAGES, ids)
    layers = {layer.name: layer for layer in result.layers}
    assert [name for name in layers if name.startswith("visual.transformer")] == [
        f"visual.transformer.resblocks.{number}.attn" for number in range(2)
    ]
    assert set(weights) <= set(layers)
    for name, (expected,) in weights.items():
        torch.testing.assert_close(layers[name].weights.dense(), expected, atol=1e-5, rtol=1e-4)
    assert layers["transformer.resblocks.1.attn"].weights.dense().triu(1).count_nonzero() == 0
