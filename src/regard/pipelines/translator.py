"""Translator: text in one language to text in another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import torch

from regard.checks import Checks
from regard.errors import InvalidArgument, short_repr
from regard.generation.beam_search import beam_search, check_search
from regard.generation.sampling import SamplingParams, check_sampling, sample
from regard.generation.state import Hypothesis
from regard.models.encoder_decoder import EncoderDecoder
from regard.pipelines.base import Pipeline, check_token_counts
from regard.pipelines.batching import pack, split_sentences
from regard.pipelines.confidence import ConfidenceModel
from regard.pipelines.recording import axis_tokens, record_teacher_forced, teacher_forcing_batch
from regard.pipelines.tracing import trace_model_layer
from regard.pipelines.translation import Translation, join_parts
from regard.recordings.layer import LayerList
from regard.recordings.recording import Recording
from regard.text.base import BaseTokenizer
from regard.text.display import is_blank
from regard.text.validation import check_texts
from regard.tracing.trace import Trace

BUNDLED_MODEL = "bundled/tatoeba-en-de"
EXTRA_TOKENS_PER_LINE = 8  # added to the length of each line: a step of a beam costs memory, however short the line is
# Models are hardly trained on longer sources, and omit some of what they say. Longer lines are translated in parts;
# only a single sentence may have as many tokens as the model takes.
MAX_SOURCE_TOKENS = 100


class Translator(Pipeline[EncoderDecoder]):
    """An encoder-decoder with its tokenizer, also a Marian of Hugging Face's transformers, such as those of OPUS-MT.

    See `Pipeline` for the arguments.

    Raises:
        InvalidArgument: If the tokenizer has ids that the model does not have, or another EOS id.
    """

    model_type = EncoderDecoder
    max_batch_tokens = 2400  # more is not faster on a CPU
    confidence_model: ConfidenceModel | None = None
    """Computes the confidence of translations; read from the folder of the model, if it has one."""

    def __init__(self, model: EncoderDecoder, tokenizer: BaseTokenizer, name: str = "model") -> None:
        super().__init__(model, tokenizer, name)
        if tokenizer.eos_id != model.config.eos_id:
            expected = f"expected a tokenizer with eos_id {model.config.eos_id} as in the model"
            raise InvalidArgument(f"{name}: {expected}, got {tokenizer.eos_id}; use the model's own tokenizer")

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Load a model and its tokenizer from a folder; see `Pipeline.load`.

        Args:
            folder: As for `Pipeline.load`. Default: the English-German model that is bundled with the package.
            dtype: As for `Pipeline.load`.
            device: As for `Pipeline.load`.
        """
        folder = str(files("regard").joinpath(BUNDLED_MODEL)) if folder is None else folder
        translator = super().load(folder, dtype=dtype, device=device)
        translator.confidence_model = ConfidenceModel.load(Path(folder))
        return translator

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        nbest: int = 1,
        length_penalty: float | None = None,
        sampling: SamplingParams | None = None,
        line_names: Sequence[str] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> list[list[Translation]]:
        """Translate each line.

        A long line is translated in parts of whole sentences. If the length limit cuts the translation of several
        sentences, they are translated one by one.

        Args:
            lines: Texts; the translation of a line without a visible character is empty.
            beam: As for `regard.generation.beam_search`. Default: 5.
            nbest: Number of translations of each line.
            length_penalty: As for `regard.generation.beam_search`. Default: 1.
            sampling: Sample translations. Default: beam search.
            line_names: Name of each line in error messages. Default: ``lines[0]``, ``lines[1]``, ...
            progress: Called after each batch with the number of lines that it is worth; all calls add up to the number
                of lines, and a long line is several calls.

        Returns:
            Up to nbest translations of each line, best first; one of an empty line.

        Raises:
            InvalidType: If lines are not a sequence of str, or an option has a wrong type.
            InvalidArgument: If an option has a wrong value, or a line has a sentence that is too long.
        """
        check_sampling(sampling)
        search = {"beam": beam, "length_penalty": length_penalty}
        search = {name: value for name, value in search.items() if value is not None}
        options: dict[str, Any] = {"nbest": nbest, **search}
        with Checks() as checks:
            if sampling is None:
                check_search(checks, search.get("beam", 5), nbest, search.get("length_penalty", 1.0))
            else:
                checks.integer("nbest", nbest, low=1)
                for name, value in search.items():
                    checks.fail(f"{name}: expected None with sampling, got {short_repr(value)}; leave one of them out")
        if sampling is not None:  # one generator for all batches, so that equal lines get different samples
            options = {"nbest": nbest, "sampling": vars(sampling.with_generator(self.device))}
        parts = self._split_long_lines(lines, line_names)
        sources = [ids for line in parts for ids in line]
        advance = _in_units(progress, len(lines), len(sources))
        results = iter(self._translate_parts(sources, options, advance))
        penalty = None if sampling is not None else search.get("length_penalty", 1.0)  # the default of beam_search
        return [
            self._join_parts(line, [part for _ in parts_of_line for part in next(results)], penalty)
            for line, parts_of_line in zip(lines, parts, strict=True)
        ]

    def check_lines(self, lines: Sequence[str], line_names: Sequence[str] | None = None) -> None:
        """Check that lines can be translated; arguments and errors are those of `translate`."""
        self._split_long_lines(lines, line_names)

    def record(self, text: str, target: str | None = None) -> Recording:
        """Record what every layer and head attends to while a text is translated.

        The weights are views of one forward pass over the whole translation (teacher forcing), and equal those of its
        generation.

        Args:
            text: A text, not empty.
            target: The translation to record. Default: the best of beam search.

        Returns:
            Recording: The layers of the encoder, of the decoder's self-attention and of its cross-attention; ``texts``
            has ``source`` and ``translation``.

        Raises:
            InvalidType: If a text is not a str.
            InvalidArgument: If the text is empty, or a text is too long.
        """
        return self._record(text, *self._encode_pair(text, target))

    def translate_and_record(self, text: str) -> tuple[Translation, Recording]:
        """The best translation of a text and its recording, as `record` makes it, by one search.

        Unlike `translate`, it never translates a long text in parts. Errors are those of `record`.
        """
        source_ids, best = self._search(text, None)
        (translation,) = self._join_parts(text, [[best]], length_penalty=1.0)
        return translation, self._record(text, source_ids, self._with_eos(best))

    def _record(self, text: str, source_ids: list[int], target_ids: list[int]) -> Recording:
        texts = {"source": text, "translation": self.tokenizer.decode([target_ids])[0]}
        layers = record_teacher_forced(self.model, self.tokenizer, source_ids, target_ids)
        return Recording(title=text, model_name=self.name, layers=LayerList(layers), texts=texts)

    def trace(self, text: str, layer: str | None = None, target: str | None = None) -> Trace:
        """Trace the computation of one attention layer while a text is translated, step by step.

        Args:
            text: A few words, for a readable trace.
            layer: Name of the layer: ``"encoder.0"``, ``"decoder.0"``, ``"cross.0"``, ... Default: the first.
            target: As for `record`.

        Returns:
            Trace: As from `regard.trace`, with an axis of heads. It begins with the token ids in the first layer
            of encoder and decoder, in others with the output of the layer below, and ends with the output of the block,
            in the last of the decoder with the probabilities of tokens.

        Raises:
            InvalidType: If a text is not a str.
            InvalidArgument: If the text is empty, a text is too long, or there is no such layer.
        """
        source_ids, target_ids = self._encode_pair(text, target)
        batch = teacher_forcing_batch(self.model, source_ids, target_ids)
        axes = axis_tokens(self.model, self.tokenizer, source_ids, target_ids)
        title = self.tokenizer.decode([source_ids])[0]
        return trace_model_layer(self.model, layer, batch, axes, title, self.tokenizer.convert_ids_to_tokens)

    def _encode_pair(self, text: str, target: str | None) -> tuple[list[int], list[int]]:
        """Token ids of a text, and of its translation with EOS: the target, or the best of beam search."""
        source_ids, best = self._search(text, target)
        return source_ids, self._with_eos(best)

    def _search(self, text: str, target: str | None) -> tuple[list[int], Hypothesis]:
        """Token ids of a text, and its translation: the target, or the best of beam search."""
        check_texts([text, target or ""], names=["text", "target"])
        with Checks() as checks:
            checks.that(not is_blank(text), "text: expected a text, got an empty one")
        (source_ids,), (target_ids,) = self.tokenizer.encode([text]), self.tokenizer.encode_targets([target or ""])
        check_token_counts([("text", source_ids), ("target", target_ids)], self._max_source_tokens)
        return source_ids, self._generate([source_ids])[0][0] if target is None else Hypothesis(target_ids, 0.0)

    def _with_eos(self, hypothesis: Hypothesis) -> list[int]:
        return [*hypothesis.tokens, self.model.config.eos_id] if hypothesis.finished else hypothesis.tokens

    @property
    def _max_source_tokens(self) -> int:
        """Maximum number of tokens of a source, without EOS."""
        return self.model.config.max_seq_len - 1

    def _split_long_lines(self, lines: Sequence[str], line_names: Sequence[str] | None) -> list[list[list[int]]]:
        """Token ids of the parts of each line: one part of a short line, none of one that `is_blank`."""
        with Checks() as checks:
            if checks.sequence("lines", lines, "str") and line_names is not None and len(line_names) != len(lines):
                checks.fail(f"line_names: expected one for each of {len(lines)} lines, got {len(line_names)}")
        check_texts(lines, "lines", line_names)
        names = [f"lines[{index}]" for index in range(len(lines))] if line_names is None else line_names
        limit = min(MAX_SOURCE_TOKENS, self._max_source_tokens)
        parts: list[list[list[int]]] = []
        with Checks() as checks:
            for name, line, ids in zip(names, lines, self.tokenizer.encode(lines), strict=True):
                if is_blank(line):  # a model invents a translation of nothing
                    parts.append([])
                    continue
                if len(ids) <= limit:
                    parts.append([ids] if ids else [])
                    continue
                sentences = self._encode_sentences(line)
                longest = max(map(len, sentences))
                expected = f"{name}: expected sentences of at most {self._max_source_tokens} tokens"
                checks.that(longest <= self._max_source_tokens, f"{expected}, got one of {longest}; split it")
                parts.append(list(pack(sentences, limit)))
        return parts

    def _encode_sentences(self, line: str) -> list[list[int]]:
        """Token ids of each sentence."""
        return [ids for ids in self.tokenizer.encode(split_sentences(line)) if ids]

    def _translate_parts(
        self, parts: Sequence[list[int]], options: dict[str, Any], advance: Callable[[int], None]
    ) -> list[list[list[Hypothesis]]]:
        """Hypotheses of each part; if they are cut and the part has several sentences, those of each sentence."""

        def run(
            sources: Sequence[list[int]], advance: Callable[[int], None] = lambda count: None
        ) -> list[list[Hypothesis]]:
            def generate(batch: list[list[int]]) -> list[list[Hypothesis]]:
                hypotheses = self._generate(batch, **options)
                advance(len(batch))
                return hypotheses

            return self._run_batched(sources, generate, EXTRA_TOKENS_PER_LINE)

        results = [[hypotheses] for hypotheses in run(parts, advance)]
        cut = [index for index, (hypotheses,) in enumerate(results) if not hypotheses[0].finished]
        sentences = {index: self._encode_sentences(self.tokenizer.decode([parts[index]])[0]) for index in cut}
        sentences = {index: sources for index, sources in sentences.items() if len(sources) > 1}
        retries = iter(run([ids for sources in sentences.values() for ids in sources]))
        for index, sources in sentences.items():
            results[index] = [next(retries) for _ in sources]
        return results

    def _generate(
        self, sources: Sequence[list[int]], nbest: int = 1, sampling: dict[str, Any] | None = None, **search: Any
    ) -> list[list[Hypothesis]]:
        """Up to nbest hypotheses of each source, best first."""
        input_ids, lengths = self._pad([[*ids, self.model.config.eos_id] for ids in sources])
        if sampling is None:
            return beam_search(self.model, input_ids, lengths, nbest=nbest, **search)
        repeated = input_ids.repeat_interleave(nbest, dim=0), lengths.repeat_interleave(nbest)
        samples = sample(self.model, *repeated, **sampling)
        groups = (samples[start : start + nbest] for start in range(0, len(samples), nbest))
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]

    def _join_parts(
        self, line: str, parts: Sequence[Sequence[Hypothesis]], length_penalty: float | None
    ) -> list[Translation]:
        return join_parts(line, parts, self.tokenizer, self.confidence_model, length_penalty)


def _in_units(progress: Callable[[float], None] | None, total: int, count: int) -> Callable[[int], None]:
    """A function that reports each of count parts as its share of the total; without parts, all is done."""
    if progress is None:
        return lambda parts: None
    if not count:
        progress(total)
    return lambda parts: progress(parts * total / count)
