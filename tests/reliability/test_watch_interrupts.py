"""Ctrl-C at every point of opening and closing a watch: nothing is left of it, and a new watch works."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

IS_ALL = os.environ.get("REGARD_TEST_ALL") == "1"
SAMPLES = 12
"""Points of each case in an ordinary run; with ``--all`` there are all lines, the first and the last time."""
SIGNALS = 600 if IS_ALL else 30
WATCHING = str(Path(regard.watching.__file__).parent)
INTERFACES = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)


class Interrupter:
    """Raises KeyboardInterrupt at the n-th function call or line in `regard.watching`; without a number at none."""

    def __init__(self, number: int | None = None) -> None:
        self.number = number
        self.points: list[tuple[CodeType, int, str]] = []

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(WATCHING):
            return None
        if event in ("call", "line"):
            self.points.append((frame.f_code, frame.f_lineno, event))
            if len(self.points) == self.number:  # which also ends tracing
                raise KeyboardInterrupt
        return self

    def start(self):
        sys.settrace(self)


class Model:
    """A model, its input, and its output without a watch."""

    def __init__(self, model: nn.Module, *args: torch.Tensor) -> None:
        self.model, self.args = model.eval(), args
        self.expected = self.run()

    def run(self) -> torch.Tensor:
        with torch.no_grad():
            output = self.model(*self.args)
        return output if isinstance(output, torch.Tensor) else output[0]


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.projections = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        return functional.scaled_dot_product_attention(x, *(project(x) for project in self.projections))


def _bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **sizes)
    return Model(transformers.BertModel(config, add_pooling_layer=False), torch.tensor([[5, 6, 7]]))


def _gpt2():
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(vocab_size=30, n_positions=16, n_embd=8, n_layer=1, n_head=2, **ids)
    return Model(transformers.GPT2Model(config), torch.tensor([[5, 6, 7]]))


MODELS = {"interface": _bert, "torch": lambda: Model(Plain(), torch.randn(1, 1, 3, 4))}


def _local_sdpa(*args, **kwargs):
    return ALL_ATTENTION_FUNCTIONS._global_mapping["sdpa"](*args, **kwargs)


def state(*models: Model):
    """Everything that a watch may touch, by identity."""
    return {
        "interfaces": [(dict(each._local_mapping), dict(each._global_mapping), set(vars(each))) for each in INTERFACES],
        "torch": (functional.scaled_dot_product_attention, functional.multi_head_attention_forward),
        "modes": torch.overrides._get_current_function_mode_stack(),
        "stance": torch._dynamo.eval_frame._stance,
        "active": regard.watching.registry.active_listeners(),
        "hooks": [
            [dict(each) for name, each in vars(module).items() if "hooks" in name and isinstance(each, dict)]
            for model in models
            for module in model.model.modules()
        ],
        "implementations": [getattr(model.model, "config", None) and model.model.config.to_dict() for model in models],
    }


def assert_works(model: Model):
    """The output is unchanged, and a new watch records it."""
    assert torch.equal(model.run(), model.expected)
    with regard.watch(model.model, "entropy") as result:
        assert torch.equal(model.run(), model.expected)
    assert len(result.layers) == 1
    weights = result.layers[0].weights.dense()
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def watch_once(model: Model, interrupter: Interrupter):
    """Open and close a watch, with an interrupter at both, but not while the model runs."""
    try:
        interrupter.start()
        with regard.watch(model.model) as result:
            sys.settrace(None)
            model.run()
            interrupter.start()
        sys.settrace(None)
        return result
    finally:
        sys.settrace(None)


def forward_once(model: Model, interrupter: Interrupter):
    """Watch a model, with an interrupter while it runs."""
    try:
        with regard.watch(model.model) as result:
            try:
                interrupter.start()
                model.run()
            finally:
                sys.settrace(None)
        return result
    finally:
        sys.settrace(None)


def _points(run, model: Model) -> list[int]:
    """The numbers of the points at which to interrupt: the first and the last time at each line, or some of them."""
    counter = Interrupter()
    run(model, counter)
    numbered = list(enumerate(counter.points, 1))
    first, last = {point: number for number, point in reversed(numbered)}, {point: number for number, point in numbered}
    every = sorted({*first.values(), *last.values()})
    return every if IS_ALL else sorted({1, every[-1], *random.Random(0).sample(every, SAMPLES)})


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    sys.settrace(None)
    regard.watching.end_all()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("around", ["nothing", "another watch", "an own function"])
@pytest.mark.parametrize("run", [watch_once, forward_once], ids=["opening and closing", "running"])
@pytest.mark.parametrize("name", MODELS)
def test_an_interrupt_leaves_nothing(name, run, around):
    model, other = MODELS[name](), _gpt2()
    with ExitStack() as stack:
        if around == "another watch":
            stack.enter_context(regard.watch(other.model))
            stack.callback(other.run)
        if around == "an own function":
            ALL_ATTENTION_FUNCTIONS["sdpa"] = _local_sdpa
            stack.callback(ALL_ATTENTION_FUNCTIONS.pop, "sdpa")
        assert_works(model)  # which also wraps modules that the other watch does not
        before = state(model, other)
        for number in _points(run, model):
            interrupter = Interrupter(number)
            try:
                run(model, interrupter)
            except KeyboardInterrupt:
                pass
            else:
                assert run is forward_once  # Python ignores an exception while it frees a generator
            assert len(interrupter.points) == number
            assert state(model, other) == before, f"point {number}"
            assert_works(model)
            assert state(model, other) == before, f"after another watch, point {number}"


@pytest.mark.parametrize("name", MODELS)
def test_a_new_watch_works_while_a_traceback_lives(name):
    model = MODELS[name]()
    before = state(model)
    for number in _points(watch_once, model):
        try:
            watch_once(model, Interrupter(number))
        except KeyboardInterrupt as error:
            kept = error
        assert_works(model)
        del kept
        assert state(model) == before, f"point {number}"


@pytest.mark.parametrize("name", MODELS)
def test_end_all_ends_what_an_interrupt_left_while_a_traceback_lives(name):
    model = MODELS[name]()
    before = state(model)
    for number in _points(watch_once, model):
        try:
            watch_once(model, Interrupter(number))
        except KeyboardInterrupt as error:
            kept = error
        regard.watching.end_all()
        assert state(model) == before, f"point {number}"
        del kept


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C while objects are freed
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of POSIX")
@pytest.mark.parametrize("name", MODELS)
def test_signals_leave_nothing(name):
    model, rng = MODELS[name](), random.Random(0)
    before, armed, interrupted = state(model), False, 0

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(SIGNALS):
            delay = rng.uniform(1e-6, 6e-3)
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, delay)
                while armed:  # so that each signal meets a watch
                    with regard.watch(model.model):
                        model.run()
            except KeyboardInterrupt:
                interrupted += 1
            torch.set_grad_enabled(True)  # torch's `no_grad` does not restore it if the signal meets its own code
            assert state(model) == before, f"signal {number} after {delay}"
            assert_works(model)
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupted > 0.9 * SIGNALS  # Python ignores an exception while it frees an object


def test_a_watch_without_its_block_ends():
    model = _bert()
    before = state(model)
    regard.watch(model.model).__enter__()
    assert state(model) == before
    kept = regard.watch(model.model)
    kept.__enter__()
    with pytest.raises(
        InvalidArgument, match=r"being watched already; end that watch, or all of them with regard\.wat"
    ):
        regard.watch(model.model).__enter__()
    del kept
    assert state(model) == before


def test_end_all_ends_open_watches():
    models = [_bert(), _gpt2(), MODELS["torch"]()]
    before = state(*models)
    with ExitStack() as stack:
        results = [stack.enter_context(regard.watch(model.model)) for model in models]
        for model in models:
            model.run()
        regard.watching.end_all()
        assert state(*models) == before
        for model in models:
            assert_works(model)
    assert [len(result.layers) for result in results] == [1, 1, 1]
    regard.watching.end_all()  # without any


def test_the_same_watch_is_not_opened_twice():
    model = _bert()
    before = state(model)
    watch = regard.watch(model.model)
    with watch as result:
        with pytest.raises(InvalidArgument, match="is being watched already"):
            watch.__enter__()
        model.run()
    assert len(result.layers) == 1
    assert state(model) == before


def test_a_closed_watch_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        for make in MODELS.values():
            model = make()
            watch = regard.watch(model.model)
            with watch as result:
                model.run()
            freed = []
            regard.watching.block.finalize(watch, freed.append, True)
            del watch
            assert freed, type(result.model)
    finally:
        gc.enable()


def test_no_warning_without_a_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_works(_bert())
