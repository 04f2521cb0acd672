"""What decoder-only checkpoints of transformers share: special token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checks import Checks, warn
from regard.models.gpt import GPTConfig
from regard.models.huggingface.converter import GENERATION_FILE, CheckpointConverter, as_tuple


class GPTConverter(CheckpointConverter):
    """Reads and writes checkpoints of decoder-only models.

    They can have several EOS ids and no padding id, which is then the first EOS id, or 0.
    """

    config_type = GPTConfig
    computed_fields = ("sample_by",)

    def read_fields(self, values: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
        """The fields of our configuration; special token ids outside the vocabulary are ignored, with a warning."""
        fields = super().read_fields(values, checks) | {"sample_by": values.get("sample_by")}
        size = fields["vocab_size"]
        for name in ("pad_id", "bos_id", "eos_ids"):
            ids = as_tuple(fields[name])
            outside = [each for each in ids if type(each) is int and type(size) is int and each >= size]
            if outside:  # transformers loads such checkpoints
                message = f"{name}: {outside} is outside the vocabulary of {size} tokens and is ignored"
                warn(message)
                fields[name] = [each for each in ids if each not in outside] if name == "eos_ids" else None
        fields["eos_ids"] = as_tuple(fields["eos_ids"])
        if fields["pad_id"] is None:
            fields["pad_id"] = _default_pad_id(fields["eos_ids"])
        return fields

    def write_config(self, config: Any) -> dict[str, Any]:
        sample_by = {} if config.sample_by is None else {"sample_by": config.sample_by}  # transformers ignores it
        return super().write_config(config) | _special_token_ids(config) | sample_by

    def extra_files(self, config: Any) -> dict[str, Any]:
        """The special token ids that transformers' ``generate`` reads."""
        return {GENERATION_FILE: {"bos_token_id": config.bos_id, **_special_token_ids(config)}}


def _special_token_ids(config: Any) -> dict[str, Any]:
    """The EOS and padding ids in config.json.

    ``pad_token_id`` is left unset when it is the default on load: transformers passes it as ``padding_idx``, which
    would freeze the EOS embedding.
    """
    pad_id = None if config.pad_id == _default_pad_id(config.eos_ids) else config.pad_id
    eos_ids = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids) or None
    return {"eos_token_id": eos_ids, "pad_token_id": pad_id}


def _default_pad_id(eos_ids: tuple[int, ...]) -> int:
    return (*eos_ids, 0)[0]
