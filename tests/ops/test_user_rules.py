"""User-defined rules in a file work in every part of the library like built-in ones."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import InitVar, dataclass, replace
from typing import ClassVar

import pytest
import torch

import regard
from regard.cli.info import gather
from regard.errors import InvalidArgument, InvalidFile, InvalidType, KernelNotSupported
from regard.ops import attend, weights
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.rules import class_by_id, registered
from regard.ops.scores import Score
from regard.ops.steps import Step
from regard.ops.tile import KeyRange
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from regard.testing import RuleMismatch, check

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


class GiniCoefficient(Measure):
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
    return user.Blocked(hidden), user.Negative(learned), [user.GiniCoefficient(), "received"], learned


def formula(kind, query, key, value, learned):
    """Output and measures, dense."""
    i, j = torch.arange(QUERIES)[:, None] + KEYS - QUERIES, torch.arange(KEYS)
    if kind == "subclass":
        cells = (j <= i) & ((i - j) % 2 == 0)
        scores = query @ key.mT / 2 * learned[:, None, None]
    else:
        cells = (j % 3 != 1).expand(QUERIES, KEYS)
        scores = -torch.cdist(query, key).square() / 2 + learned  # 1/√head_dim, as in the other one
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


@pytest.mark.parametrize("kernel", [None, Blockwise(replace(CPU, rows=3)), "blockwise", "reference"])
@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_give_the_results_and_gradients_of_their_formulas(user, kind, kernel):
    outputs, gradients, _ = results(user, kind, tensors(), kernel=kernel)
    torch.testing.assert_close((outputs, gradients), expected(user, kind, tensors()))


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_kernels_refuse_unsupported_user_rules(user, kind):
    mask, score, measure, _ = rules(user, kind)
    refusing = [kernel for kernel in KERNELS if not kernel.supports(type(score))]
    assert len(refusing) == len(KERNELS) - 2  # blockwise and reference call any class
    for kernel in refusing:
        with pytest.raises(KernelNotSupported, match="cannot compute this call"):
            attend(*tensors(), mask=mask, score=score, measure=measure, kernel=kernel)


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_run_on_several_threads(user, kind):
    kernel = Blockwise(replace(CPU, rows=3, elements=64), min_multiply_adds=0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        outputs, gradients, _ = results(user, kind, tensors(), kernel=kernel)
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
    _, reference = formula(kind, inputs[0] * 2, *inputs[1:], learned)
    torch.testing.assert_close(outputs, reference)
    pairs = (
        torch.autograd.grad([part.square().sum() for part in parts], [*inputs, learned])
        for parts in (outputs, reference)
    )
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_are_saved_in_recordings(user, kind, tmp_path):
    query, key, _ = tensors()
    mask, score, _, learned = rules(user, kind)
    W = weights(query[:1], key[:1], mask=mask, score=score)
    layer = Layer("layer", "encoder", W, tuple("abcdefghijklm"), tuple("abcdefghijklmnopq"))
    Recording("", "", (layer,)).save(tmp_path / "run.regard")
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
    layer = Layer("layer", "encoder", W, tuple("abcdefghijklm"), tuple("abcdefghijklmnopq"))
    path = tmp_path / "run.regard"
    Recording("", "", (layer,)).save(path)
    path.write_bytes(path.read_bytes().replace(b"user_rules.EvenDistance", b"os.path.EvenDistanceXXX"))
    with pytest.raises(InvalidFile):
        regard.load(path)


def test_user_rules_are_listed_and_known_by_name(user):
    facts = gather()
    assert "every second key" in str(facts["masks"])
    assert "learned temperature" in str(facts["scores"])
    assert "Gini coefficient" in str(facts["measures"])
    query, key, _ = tensors()
    assert weights(query, key).measure("gini_coefficient", "half_entropy").keys() == {
        "gini_coefficient",
        "half_entropy",
    }


@pytest.mark.parametrize("kind", ["subclass", "scratch"])
def test_user_rules_pass_regard_testing_check(user, kind):
    mask, score, measure, _ = rules(user, kind)
    for rule in (mask, score, measure[0]):
        check(rule, shapes=[(2, HEADS, QUERIES, KEYS)], head_dim=4)


def test_classes_of_one_name_in_two_modules_are_both_known():
    first, second = (
        type("Mine", (Mask,), {"__module__": module, "allowed": lambda self, tile: tile.kv_idx >= 0}) for module in "ab"
    )
    assert (class_by_id("a.Mine"), class_by_id("b.Mine")) == (first, second)
    assert registered(Mask)["mine"] is second


class OutOfRange(Mask):
    """A band whose ranges go beyond the first and the last key."""

    def allowed(self, tile):
        return (tile.kv_idx - tile.q_pos).abs() <= 3

    def key_range(self, tile):
        low, high = tile.position_range
        return KeyRange(low - 3, high + 4)

    def full_key_range(self, tile):
        low, high = tile.position_range
        return KeyRange(high - 3, low + 4)


def test_ranges_of_a_mask_may_go_beyond_the_keys():
    check(OutOfRange())


class Argmax(Measure):
    """For how many queries a key has the highest score: a count, which has no gradient."""

    axis = "keys"

    def compute(self, block):
        strongest = block.scores.argmax(-1, keepdim=True)
        return torch.zeros_like(block.weights).scatter(-1, strongest, 1.0).sum(-2)


class ArgmaxWithoutLastKey(Argmax):
    needs_all_keys = False

    def compute(self, block):
        return super().compute(block) * (block.kv_idx < block.kv_idx[-1])


def test_a_measure_without_a_gradient_can_be_checked():
    check(Argmax())
    with pytest.raises(RuleMismatch, match="ArgmaxWithoutLastKey: result of the kernel 'blockwise' differs"):
        check(ArgmaxWithoutLastKey())


def test_wrong_steps_are_found():
    class Past(Mask):
        def allowed(self, tile):
            return tile.kv_idx <= tile.q_pos

        def steps(self, place):
            return [Step("window", (3, 0))]

    class SumOfSquares(Measure):
        def compute(self, block):
            return block.weights.square().sum(-1)

        def steps(self, place):
            return [Step("entropy")]

    for rule in (Past(), SumOfSquares()):
        with pytest.raises(RuleMismatch, match="of the kernel 'native' differs"):
            check(rule)


class Sized(Mask):
    size: int

    def allowed(self, tile):
        return tile.kv_idx < self.size


class Tagged(Sized):
    tag: ClassVar[str] = "a class variable"


class FromHalf(Sized):
    half: InitVar[int] = 0

    def __post_init__(self, half):
        self.size += 2 * half


def test_annotations_that_are_not_fields_do_not_change_the_constructor():
    assert Tagged(3).size == 3
    assert Tagged.tag == "a class variable"
    assert FromHalf(1, half=2).size == 5

    class Named(regard.Causal):
        tag: ClassVar[str] = "causal"

    assert torch.equal(weights(X, X, mask=Named()).dense(), weights(X, X, mask=regard.Causal()).dense())


@dataclass(slots=True)
class Slots:
    bias: torch.Tensor


class HoldsSlots(Score):
    def __init__(self, slots):
        self.slots = slots

    def __call__(self, query, key, scale, tile):
        return query @ key.mT + self.slots.bias


def test_a_dataclass_with_slots_is_a_leaf():
    x = torch.ones(1, 1, 3, 4)
    assert weights(x, x, score=HoldsSlots(Slots(torch.tensor(1.0)))).entropy().shape == (1, 1, 3)
    hidden = HoldsSlots(Slots(torch.tensor(1.0, requires_grad=True)))
    with pytest.raises(InvalidArgument, match="HoldsSlots uses a tensor that requires grad"):
        weights(x, x, score=hidden).entropy()


def test_rules_work_under_another_default_device():
    x = torch.ones(1, 1, 700, 4)
    documents, causal = regard.Documents(torch.arange(700) // 300), regard.Causal()
    expected = [
        attend(x, x, x, mask=mask, measure=regard.TopK(2)).measured["topk"].values for mask in (documents, causal)
    ]
    torch.set_default_device("meta")
    try:
        for mask, values in zip((documents, causal), expected, strict=True):
            att = attend(x, x, x, mask=mask, measure=regard.TopK(2), dropout=0.5)
            assert torch.equal(att.measured["topk"].values, values)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda b, h, q, k: torch.ones(9, 9, dtype=torch.bool), "to work elementwise"),
        (lambda q, k: q >= k, r"failed with TypeError: .*takes 2 positional arguments.*\(b, h, q_idx, kv_idx\)"),
        (lambda b, h, q, k: q >= k and q - k < 5, "failed with RuntimeError: .*use & | ~ instead of and, or, not"),
    ],
)
def test_an_invalid_mask_function_is_rejected(function, message):
    x = torch.zeros(1, 1, 9, 4)
    with pytest.raises(InvalidArgument, match=f"mask: .*{message}"):
        weights(x, x, mask=function)


ERRORS = [
    (lambda: regard.BlockMean(0), InvalidArgument, "BlockMean.block_size: expected an int of at least 1, got 0"),
    (lambda: regard.Diagonal(1.5), InvalidType, "Diagonal.offset: expected an int"),
    (lambda: regard.TopK(0), InvalidArgument, "TopK.k: expected an int of at least 1, got 0"),
    (lambda: regard.DistanceHistogram(-1), InvalidArgument, "DistanceHistogram.max_distance: expected"),
    (lambda: regard.Bias(0.5), InvalidType, "Bias.tensor: expected a floating-point tensor, got float"),
    (
        lambda: regard.Padding(torch.ones(2, 3, dtype=torch.int64)),
        InvalidType,
        r"an attention_mask with \.bool\(\)",
    ),
    (lambda: weights(X, X, score=X), InvalidType, r"score: .* got a tensor; .*regard\.Bias\(tensor\)"),
    (lambda: weights(X, X, score="sum"), InvalidArgument, "score: unknown name 'sum'"),
    (lambda: attend(X, X, X, measure=regard.TopK), InvalidType, r"got the class TopK; use TopK\(\.\.\.\)"),
    (lambda: check(PerHead()), InvalidArgument, r"rule: PerHead failed .* pass shapes=\[\.\.\.\]"),
]


def test_errors_tell_the_user_what_to_do(subtests):
    for make, error, message in ERRORS:
        with subtests.test(message), pytest.raises(error, match=message):
            make()


X = torch.zeros(1, 1, 3, 4)


class PerHead(Score):
    """A user's score for exactly three heads, which does not check that."""

    def __call__(self, query, key, scale, tile):
        return query @ key.mT * torch.arange(3.0)[tile.h]


