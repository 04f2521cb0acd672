"""SAGAN: shapes, spectral norms, losses and a short training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.models import SaganConfig, SaganDiscriminator, SaganGenerator, save_model
from regard.models.sagan import discriminator_loss, generator_loss

SMALL = SaganConfig(image_size=16, image_channels=3, num_classes=4, latent_dim=6, base_channels=8, attention_size=8)
LABELS = torch.tensor([0, 3, 1])


def test_default_sizes_are_those_of_the_paper():
    config = SaganConfig(attention_size=32)
    assert config.sizes == (4, 8, 16, 32, 64, 128)
    assert [config.channels(size) for size in config.sizes] == [1024, 1024, 512, 256, 128, 64]


def test_generator_and_discriminator_return_their_attention():
    torch.manual_seed(0)
    generated = SaganGenerator(SMALL)(torch.randn(3, 6), LABELS)
    scored = SaganDiscriminator(SMALL)(generated.images, LABELS)
    assert generated.images.shape == (3, 3, 16, 16)
    assert generated.images.abs().max() <= 1
    assert scored.scores.shape == (3,)
    for output in (generated, scored):
        assert output.attention.weights.shape == (3, 1, 64, 64)
        torch.testing.assert_close(output.attention.weights.dense().sum(-1), torch.ones(3, 1, 64))


@pytest.mark.parametrize("size", [4, 8, 16])
def test_attention_is_the_identity_at_initialization(size):
    latent = torch.randn(3, 6)
    models = []
    for attention_size in (None, size):
        config = SaganConfig(**{**vars(SMALL), "attention_size": attention_size})
        torch.manual_seed(1)
        models.append((SaganGenerator(config).eval(), SaganDiscriminator(config).eval()))
    (plain_generator, plain_discriminator), (generator, discriminator) = models
    # only the weights of the attention layers are missing
    assert generator.load_state_dict(plain_generator.state_dict(), strict=False).missing_keys
    discriminator.load_state_dict(plain_discriminator.state_dict(), strict=False)
    expected, generated = plain_generator(latent, LABELS), generator(latent, LABELS)
    torch.testing.assert_close(generated.images, expected.images)
    assert expected.attention is None
    scored = discriminator(generated.images, LABELS)
    torch.testing.assert_close(scored.scores, plain_discriminator(generated.images, LABELS).scores)
    assert generated.attention.weights.shape == scored.attention.weights.shape == (3, 1, size**2, size**2)


def test_every_weight_has_spectral_norm_1():
    torch.manual_seed(0)
    generator, discriminator = SaganGenerator(SMALL), SaganDiscriminator(SMALL)
    for _ in range(200):  # one power iteration each
        discriminator(generator.sample(LABELS).images, LABELS)
    counted = 0
    for model in (generator, discriminator):
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)) or (
                isinstance(module, nn.Embedding) and module is getattr(model, "class_embedding", None)
            ):
                largest = torch.linalg.matrix_norm(module.weight.detach().flatten(1), 2)
                assert largest.item() == pytest.approx(1, abs=0.02)
                counted += 1
    assert counted == 2 * 3 + 2 + 3 * 3 + 3 + 8  # blocks, first and last, those of each attention


def test_losses_are_those_of_the_paper():
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.0, 0.5])
    assert discriminator_loss(real, fake).item() == pytest.approx((0 + 0.5 + 2) / 3 + (0 + 1 + 1.5) / 3)
    assert generator_loss(fake).item() == pytest.approx(2.5 / 3)


def test_generator_learns_which_class_is_bright():
    torch.manual_seed(0)
    config = SaganConfig(image_size=8, image_channels=1, num_classes=2, latent_dim=4, base_channels=8, attention_size=8)
    generator, discriminator = SaganGenerator(config), SaganDiscriminator(config)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.0, 0.9))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=12e-3, betas=(0.0, 0.9))
    for _ in range(80):
        labels = torch.randint(2, (16,))
        real = (labels * 1.2 - 0.6)[:, None, None, None] + 0.1 * torch.randn(16, 1, 8, 8)
        scores = discriminator(real, labels).scores
        fake_scores = discriminator(generator.sample(labels).images.detach(), labels).scores
        discriminator_optimizer.zero_grad()
        discriminator_loss(scores, fake_scores).backward()
        discriminator_optimizer.step()
        generator_optimizer.zero_grad()
        generator_loss(discriminator(generator.sample(labels).images, labels).scores).backward()
        generator_optimizer.step()
    dark, bright = generator.eval().sample(torch.arange(2).repeat_interleave(50)).images.chunk(2)
    assert dark.mean().item() == pytest.approx(-0.6, abs=0.35)
    assert bright.mean().item() == pytest.approx(0.6, abs=0.35)
    assert generator.attention.gamma.item() != 0


def test_save_model_does_not_take_a_sagan(tmp_path):
    known = "model: expected one of Transformer, Bert, GPT, RNNSearch, got SaganDiscriminator"
    with pytest.raises(InvalidArgument, match=known):
        save_model(tmp_path / "out", SaganDiscriminator(SMALL))
    assert not (tmp_path / "out").exists()


def test_invalid_sizes_and_inputs_raise():
    for keys, message in (
        ({"image_size": 12}, "image_size: expected a power of two of at least 8, got 12"),
        ({"attention_size": 5}, "attention_size: expected one of 4, 8, 16, or None, got 5"),
        (
            {"base_channels": 3},
            "base_channels: expected a multiple of 8 channels in the feature maps with attention, got 6",
        ),
        ({"num_classes": 0}, "num_classes: expected an int of at least 1"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            SaganConfig(**{**vars(SMALL), **keys})
    generator, discriminator = SaganGenerator(SMALL), SaganDiscriminator(SMALL)
    with pytest.raises(InvalidArgument, match=r"latent: expected shape \(batch, latent_dim\) = \(3, 6\), got \(3, 5\)"):
        generator(torch.randn(3, 5), LABELS)
    with pytest.raises(InvalidArgument, match="labels: expected values from 0 to num_classes - 1 = 3, got 4"):
        generator(torch.randn(1, 6), torch.tensor([4]))
    with pytest.raises(
        InvalidArgument, match=r"images: expected shape \(batch, image_channels, .*\) = \(3, 3, 16, 16\), got"
    ):
        discriminator(torch.randn(3, 1, 16, 16), LABELS)
    with pytest.raises(InvalidArgument, match="labels: expected 3 integers"):
        discriminator(torch.randn(3, 3, 16, 16), LABELS[:2])
