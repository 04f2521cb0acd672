"""What every model says of a configuration that is none of its own."""

from __future__ import annotations

import pytest

from regard.errors import InvalidType
from regard.models import (
    Bert,
    Gat,
    Gpt,
    GptConfig,
    RnnSearch,
    SaganCritic,
    SaganGenerator,
    Transformer,
)


@pytest.mark.parametrize("model", [Bert, Gat, Gpt, RnnSearch, SaganCritic, SaganGenerator, Transformer])
@pytest.mark.parametrize("config", [3, {"vocab_size": 9}, GptConfig])
def test_a_configuration_of_another_kind_is_refused(model, config):
    with pytest.raises(InvalidType, match=rf"config must be a \w+Config, but is a {type(config).__name__}$"):
        model(config)
