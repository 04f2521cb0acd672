"""Input values of tiny models of transformers: words, masks, videos, proteins."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedConfig

from helpers.model_zoo.build import configs
from helpers.model_zoo.config_sizes import SIDE, WORDS


class Numbers:
    """Numbers of a configuration, wherever they stand in it."""

    def __init__(self, config: PreTrainedConfig, grids: bool) -> None:
        self.config, self.grids = config, grids

    def __call__(self, default: Any, *names: str) -> Any:
        for each in configs(self.config):
            for name in names:
                if getattr(each, name, None) is not None:
                    return getattr(each, name)
        return default

    @property
    def side(self) -> tuple[int, int]:
        size = self(SIDE, "image_size", "img_size", "input_size")
        if isinstance(size, dict):
            size = size.get("height"), size.get("width")
        return (size, size) if isinstance(size, int) else tuple(size)[-2:]

    @property
    def patches(self) -> int:
        """How many numbers a patch has."""
        return self(3, "num_channels", "in_channels", "in_chans") * self(8, "patch_size") ** 2

    @property
    def image(self) -> tuple[int, int, int]:
        return self(3, "num_channels", "in_channels", "in_chans"), *self.side


def words(of: Numbers, count: int) -> Tensor:
    return torch.randint(3, min(90, of(99, "vocab_size") - 9), (2, count))


def padded(count: int) -> Tensor:
    mask = torch.ones(2, count, dtype=torch.int64)
    mask[1, -2:] = 0  # fewer than a window is long, so that no row is empty
    return mask


Maker = Callable[[Numbers], Any]


def session(of: Numbers, model: str) -> Any:
    """A video with an object to segment."""
    kind = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), SESSIONS[model])
    side = of.side[0]
    session = kind(video=torch.randn(3, 3, side, side), video_height=side, video_width=side, dtype=torch.float32)
    if model == "sam3_video":
        prompt = session.add_prompt("an animal")
        session.prompt_input_ids[prompt] = words(of, WORDS)[:1]
        session.prompt_attention_masks[prompt] = torch.ones(1, WORDS, dtype=torch.int64)
        return session
    coords = torch.full((1, 1, 1, 2), side / 3)
    point = {"point_coords": coords, "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, point)
    session.obj_with_new_inputs = [1]
    return session


SESSIONS = {
    "sam2_video": "Sam2VideoInferenceSession",
    "sam3_tracker_video": "Sam3TrackerVideoInferenceSession",
    "edgetam_video": "EdgeTamVideoInferenceSession",
    "sam3_video": "Sam3VideoInferenceSession",
}
"""The classes of videos."""


def of_main(of: Numbers) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Inputs of an assistant from its main model: embedding and state of the last token, and all keys and values."""
    text_config = of.config.get_text_config()
    kinds = ["sliding_attention", "full_attention"]
    shared = {"num_hidden_layers": 4, "layer_types": 2 * kinds, "num_kv_shared_layers": 2, "global_head_dim": 16}
    config = type(text_config)(**{**text_config.to_dict(), "per_layer_config": None, **shared})
    torch.manual_seed(3)
    main = AutoModel.from_config(config).eval()
    tokens = words(of, WORDS)
    with torch.no_grad():
        options = {"output_hidden_states": True, "return_shared_kv_states": True}
        outputs = main(tokens, attention_mask=padded(WORDS).flip(1), **options)
        last = main.get_input_embeddings()(tokens[:, -1:]), outputs.hidden_states[-1][:, -1:]
    return torch.cat(last, -1), dict(outputs.shared_kv_states)


def of_proteins(name: str, of: Numbers) -> Any:
    """A feature of two proteins of equal length."""
    from transformers.models.esmfold2 import modeling_esmfold2, protein_utils

    if name == "atom_inputs":
        return modeling_esmfold2.EsmFold2AtomInputs(**{part: of_proteins(part, of) for part in ATOMS})
    features = [protein_utils.prepare_protein_features(residues) for residues in ("MKTAYIAKQRQ", "GSHMWSLEVLF")]
    return torch.cat([each[name] for each in features])


PROTEINS = (
    *("token_index", "residue_index", "asym_id", "sym_id", "entity_id", "mol_type", "res_type", "token_bonds"),
    *("attention_mask", "deletion_mean", "msa", "has_deletion", "deletion_value", "msa_attention_mask", "input_ids"),
    "atom_inputs",
)
"""What a model that folds proteins takes."""

ATOMS = (
    *("ref_pos", "ref_charge", "ref_element", "ref_atom_name_chars", "ref_space_uid"),
    *("atom_attention_mask", "atom_to_token"),
)
"""What it takes of their atoms, as one."""
