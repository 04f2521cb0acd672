"""The self-attention GAN: shapes, spectral norms, its losses, and that it learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.models import SaganConfig, SaganCritic, SaganGenerator, save_model
from regard.models.sagan import critic_loss, generator_loss

SMALL = SaganConfig(image_size=16, image_channels=3, num_classes=4, d_latent=6, width=8, attention_size=8)
LABELS = torch.tensor([0, 3, 1])


def test_sizes_are_the_papers():
    config = SaganConfig(attention_size=32)
    assert config.sizes == (4, 8, 16, 32, 64, 128)
    assert [config.channels(size) for size in config.sizes] == [1024, 1024, 512, 256, 128, 64]


def test_images_and_scores_come_with_their_attention():
    torch.manual_seed(0)
    made = SaganGenerator(SMALL)(torch.randn(3, 6), LABELS)
    judged = SaganCritic(SMALL)(made.images, LABELS)
    assert made.images.shape == (3, 3, 16, 16)
    assert made.images.abs().max() <= 1
    assert judged.scores.shape == (3,)
    for output in (made, judged):
        assert output.attention.weights.shape == (3, 1, 64, 64)
        torch.testing.assert_close(output.attention.weights.dense().sum(-1), torch.ones(3, 1, 64))


@pytest.mark.parametrize("size", [4, 8, 16])
def test_attention_begins_as_the_identity_wherever_it_stands(size):
    latent = torch.randn(3, 6)
    models = []
    for where in (None, size):
        config = SaganConfig(**{**vars(SMALL), "attention_size": where})
        torch.manual_seed(1)
        models.append((SaganGenerator(config).eval(), SaganCritic(config).eval()))
    (plain, plain_critic), (attending, attending_critic) = models
    # those without attention hold all that the others do, but for the attention's own
    assert attending.load_state_dict(plain.state_dict(), strict=False).missing_keys
    attending_critic.load_state_dict(plain_critic.state_dict(), strict=False)
    expected, found = plain(latent, LABELS), attending(latent, LABELS)
    torch.testing.assert_close(found.images, expected.images)
    assert expected.attention is None
    judged = attending_critic(found.images, LABELS)
    torch.testing.assert_close(judged.scores, plain_critic(found.images, LABELS).scores)
    assert found.attention.weights.shape == judged.attention.weights.shape == (3, 1, size**2, size**2)


def test_every_weight_has_the_spectral_norm_1():
    torch.manual_seed(0)
    generator, critic = SaganGenerator(SMALL), SaganCritic(SMALL)
    for _ in range(200):  # each a step of the power iteration
        critic(generator.draw(LABELS).images, LABELS)
    counted = 0
    for model in (generator, critic):
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)) or (
                isinstance(module, nn.Embedding) and module is getattr(model, "of_class", None)
            ):
                largest = torch.linalg.matrix_norm(module.weight.detach().flatten(1), 2)
                assert largest.item() == pytest.approx(1, abs=0.02)
                counted += 1
    assert counted == 2 * 3 + 2 + 3 * 3 + 3 + 8  # blocks, first and last, those of each attention


def test_the_losses_are_those_of_the_paper():
    real, made = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.0, 0.5])
    assert critic_loss(real, made).item() == pytest.approx((0 + 0.5 + 2) / 3 + (0 + 1 + 1.5) / 3)
    assert generator_loss(made).item() == pytest.approx(2.5 / 3)


def test_it_learns_which_class_is_bright():
    torch.manual_seed(0)
    config = SaganConfig(image_size=8, image_channels=1, num_classes=2, d_latent=4, width=8, attention_size=8)
    generator, critic = SaganGenerator(config), SaganCritic(config)
    of_generator = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=12e-3, betas=(0.0, 0.9))
    for _ in range(80):
        labels = torch.randint(2, (16,))
        real = (labels * 1.2 - 0.6)[:, None, None, None] + 0.1 * torch.randn(16, 1, 8, 8)
        loss = critic_loss(critic(real, labels).scores, critic(generator.draw(labels).images.detach(), labels).scores)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        generator_loss(critic(generator.draw(labels).images, labels).scores).backward()
        of_generator.step()
    dark, bright = generator.eval().draw(torch.arange(2).repeat_interleave(50)).images.chunk(2)
    assert dark.mean().item() == pytest.approx(-0.6, abs=0.35)
    assert bright.mean().item() == pytest.approx(0.6, abs=0.35)
    assert generator.attention.gamma.item() != 0


def test_what_no_folder_can_hold_is_refused(tmp_path):
    known = "model must be one of Transformer, Bert, GPT, RnnSearch, but is a SaganCritic"
    with pytest.raises(InvalidArgument, match=known):
        save_model(tmp_path / "out", SaganCritic(SMALL))
    assert not (tmp_path / "out").exists()


def test_what_does_not_fit_is_refused():
    for keys, words in (
        ({"image_size": 12}, "image_size: expected 8, 16, 32 and so on, each twice the last, got 12"),
        ({"attention_size": 5}, "attention_size: expected one of 4, 8, 16, or None, got 5"),
        ({"width": 3}, "width: expected channels that 8 divides where attention is, got 6"),
        ({"num_classes": 0}, "num_classes: expected an int of at least 1"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            SaganConfig(**{**vars(SMALL), **keys})
    generator, critic = SaganGenerator(SMALL), SaganCritic(SMALL)
    with pytest.raises(InvalidArgument, match=r"latent: expected shape \(batch, d_latent\) = \(3, 6\), got \(3, 5\)"):
        generator(torch.randn(3, 5), LABELS)
    with pytest.raises(InvalidArgument, match="labels: expected values from 0 to num_classes - 1 = 3, got 4"):
        generator(torch.randn(1, 6), torch.tensor([4]))
    with pytest.raises(
        InvalidArgument, match=r"images: expected shape \(batch, image_channels, .*\) = \(3, 3, 16, 16\), got"
    ):
        critic(torch.randn(3, 1, 16, 16), LABELS)
    with pytest.raises(InvalidArgument, match="labels: expected 3 integers"):
        critic(torch.randn(3, 3, 16, 16), LABELS[:2])