def test_an_ambiguous_2d_mask_warns_at_the_line_of_the_caller():
    x, mask = torch.randn(3, 1, 3, 4), torch.ones(3, 3, dtype=torch.bool)
    layer = regard.nn.MultiHeadAttention(4, 1)
    for call in (
        lambda: weights(x, x, mask=mask),
        lambda: attend(x, x, x, mask=mask),
        lambda: layer(x[:, 0], mask=mask),
    ):
        with pytest.warns(
            UserWarning, match=r"\(3, 3\) is taken as \(queries, keys\); .* pass regard\.Padding"
        ) as caught:
            call()
        assert caught[0].filename == __file__


class Product(Score):
    """A user-defined dot product without a scale."""

    def __call__(self, query, key, scale, tile):
        return query @ key.mT * scale


class Distance(Score):
    """A user's bias, which ignores the scale."""

    def __call__(self, query, key, scale, tile):
        return -(tile.kv_idx - tile.q_pos).abs().to(query.dtype)


@pytest.mark.parametrize("kernel", [None, "reference"])
def test_the_scale_of_a_score_that_defines_none_is_that_of_the_dot_product(kernel):
    query, key, value = torch.randn(3, 1, 2, 9, 16).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attend(query, key, value, score=Product(), kernel=kernel).output, expected)
    distance = -(torch.arange(9) - torch.arange(9)[:, None]).abs().float()
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=distance)
    for score in (Product() + Distance(), Distance() + Product(), Distance() + regard.ScaledDotProduct()):
        torch.testing.assert_close(attend(query, key, value, score=score, kernel=kernel).output, expected)
    weight = torch.randn(16, 16)  # its default scale is 1
    expected = torch.nn.functional.scaled_dot_product_attention(query @ weight, key, value, attn_mask=distance, scale=1)
    for score in (regard.Bilinear(weight) + Distance(), Distance() + regard.Bilinear(weight)):
        torch.testing.assert_close(attend(query, key, value, score=score, kernel=kernel).output, expected)
