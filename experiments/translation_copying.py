"""Whether a translator copies numbers, dates and names: held-out sentences with substituted ones, and BLEU.

    python experiments/translation_copying.py TATOEBA

500 sentences of the test set have other numbers, dates and names, made as for training (`regard.data.substitution`),
but with names that no training list has. A number or date is right if all of them stand in the translation, written as
in German, in digits or words; a name is right if it stands there letter by letter, or in the genitive.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from results import FOLDER, command, write_result

from regard.data import substitution
from regard.metrics.translation import corpus_scores
from regard.pipelines import Translator, fastest_dtype
from regard.pipelines.translation import Translation
from regard.text.numerals import ENGLISH, GERMAN, Language
from regard.text.readers import group_references, read_pairs

WORD = re.compile(r"[^\W\d_]+")
MODEL = Path(__file__).parent.parent / "src/regard/bundled/tatoeba-en-de"


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


HELD_OUT: dict[substitution.NameKind, tuple[str, ...]] = {
    "masculine": words(
        """Ansgar Barnaby Benedikt Caspian Crispin Dorian Ewald Ferdinand Gernot Hartmut Horace Isidor Jarvis Kasimir
        Lionel Mordecai Nestor Osvaldo Percival Quentin Ragnar Siegbert Thaddeus Ulrich Volker Wendelin Xaver Zacharias
        Ichiro Tunde"""
    ),
    "feminine": words(
        """Adelheid Bernadette Clementine Dorothea Eleonora Felicity Gwendolyn Hermine Isolde Josephine Kunigunde
        Leopoldine Marjorie Nerida Ottilie Penelope Quirina Rosalind Seraphina Tabitha Undine Valeria Winifred Xenia
        Yolanda Zelda Ngozi Sunita Haruka Maeve"""
    ),
    "surname": words(
        """Abernathy Castellanos Drummond Eichendorff Fairbanks Grünwald Iwasaki Jablonski Kettering
        Lindemann Macallister Nordstrom Ostrowski Pemberton Quimby Rasmussen Steinbrenner Thorvald Underhill
        Vandermeer Whitaker Yevtushenko Zambrano Adeyemi Bhattacharya Chukwu Delacroix Fukuda"""
    ),
    "place": words(
        """Aberystwyth Bratsk Cuxhaven Dunedin Eisenach Fargo Gijon Hobart Inverness Jaipur Kumasi Launceston Mendoza
        Nuuk Oaxaca Paderborn Quedlinburg Roanoke Szeged Tromso Umea Valparaiso Wolfsburg Yonkers Zwickau Boise
        Chemnitz Eindhoven Galveston Hyderabad"""
    ),
}
BY_HAND = """\
I was born on October 17, 1983.
The meeting is on Thursday at 4:45.
My phone number is 555-8194.
The ticket costs 3,450 euros.
She lives at 27 Maple Street.
We paid $1,299 for the computer.
Please come to Ashgabat with Mr. Okonjo.
Svenja and Ramesh are getting married on March 3.
The temperature rose to 38.5 degrees.
Our train leaves at 17:52.
My neighbor's name is Wojciech Brzezinski.
I moved to Tallahassee in 2011.
Room 1408 is on the 14th floor.
There were 12,750 people in the stadium.
I live at Lindenstraße 118.
Dr. Hagemann will see you on Tuesday.
The company sold 4.7 million cars in 2019.
Is Katarzyna's birthday in August?
He ran 42 kilometers in 3 hours and 21 minutes.
I'm looking for 9 Grosvenor Road.
""".splitlines()


def main(
    tatoeba: Annotated[Path, typer.Argument(help="Folder with test.tsv.gz: source, tab, target.")],
    model: Annotated[Path, typer.Option(help="Model folder.")] = MODEL,
    count: Annotated[int, typer.Option(help="Number of sentences with substitutions.")] = 500,
    output: Annotated[Path, typer.Option(help="Result.")] = FOLDER / "translation-copying.json",
) -> None:
    """Translate sentences by hand, those with substitutions and the test set; print what arrives, and write it."""
    translator = Translator.load(model, dtype=fastest_dtype())
    for source, (best,) in zip(BY_HAND, translator.translate(BY_HAND), strict=True):
        print(f"{source} → {best.text}" + (f"   (missing: {', '.join(best.missing)})" if best.missing else ""))
    pairs = list(read_pairs([tatoeba / "test.tsv.gz"]))
    sentences = held_out(pairs, count)
    shares = copied(sentences, [best for (best,) in translator.translate([each.source for each in sentences])])
    print(", ".join(f"{name} {value:.3f}" for name, value in shares.items()))
    references = group_references(pairs)
    best = [translations[0].text for translations in translator.translate(list(references))]
    scores = {name: score.score for name, score in corpus_scores(best, list(references.values())).items()}
    print(", ".join(f"{name} {value:.1f}" for name, value in scores.items()))
    write_result(
        output,
        f"numbers and names that the bundled translator copies, in {count} sentences with substitutions",
        f"{shares['numbers']:.1%} of numbers and dates, {shares['names']:.1%} of names; BLEU {scores['bleu']:.1f}",
        "52.0 BLEU before the training on substitutions",
        command("translation_copying.py TATOEBA"),
        shares=shares,
        scores=scores,
    )


class Sentence(NamedTuple):
    """A sentence with what its translation must contain."""

    source: str
    values: Counter[str]  # of numbers, dates and times
    names: list[str]


def held_out(pairs: list[tuple[str, str]], count: int) -> list[Sentence]:
    """Sources of pairs with substitutions by names that no training list has."""
    known = {word for pair in pairs for text in pair for word in WORD.findall(text)}
    known |= {name for names in substitution.LISTS.values() for name in names}
    sentences: list[Sentence] = []
    for source, reference in substitution.Substitution(pairs, ("en", "de"), seed=50, names=HELD_OUT).derive(count):
        in_reference = set(WORD.findall(reference))
        names = [name for name in WORD.findall(source) if name not in known and {name, f"{name}s"} & in_reference]
        sentences.append(Sentence(source, values(ENGLISH, source) & values(GERMAN, reference), names))
    return sentences


def values(language: Language, text: str) -> Counter[str]:
    """Numbers, times, months and weekdays; ordinals are numbers, as at the end of a sentence."""
    kinds = {"month": "month ", "weekday": "weekday "}
    return Counter(kinds.get(each.kind, "") + each.value for each in language.find(text))


def copied(sentences: Sequence[Sentence], translations: Sequence[Translation]) -> dict[str, float]:
    """Shares of numbers and dates, of names, and of sentences in which all are right; and how many wrong are marked."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for sentence, best in zip(sentences, translations, strict=True):
        found, words = values(GERMAN, best.text), set(WORD.findall(best.text))
        num_values = (sentence.values & found).total()
        num_names = sum(bool({name, f"{name}s"} & words) for name in sentence.names)
        is_right = num_values == sentence.values.total() and num_names == len(sentence.names)
        right.update(
            numbers=num_values, names=num_names, sentences=is_right, marked=not is_right and not best.is_reliable
        )
        total.update(numbers=sentence.values.total(), names=len(sentence.names), sentences=1, marked=not is_right)
        if not is_right:
            print(f"wrong: {sentence.source} → {best.text}" + " (not marked)" * bool(best.is_reliable))
    return {name: right[name] / total[name] if total[name] else 1.0 for name in total}


if __name__ == "__main__":
    typer.run(main)
