"""Generate the data of the toy recipes: ``python tools/make_toy_data.py`` writes ``src/regard/recipes/toy``.

Four small languages with rules that attention has to learn: English sentences with their German translations (word
order, agreement of articles and adjectives), short stories (which name a pronoun or an object belongs to), reviews
(negation, and which clause decides), and sentences with tagged names (what the same name means at another place). All
texts are random combinations of the words below, so none of them is anyone else's. The same seed writes the same bytes.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "src/regard/recipes/toy"
SIZES = {"train": 4000, "valid": 300, "test": 300}

# English, German, gender
ANIMATE = """dog Hund m|cat Katze f|horse Pferd n|bird Vogel m|cow Kuh f|sheep Schaf n|woman Frau f|man Mann m
child Kind n|girl Mädchen n|teacher Lehrer m|aunt Tante f|friend Freund m|sister Schwester f|baby Baby n"""
THINGS = """ball Ball m|book Buch n|flower Blume f|house Haus n|car Auto n|tree Baum m|lamp Lampe f|letter Brief m
chair Stuhl m|cup Tasse f|picture Bild n|table Tisch m|door Tür f|key Schlüssel m|window Fenster n|bag Tasche f"""
ADJECTIVES = """small klein|big groß|old alt|new neu|red rot|green grün|beautiful schön|white weiß|black schwarz
young jung|clean sauber|strange seltsam"""
# English base form, third person and participle; German infinitive, ich, du, er and participle
VERBS = """see sees seen sehen sehe siehst sieht gesehen|find finds found finden finde findest findet gefunden
buy buys bought kaufen kaufe kaufst kauft gekauft|love loves loved lieben liebe liebst liebt geliebt
draw draws drawn zeichnen zeichne zeichnest zeichnet gezeichnet
wash washes washed waschen wasche wäschst wäscht gewaschen
paint paints painted malen male malst malt gemalt|carry carries carried tragen trage trägst trägt getragen
bring brings brought bringen bringe bringst bringt gebracht
need needs needed brauchen brauche brauchst braucht gebraucht"""
PLACES = """in the garden:im Garten|at home:zu Hause|in the city:in der Stadt|in the kitchen:in der Küche
at school:in der Schule|at the station:am Bahnhof|in the park:im Park"""
# English and German pronoun, index of the person among the forms of a verb: infinitive, ich, du, er
PRONOUNS = [("I", "ich", 1), ("you", "du", 2), ("he", "er", 3), ("she", "sie", 3), ("we", "wir", 0), ("they", "sie", 0)]
HABEN, WERDEN = ("haben", "habe", "hast", "hat"), ("werden", "werde", "wirst", "wird")
KÖNNEN, MÜSSEN = ("können", "kann", "kannst", "kann"), ("müssen", "muss", "musst", "muss")
ARTICLES = {  # English: German stem, and the endings of article and adjective for m, f, n; in the accusative for m
    "the": (("der", "die", "das", "den"), ("e", "e", "e", "en")),
    "this": (("dieser", "diese", "dieses", "diesen"), ("e", "e", "e", "en")),
    "a": (("ein", "eine", "ein", "einen"), ("er", "e", "es", "en")),
    "my": (("mein", "meine", "mein", "meinen"), ("er", "e", "es", "en")),
    "no": (("kein", "keine", "kein", "keinen"), ("er", "e", "es", "en")),
}


def words(text: str, separator: str = " ") -> list[list[str]]:
    """The entries of a list, which `|` or a line end divides, each as its parts."""
    return [entry.split(separator) for entry in text.replace("\n", "|").split("|")]


def pick(draw: random.Random, entries: str, separator: str = " ") -> list[str]:
    """A random entry of a list."""
    return draw.choice(words(entries, separator))


def noun_phrase(draw: random.Random, nouns: str, article: str, *, accusative: bool) -> tuple[str, str]:
    """Article, perhaps an adjective, and a noun, in both languages."""
    english, german, gender = pick(draw, nouns)
    form = 3 if accusative and gender == "m" else "mfn".index(gender)
    articles, endings = ARTICLES[article]
    if draw.random() < 0.5:
        adjective, stem = pick(draw, ADJECTIVES)
        english, german = f"{adjective} {english}", f"{stem}{endings[form]} {german}"
    if article in ("a", "no"):  # "not ... a" is "kein"
        article = "an" if english[0] in "aeiou" else "a"
    return f"{article} {english}", f"{articles[form]} {german}"


def sentence_pair(draw: random.Random) -> str:
    """An English sentence, tab, its German translation."""
    if draw.random() < 0.5:
        subject, german_subject, person = draw.choice(PRONOUNS)
    else:
        subject, german_subject = noun_phrase(draw, ANIMATE, draw.choice(["the", "this", "a", "my"]), accusative=False)
        person = 3
    base, third, participle, *german_forms, german_participle = pick(draw, VERBS)
    is_third = person == 3
    article = draw.choice(["the", "this", "a", "my"])
    kind = draw.choice(["present", "present", "perfect", "future", "can", "must", "question", "negative"])
    is_kein = kind == "negative" and article == "a"
    obj, german_obj = noun_phrase(draw, draw.choice([ANIMATE, THINGS]), "no" if is_kein else article, accusative=True)
    place = german_place = ""
    if kind != "negative" and draw.random() < 0.4:
        place, german_place = (f" {part}" for part in pick(draw, PLACES, ":"))
    adverb = german_adverb = ""
    if kind != "question" and draw.random() < 0.35:
        adverb, german_adverb = pick(draw, "Tomorrow Morgen" if kind == "future" else "Today Heute|Now Jetzt|Here Hier")
    auxiliary = "does" if is_third else "do"
    english_verb, german_verb, end = {
        "present": (third if is_third else base, german_forms[person], ""),
        "perfect": (f"{'has' if is_third else 'have'} {participle}", HABEN[person], german_participle),
        "future": (f"will {base}", WERDEN[person], german_forms[0]),
        "can": (f"can {base}", KÖNNEN[person], german_forms[0]),
        "must": (f"must {base}", MÜSSEN[person], german_forms[0]),
        "question": (base, german_forms[person], ""),
        "negative": (f"{auxiliary} not {base}", german_forms[person], "" if is_kein else "nicht"),
    }[kind]
    rest = f"{german_obj}{german_place}{' ' * bool(end)}{end}"
    if kind == "question":
        english = f"{auxiliary} {subject} {english_verb} {obj}{place}?"
        german = f"{german_verb} {german_subject} {rest}?"
    elif adverb:  # the German verb stays in the second position
        english = f"{adverb} {subject} {english_verb} {obj}{place}."
        german = f"{german_adverb} {german_verb} {german_subject} {rest}."
    else:
        english = f"{subject} {english_verb} {obj}{place}."
        german = f"{german_subject} {german_verb} {rest}."
    return f"{english[0].upper()}{english[1:]}\t{german[0].upper()}{german[1:]}"


GIRLS, BOYS = ["Anna", "Mia", "Lily", "Emma", "Rosa", "Clara"], ["Tom", "Ben", "Max", "Paul", "Leo", "Sam"]
COLORS = ["red", "green", "blue", "white", "black", "yellow", "brown"]
OBJECTS = ["ball", "book", "kite", "boat", "hat", "drum", "cup", "bag", "box", "lamp", "bike", "doll"]
WHERE = ["in the garden", "at the lake", "in the park", "near the school", "under a tree", "on the beach"]


def story(draw: random.Random) -> str:
    """Two children and a thing that changes hands."""
    girl, boy = draw.choice(GIRLS), draw.choice(BOYS)
    (giver, she, her, hers), (taker, he, _, his) = draw.sample(
        [(girl, "she", "her", "her"), (boy, "he", "him", "his")], 2
    )
    color, thing, other = draw.choice(COLORS), *draw.sample(OBJECTS, 2)
    place, where = draw.sample(WHERE, 2)
    start = draw.choice([
        f"{giver} finds a {color} {thing} {place}.",
        f"{giver} has a {color} {thing}. {she.capitalize()} plays with it {place}.",
        f"One day {giver} goes for a walk. {she.capitalize()} sees a {color} {thing} {place} and takes it home.",
        f"It is {giver}'s birthday. {she.capitalize()} gets a {color} {thing} from {hers} mother.",
    ])  # fmt: skip
    middle = draw.choice([
        f"{taker} has no {thing}, so {he} is sad.",
        f"Then {she} meets {taker} {where}. {he.capitalize()} asks {her} if {he} may have the {thing}.",
        f"{taker} wants to play with {her}, but {he} has only a {other}.",
        f"The next day {taker} comes to see {her}. {he.capitalize()} likes the {thing} very much.",
    ])  # fmt: skip
    end = draw.choice([
        f"{giver} gives the {thing} to {taker}. Now {taker} has the {color} {thing}, and {he} is happy.",
        f"{giver} keeps the {thing}. {taker} goes home without the {color} {thing}, and {he} is angry.",
        f"{taker} gives {his} {other} to {giver} and gets the {color} {thing}. Now {giver} has the {other}.",
        f"They play with the {color} {thing} {where}. In the evening {giver} takes {hers} {thing} home.",
    ])  # fmt: skip
    return f"{start} {middle} {end}"


GOOD = ["good", "great", "wonderful", "lovely", "excellent", "friendly", "perfect", "nice"]
BAD = ["bad", "terrible", "awful", "ugly", "boring", "rude", "dirty", "cold"]
TOPICS = ["food", "service", "film", "music", "room", "hotel", "story", "coffee", "waiter", "beach", "concert"]
SURE = ["really", "very", "so", "quite", "just"]


def review(draw: random.Random) -> str:
    """A review of one or two clauses, tab, its class. The last clause decides, and "not" reverses a word."""
    is_positive = draw.random() < 0.5
    topic, other = draw.sample(TOPICS, 2)

    def opinion(positive: bool) -> str:
        if draw.random() < 0.4:
            return f"not {draw.choice(BAD if positive else GOOD)}" + draw.choice(["", " at all"])
        return draw.choice(["", f"{draw.choice(SURE)} "]) + draw.choice(GOOD if positive else BAD)

    text = draw.choice([
        f"The {topic} was {opinion(is_positive)}.",
        f"I found the {topic} {opinion(is_positive)}.",
        f"The {other} was {opinion(not is_positive)}, but the {topic} was {opinion(is_positive)}.",
        f"My friends said that the {topic} was {opinion(not is_positive)}, but I found it {opinion(is_positive)}.",
        f"We thought that the {topic} would be {opinion(not is_positive)}. In the end it was {opinion(is_positive)}.",
        f"The {topic} was {opinion(is_positive)}, and the {other} was {opinion(is_positive)} too.",
    ])  # fmt: skip
    return f"{text}\t{'positive' if is_positive else 'negative'}"


GIVEN_NAMES = ["Anna", "Tom", "Clara", "Leo", "Emma", "Paul", "Rosa", "Sam"]
GIVEN_NAMES_OR_CITIES = ["Charlotte", "Florence", "Sydney", "Austin", "Madison", "Jordan", "Chelsea", "Lincoln"]
SURNAMES = ["Baker", "Stone", "Hill", "Rivers", "Woods", "Lake", "Fields", "Potter"]
CITIES = ["New York", "San Marino", "Port Louis", "Oslo", "Lima", "Cairo", "Delhi", "Rome"]
TRADES = ["Foods", "Airlines", "Motors", "Books"]
NAMED_SENTENCES = """PER lives in LOC .|PER works for ORG in LOC .|ORG hired PER and PER .|LOC is larger than LOC .
Yesterday PER met PER at the station of LOC .|The flight from LOC to LOC was late , said PER of ORG .
PER sold a stone to the baker of LOC .|The potter from LOC wrote to ORG .|Is PER still the head of ORG ?
In LOC , PER climbed a hill near the lake .|ORG and ORG opened offices in LOC .|PER likes LOC , but PER likes LOC .
The woods of LOC belong to ORG .|" I never worked for ORG , " PER told PER ."""


def name(draw: random.Random, kind: str) -> str:
    """A random name of a person, a place or an organization; some words are in names of all kinds."""
    city = draw.choice(draw.choice([CITIES, GIVEN_NAMES_OR_CITIES]))
    if kind == "LOC":
        return city
    if kind == "PER":
        given = draw.choice(draw.choice([GIVEN_NAMES, GIVEN_NAMES_OR_CITIES]))
        return draw.choice([given, f"{given} {draw.choice(SURNAMES)}"])
    owner = draw.choice(SURNAMES)
    partner = draw.choice([surname for surname in SURNAMES if surname != owner])
    trade = f"{owner} {draw.choice(TRADES)}"
    return draw.choice([owner, trade, f"{owner} & {partner}", f"Bank of {city}", f"University of {city}"])


def tagged_sentence(draw: random.Random) -> str:
    """A sentence with names, as a JSON object of its words and their tags in BIO."""
    tokens, tags = [], []
    for word in draw.choice(words(NAMED_SENTENCES)):
        parts = name(draw, word).split() if word in ("PER", "LOC", "ORG") else [word]
        tokens += parts
        tags += ["O"] if parts == [word] else [f"{'I' if index else 'B'}-{word}" for index in range(len(parts))]
    return json.dumps({"tokens": tokens, "tags": tags})


TEXTS: dict[str, Callable[[random.Random], str]] = {
    "pairs.{}.tsv.gz": sentence_pair,
    "stories.{}.txt.gz": story,
    "reviews.{}.tsv.gz": review,
    "names.{}.jsonl.gz": tagged_sentence,
}


def lines(make: Callable[[random.Random], str], seed: int = 1) -> dict[str, list[str]]:
    """The lines of each part; no input of one part is in another."""
    draw, count = random.Random(seed), sum(SIZES.values())
    distinct: dict[str, str] = {}
    while len(distinct) < count:
        line = make(draw)
        distinct.setdefault(line.partition("\t")[0], line)
    remaining = iter(distinct.values())
    return {part: [next(remaining) for _ in range(size)] for part, size in SIZES.items()}


def main(folder: Path = FOLDER) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in TEXTS.items():
        for part, texts in lines(make).items():
            content = "".join(f"{text}\n" for text in texts).encode("utf-8")
            (folder / name.format(part)).write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main()
