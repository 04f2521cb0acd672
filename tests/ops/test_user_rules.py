"""Rules in a file of the user's: every part of the library takes them as it takes its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import regard
from regard.analysis.recording import Layer, Recording
from regard.cli.info import gather
from regard.errors import InvalidFile, KernelNotSupported
from regard.ops import attend, weights
from regard.ops.kernels import blocks, threads
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.masks import Mask
from regard.ops.rules import class_by_id, registered
from regard.testing import check

SOURCE = '''
import torch

import regard
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.scores import Score


class EvenDistance(regard.Causal):
    """Causal, and only every second key."""

    def allowed(self, tile):
        return super().allowed(tile) & ((tile.q_pos - tile.kv_idx) % 2 == 0)


class Blocked(Mask):
    """Keys that a tensor forbids to all queries."""

    hidden: torch.Tensor

    def allowed(self, tile):
        return ~self.hidden[tile.kv_idx]


class Warm(regard.ScaledDotProduct):
    """The scaled dot product times a learned temperature per head."""

    temperature: torch.Tensor

    def __call__(self, query, key, scale, tile):
        return super().__call__(query, key, scale, tile) * self.temperature[tile.heads][:, None, None]


class Negative(Score):
    """Minus the squared distance of query and key, plus a learned number per key."""

    def __init__(self, per_key):
        self.per_key = per_key

    def __call__(self, query, key, scale, tile):
        dot = query @ key.mT
        norms = query.square().sum(-1, keepdim=True) + key.square().sum(-1)[..., None, :]
        return (2 * dot - norms) * scale + self.per_key[tile.kv_idx]


class HalfEntropy(regard.Entropy):
    """Half of the entropy."""

    def compute(self, block):
        return super().compute(block) / 2


class Gini(Measure):
    """The Gini coefficient of each row, over all keys."""

    def compute(self, block):
        ordered = block.weights.sort(-1).values
        count = ordered.shape[-1]
        rank = torch.arange(1, count + 1, dtype=ordered.dtype)
        return ((2 * rank - count - 1) * ordered).sum(-1) / count
'''


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """The module of the user, imported from its file."""
    path = tmp_path_factory.mktemp("user") / "user_rules.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("user_rules", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_rules"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["user_rules"]


HEADS, QUERIES, KEYS = 2, 13, 17


def tensors():
    random = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, HEADS, tokens, 4, generator=random, dtype=torch.float64).requires_grad_()
        for tokens in (QUERIES, KEYS, KEYS)
    ]


def rules(user, kind):
    """Mask, score and measures, by subclassing a class of the library or from scratch; and what is learned."""
    random = torch.Generator().manual_seed(1)
    if kind == "subclass":
        learned = torch.rand(HEADS, generator=random, dtype=torch.float64).add(0.5).requires_grad_()
        return user.EvenDistance(), user.Warm(learned), [user.HalfEntropy(), "entropy"], learned
    learned = torch.randn(KEYS, generator=random, dtype=torch.float64).requires_grad_()
    hidden = torch.arange(KEYS) % 3 == 1
    return user.Blocked(hidden), user.Negative(learned), [user.Gini(), "received"], learned


def formula(kind, query, key, value, learned):
    """Output and measures, dense."""
    i, j = torch.arange(QUERIES)[:, None] + KEYS - QUERIES, torch.arange(KEYS)
    if kind == "subclass":
        cells = (j <= i) & ((i - j) % 2 == 0)
        scores = query @ key.mT / 2 * learned[:, None, None]
    else:
        cells = (j % 3 != 1).expand(QUERIES, KEYS)
        scores = -torch.cdist(query, key).square() + learned
    P = scores.masked_fill(~cells, -torch.inf).softmax(-1)
    if kind == "subclass":
        entropy = -torch.special.xlogy(P, P.where(P > 0, 1.0)).sum(-1)
        return P, [P @ value, entropy / 2, entropy]
    pairs = (P[..., :, None] - P[..., None, :]).abs().sum((-1, -2))
    return P, [P @ value, pairs / (2 * KEYS), P.sum(-2)]


def results(user, kind, inputs, **options):
    mask, score, measure, learned = rules(user, kind)
    att = attend(*inputs, mask=mask, score=score, measure=measure, **options)
    outputs = [att.output, *att.measured.values()]
    losses = [output.square().sum() for output in outputs]
    return outputs, torch.autograd.grad(losses, [*inputs, learned]), att


def expected(user, kind, inputs):
    *_, learned = rules(user, kind)
    _, outputs = formula(kind, *inputs, learned)
    return outputs, torch.autograd.grad([output.square().sum() for output in outputs], [*inputs, learned])


@pytest.mark.parametrize("kernel", [None, "blockwise", "reference"])
@pytest.mark.parametrize("kind", ["subclass", "scratch"])
@pytest.mark.parametrize("rows", [3, 128])
def test_user_rules_give_the_results_and_gradients_of_their_formulas(monkeypatch, user, kind, kernel, rows):
    monkeypatch.setattr(blocks, "CPU", replace(blocks.CPU, rows=rows))
    outputs, gradients, _ = results(user, kind, tensors(), kernel=kernel)
    torch.testing.assert_close((outputs, gradients), expected(user, kind, tensors()))


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_kernels_that_cannot_compute_user_rules_say_so(user, kind):
    mask, score, measure, _ = rules(user, kind)
    for kernel in (kernel.name for kernel in KERNELS if kernel.name not in ("blockwise", "reference")):
        with pytest.raises(KernelNotSupported, match="cannot compute this call"):
            attend(*tensors(), mask=mask, score=score, measure=measure, kernel=kernel)


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_run_on_several_threads(monkeypatch, user, kind):
    monkeypatch.setattr(threads, "MIN_MULTIPLY_ADDS", 0)
    monkeypatch.setattr(blocks, "CPU", replace(blocks.CPU, rows=3, elements=64))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        outputs, gradients, _ = results(user, kind, tensors(), kernel="blockwise")
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close((outputs, gradients), expected(user, kind, tensors()))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # of the compiler, about itself
@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_stay_correct_in_a_compiled_program(user, kind):
    mask, score, measure, learned = rules(user, kind)

    def program(query, key, value):
        att = attend(query * 2, key, value, mask=mask, score=score, measure=measure)
        return [att.output, *att.measured.values()]

    torch._dynamo.reset()
    inputs = tensors()
    outputs = torch.compile(program, backend="aot_eager")(*inputs)
    _, truth = formula(kind, inputs[0] * 2, *inputs[1:], learned)
    torch.testing.assert_close(outputs, truth)
    pairs = (
        torch.autograd.grad([part.square().sum() for part in parts], [*inputs, learned]) for parts in (outputs, truth)
    )
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_are_saved_in_recordings(user, kind, tmp_path):
    query, key, _ = tensors()
    mask, score, _, learned = rules(user, kind)
    W = weights(query[:1], key[:1], mask=mask, score=score)
    layer = Layer(
        name="layer", kind="encoder", weights=W, queries=tuple("abcdefghijklm"), keys=tuple("abcdefghijklmnopq")
    )
    Recording(title="", model="", layers=(layer,)).save(tmp_path / "run.regard")
    loaded = regard.load(tmp_path / "run.regard").layers[0].weights
    torch.testing.assert_close(loaded.dense(), formula(kind, query[:1], key[:1], key[:1], learned)[0])
    assert type(loaded.request.mask) is type(mask)
    assert type(loaded.request.score) is type(score)
    code = f"import regard; regard.load({str(tmp_path / 'run.regard')!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InvalidFile" in other.stderr
    assert f"user_rules.{type(mask).__name__}" in other.stderr


def test_a_damaged_class_name_in_a_recording_is_refused(user, tmp_path):
    query, key, _ = tensors()
    W = weights(query[:1, :, :, :], key[:1], mask=user.EvenDistance())
    layer = Layer(
        name="layer", kind="encoder", weights=W, queries=tuple("abcdefghijklm"), keys=tuple("abcdefghijklmnopq")
    )
    path = tmp_path / "run.regard"
    Recording(title="", model="", layers=(layer,)).save(path)
    path.write_bytes(path.read_bytes().replace(b"user_rules.EvenDistance", b"os.path.EvenDistanceXXX"))
    with pytest.raises(InvalidFile):
        regard.load(path)


def test_user_rules_are_listed_and_known_by_name(user):
    facts = gather()
    assert "every second key" in str(facts["masks"])
    assert "learned temperature" in str(facts["scores"])
    assert "Gini coefficient" in str(facts["measures"])
    query, key, _ = tensors()
    assert weights(query, key).measure("gini", "half_entropy").keys() == {"gini", "half_entropy"}


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_pass_the_check_that_users_run(user, kind):
    mask, score, measure, _ = rules(user, kind)
    for rule in (mask, score, measure[0]):
        check(rule, shapes=[(2, HEADS, QUERIES, KEYS)], head_dim=4)


def test_classes_of_one_name_in_two_modules_are_both_known():
    first, second = (
        type("Mine", (Mask,), {"__module__": module, "allowed": lambda self, tile: tile.kv_idx >= 0}) for module in "ab"
    )
    assert (class_by_id("a.Mine"), class_by_id("b.Mine")) == (first, second)
    assert registered(Mask)["mine"] is second
