"""Text in one language to text in another: a model with its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Self

from regard.analysis.layer import LayerList
from regard.analysis.recording import Recording
from regard.analysis.trace import Trace
from regard.checks import Checks
from regard.data.pairs import encoder_batch
from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.generation.beam_search import beam_search
from regard.generation.sampling import SamplingParams, check_sampling, sample
from regard.generation.state import Hypothesis
from regard.models.encoder_decoder import EncoderDecoder
from regard.pipelines.base import Pipeline
from regard.pipelines.confidence import ConfidenceModel
from regard.pipelines.packing import batches_by_length, joined_up_to, sentences_of
from regard.pipelines.teacher import axes_of, fed_batch, teacher_forced
from regard.pipelines.tracing import traced
from regard.text.base import BaseTokenizer
from regard.text.validation import check_texts

BUNDLED_MODEL = "bundled/tatoeba-en-de"
BATCH_WORDS = 2400  # words of the source that are translated together; more is no faster on a CPU
LINE_WORDS = 8  # that each line is counted longer: a step of a beam costs memory, however short its line is
# Subwords of a source: models are hardly trained on longer ones, and leave out some of what they say. A longer line is
# translated in parts; only a single sentence may have as many as the model takes.
LONGEST_PART = 100


@dataclass(frozen=True)
class Translation:
    """A translation of one line.

    Args:
        text: The translation.
        score: Its log-probability; from beam search divided by the length penalty. Of a line that was translated in
            parts it is the sum of theirs.
        tokens: Its subwords, readable.
        finished: Whether it ended by itself; False where the length limit cut it, or a part of it.
        confidence: Probability in [0, 1] that the translation is acceptable: for the bundled model, that its chrF
            against a reference is at least 60. Of a line that was translated in parts it is the smallest of theirs.
            None with sampling, for an empty line, and for models without a ``confidence.json``.
        is_reliable: Whether the confidence reaches the threshold in ``confidence.json``, 0.5 for the bundled model.
            None without a confidence.
    """

    text: str
    score: float
    tokens: tuple[str, ...]
    finished: bool = True
    confidence: float | None = None
    is_reliable: bool | None = None


class Translator(Pipeline[EncoderDecoder]):
    """An encoder-decoder with its tokenizer, also a Marian of Hugging Face's transformers, such as those of OPUS-MT.

    See `Pipeline` for the arguments.
    """

    model_type = EncoderDecoder
    confidence_model: ConfidenceModel | None = None
    """Computes the confidence of translations; read from the folder of the model, where it has one."""

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
    ) -> list[list[Translation]]:
        """Translate each line.

        Lines are sorted by length into batches, and come back in their order. An empty line stays empty. A long line
        is translated in parts of whole sentences, and a part whose translation the length limit cut sentence by
        sentence.

        Args:
            lines: Texts.
            beam: As for :func:`regard.generation.beam_search`. Default: 5.
            nbest: Translations of each line, best first.
            length_penalty: As for :func:`regard.generation.beam_search`. Default: 1.
            sampling: Draw translations at random, and do not search. Default: search.
            line_names: Name of each line in error messages. Default: "line 1", "line 2", ...

        Returns:
            For each line up to nbest translations; of an empty line one, which is empty.

        Raises:
            InvalidType: If lines are no sequence of str, or sampling is no SamplingParams.
            InvalidArgument: If an option does not fit, or a line has a sentence that is too long; all at once.
        """
        if isinstance(lines, str) or not isinstance(lines, Sequence):
            raise InvalidType(f"lines: expected a sequence of str, got {type(lines).__name__}; pass a list")
        check_sampling(sampling)
        names = [f"line {number}" for number in range(1, len(lines) + 1)] if line_names is None else line_names
        if len(names) != len(lines):
            raise InvalidArgument(f"line_names: expected one for each of {len(lines)} lines, got {len(names)}")
        check_texts(lines, names=names)
        search = {"beam": beam, "length_penalty": length_penalty}
        search = {name: value for name, value in search.items() if value is not None}
        options: dict[str, Any] = {"nbest": nbest, **search}
        if sampling is not None:  # one generator for all batches, so that equal lines get different draws
            with Checks() as checks:
                checks.integer("nbest", nbest, low=1)
                for name, value in search.items():
                    checks.fail(f"{name}: expected None with sampling, got {value!r}; leave one of them out")
            options = {"nbest": nbest, "sampling": vars(sampling.with_generator(self.device))}
        parts = self._parts(lines, names)  # ids of each part of each line
        results = iter(self._translated([ids for line in parts for ids in line], options))
        penalty = None if sampling is not None else search.get("length_penalty", 1.0)  # the default of beam_search
        return [self._joined([each for _ in line for each in next(results)], penalty) for line in parts]

    def record(self, text: str, target: str | None = None) -> Recording:
        """Translate a text, and keep what every layer and head attended to.

        The weights are views of one forward pass over the whole translation, in which every step reads the words
        before it, as when it was written.

        Args:
            text: Not empty.
            target: The translation to look at. Default: the best that beam search finds.

        Returns:
            Recording: The layers of the encoder, of the decoder's self-attention and of its cross-attention; ``texts``
            has ``source`` and ``translation``.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text is empty or too long.
        """
        source, written = self._read(text, target)
        texts = {"source": text, "translation": self.tokenizer.decode([written])[0]}
        layers = teacher_forced(self.model, self.tokenizer, source, written)
        return Recording(title=text, model_name=self.name, layers=LayerList(layers), texts=texts)

    def trace(self, text: str, layer: str | None = None, target: str | None = None) -> Trace:
        """Translate a text, and keep every number of one attention layer's calculation.

        Args:
            text: Not empty; a few words, if one is to look at it.
            layer: ``"encoder.0"``, ``"decoder.0"``, ``"cross.0"`` and so on. Default: the first.
            target: As for `record`.

        Returns:
            Trace: As `regard.trace` gives it, with an axis of heads.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text is empty or too long, or there is no such layer.
        """
        source, written = self._read(text, target)
        batch = fed_batch(self.model, source, written)
        axes = axes_of(self.model, self.tokenizer, source, written)
        title = self.tokenizer.decode([list(source)])[0]
        return traced(self.model.attention_layers, layer, lambda: self.model(*batch), axes, title)

    def _read(self, text: str, translation: str | None) -> tuple[list[int], list[int]]:
        """The ids of a text, and those of the translation to look at, with its end: the best if none is given."""
        given = [("text", text)] + ([] if translation is None else [("translation", translation)])
        check_texts([value for _, value in given], names=[name for name, _ in given])
        if not text.strip():
            raise InvalidArgument("text must not be empty")
        (source,), (target,) = self.tokenizer.encode([text]), self.tokenizer.encode_targets([translation or ""])
        raise_problems(
            [
                f"{name} has {len(ids)} subwords, but the model takes at most {self._longest} at once: shorten it"
                for name, ids in (("text", source), ("translation", target))
                if len(ids) > self._longest
            ]
        )
        best = Hypothesis(target, 0.0) if translation is not None else self._generate([source])[0][0]
        return source, [*best.tokens, self.model.config.eos_id] if best.finished else best.tokens

    @property
    def _longest(self) -> int:
        """The most words of a source, without the one that ends it."""
        return self.model.config.max_seq_len - 1

    def _translated(self, parts: Sequence[list[int]], options: dict[str, Any]) -> list[list[list[Hypothesis]]]:
        """The hypotheses of each part; of one that was cut, where it has several sentences, those of each sentence."""
        found = [[best] for best in self._in_batches(parts, options)]
        cut = [place for place, (best,) in enumerate(found) if not best[0].finished]
        sentences = {place: self._sentences(self.tokenizer.decode([parts[place]])[0]) for place in cut}
        several = {place: each for place, each in sentences.items() if len(each) > 1}
        again = iter(self._in_batches([ids for each in several.values() for ids in each], options))
        for place, each in several.items():
            found[place] = [next(again) for _ in each]
        return found

    def _in_batches(self, parts: Sequence[list[int]], options: dict[str, Any]) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in parts]
        for places in batches_by_length([len(ids) for ids in parts], BATCH_WORDS, LINE_WORDS):
            hypotheses = self._generate([parts[place] for place in places], **options)
            for place, best in zip(places, hypotheses, strict=True):
                found[place] = best
        return found

    def _generate(
        self,
        sources: Sequence[Sequence[int]],
        nbest: int = 1,
        sampling: dict[str, Any] | None = None,
        **search: Any,
    ) -> list[list[Hypothesis]]:
        src, src_lengths = (tensor.to(self.device) for tensor in self._batch(sources))
        if sampling is None:
            return beam_search(self.model, src, src_lengths, nbest=nbest, **search)
        src, src_lengths = src.repeat_interleave(nbest, dim=0), src_lengths.repeat_interleave(nbest)
        drawn = sample(self.model, src, src_lengths, **sampling)
        return [
            sorted(drawn[start : start + nbest], key=lambda hypothesis: -hypothesis.score)
            for start in range(0, len(drawn), nbest)
        ]

    def _batch(self, sources: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.model.config
        return encoder_batch(sources, eos_id=config.eos_id, pad_id=config.pad_id)

    def _parts(self, lines: Sequence[str], names: Sequence[str]) -> list[list[list[int]]]:
        """The ids of each line: none of an empty one, several lists of one that is long."""
        limit = min(LONGEST_PART, self._longest)
        encoded = self.tokenizer.encode(lines)
        parts, objections = [], []
        for name, line, ids in zip(names, lines, encoded, strict=True):
            if len(ids) <= limit:
                parts.append([ids] if ids else [])
                continue
            sentences = self._sentences(line)
            longest = max(len(sentence) for sentence in sentences)
            if longest > self._longest:
                came = f"{name} has a sentence of {longest} subwords"
                objections.append(f"{came}, but the model takes at most {self._longest}: split it")
            parts.append(list(joined_up_to(limit, sentences)))
        raise_problems(objections)
        return parts

    def _sentences(self, line: str) -> list[list[int]]:
        """The ids of each sentence; all of them if the line is nothing but control characters, which end none."""
        return [ids for ids in self.tokenizer.encode(sentences_of(line) or [line]) if ids]

    def _joined(self, parts: list[list[Hypothesis]], length_penalty: float | None = None) -> list[Translation]:
        """The translations of a line: the best of all its parts together, the second best together, and so on.

        Args:
            parts: The hypotheses of each part.
            length_penalty: The one that their scores are divided by; None for sampled ones.
        """
        if not parts:
            return [Translation("", 0.0, ())]
        translations = []
        for together in zip(*parts, strict=False):
            texts = self.tokenizer.decode([hypothesis.tokens for hypothesis in together])
            tokens = [
                token for hypothesis in together for token in self.tokenizer.convert_ids_to_tokens(hypothesis.tokens)
            ]
            score = sum(hypothesis.score for hypothesis in together)
            finished = all(hypothesis.finished for hypothesis in together)
            confidence, is_reliable = self._confidence(together, length_penalty)
            text = " ".join(texts)
            translations.append(Translation(text, score, tuple(tokens), finished, confidence, is_reliable))
        return translations

    def _confidence(
        self, parts: Sequence[Hypothesis], length_penalty: float | None
    ) -> tuple[float, bool] | tuple[None, None]:
        """The smallest confidence of the parts of a translation, and whether it reaches the threshold."""
        model = self.confidence_model
        if model is None or length_penalty is None:
            return None, None
        lengths = [len(part.tokens) + part.finished for part in parts]
        log_probs = [part.score * length**length_penalty for part, length in zip(parts, lengths, strict=True)]
        confidence = min(map(model, log_probs, lengths))
        return confidence, confidence >= model.threshold
