"""The screens of a trace's page: what is shown together, in which tables, with which sentences.

Sentences and labels contain names in braces, which the page fills in for a head and a query: ``{query}``, ``{token}``
(the token that the layer reads at this query, which differs in a decoder), ``{key}`` (the one with the largest weight),
``{head}``, and ``{#scores}``, the number of a step at these, or at entries of axes as in ``{#W_Q|feature=0,dim=0}``;
``{#(scores}`` is in parentheses if it is negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.tracing.trace import Trace


@dataclass(frozen=True)
class Column:
    """A column of one number for each row.

    Args:
        title: Its heading.
        source: What `TraceNumbers.values` evaluates in each row; empty for none.
        bar: Whether each number is followed by a bar.
    """

    title: str
    source: str
    bar: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        label: Its name.
        source: What `TraceNumbers.values` evaluates for its features; empty for none.
        columns: The source of each column; empty for none.
        is_result: Whether the rows above lead to it.
    """

    label: str
    source: str = ""
    columns: tuple[str, ...] = ()
    is_result: bool = False


@dataclass(frozen=True)
class NumberTable:
    """A table of numbers.

    Args:
        caption: Its heading.
        axis: The axis of its features, ``"dim"`` or ``"feature"``; empty without features.
        columns: The columns before the features.
        rows: The first rows.
        each: An axis with a row for each entry, between the first and the last rows; empty without.
        source: What is evaluated for the features of these rows; empty for none.
        limit: How many of these rows are shown before the table is opened.
        tail: The last rows.
        follows_key: Whether the token is that of the strongest key, not that of the query.
        is_sum: Whether the rows are terms of a sum, with one scale of colors.
    """

    caption: str = ""
    axis: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    each: str = ""
    source: str = ""
    limit: int = 14
    tail: tuple[Row, ...] = ()
    follows_key: bool = False
    is_sum: bool = False


@dataclass(frozen=True)
class Screen:
    """One step of the page.

    Args:
        slug: Its name in addresses.
        title: Its heading.
        formulas: Its formulas.
        text: What happens and why.
        reading: A sentence with the numbers of the head and the query.
        tables: Its numbers.
    """

    slug: str
    title: str
    formulas: tuple[str, ...]
    text: str
    reading: str
    tables: tuple[NumberTable, ...]


def trace_screens(trace: Trace) -> list[Screen]:
    """The screens of a trace, in order."""
    parts = _Parts(trace)
    builders = (_embedding, _inputs, _projections, _scores, _softmax, _outputs)
    return [screen for build in builders for screen in build(parts)]


class _Parts:
    """The steps of a trace by name."""

    def __init__(self, trace: Trace) -> None:
        self.steps = {step.name: step for step in trace}
        self.input_axis = self.steps["input"].axes[0]
        query, token = (self.steps[name].labels[axis] for name, axis in (("weights", 1), ("input", 0)))
        self.is_decoder = self.input_axis == "token" and query != token
        self.num_heads, _, self.num_keys = self.steps["weights"].value.shape

    def __contains__(self, name: str) -> bool:
        return name in self.steps

    def first(self, *names: str) -> str:
        """The first of the names that is a step; an empty str if none is."""
        return next((name for name in names if name in self.steps), "")

    def present(self, *names: str) -> list[str]:
        """The names that are steps."""
        return [name for name in names if name in self.steps]

    def size(self, name: str, axis: str) -> int:
        step = self.steps[name]
        return step.value.shape[step.axes.index(axis)]

    def screen(
        self, slug: str, title: str, names: Sequence[str], *tables: NumberTable, reading: str = "", text: str = ""
    ) -> Screen:
        """A screen with the explanations of some steps, and their formulas unless these are a letter or a name."""
        steps = [self.steps[name] for name in names if name in self.steps]
        formulas = dict.fromkeys(step.formula for step in steps if len(step.formula) > 1 and step.name[:2] != "W_")
        texts = [*(step.explanation for step in steps), text]
        return Screen(slug, title, tuple(formulas), " ".join(filter(None, dict.fromkeys(texts))), reading, tables)


def _embedding(parts: _Parts) -> Iterator[Screen]:
    if "token embedding" not in parts:
        return
    names = parts.present("token embedding", "scaled embedding")
    rows = tuple(Row(name.removesuffix(" embedding"), name) for name in names)
    reading = ""
    if parts.is_decoder:
        reading = "At the step that writes “{query}”, the decoder reads “{token}”: this is its embedding."
    table = NumberTable("The row of “{token}”", "feature", rows=rows)
    yield parts.screen("embedding", "Token embedding", tuple(names), table, reading=reading)
    if "embedding" in parts:
        terms = parts.present("token type embedding", "position embedding")
        rows = tuple(Row(name.removesuffix(" embedding"), name) for name in (names[-1], *terms))
        table = NumberTable("“{token}” at position {position}", "feature", rows=rows, is_sum=True,
                            tail=(Row("sum", "embedding", is_result=True),))  # fmt: skip
        yield parts.screen("position", "Position", (*reversed(terms), "embedding"), table)
    if "embedding norm" in parts:
        yield _norm(parts, "embedding-norm", "Embedding norm", "embedding", "embedding norm", "embedding ")


def _norm(parts: _Parts, slug: str, title: str, before: str, result: str, prefix: str = "") -> Screen:
    rows = [Row("x", before), Row(parts.steps[f"{prefix}normalized"].formula, f"{prefix}normalized")]
    rows.append(Row("· γ", f"{prefix}norm weight"))
    rows += [Row("+ β", f"{prefix}norm bias")] if f"{prefix}norm bias" in parts else []
    table = NumberTable("“{token}” before and after the norm", "feature", rows=tuple(rows),
                        tail=(Row("result", result, is_result=True),))  # fmt: skip
    reading = f"Here μ is {{#{prefix}mean}} and σ is {{#{prefix}standard deviation}}."
    if f"{prefix}root mean square" in parts:
        reading = f"Here r is {{#{prefix}root mean square}}."
    return parts.screen(slug, title, (f"{prefix}normalized", result), table, reading=reading)


def _inputs(parts: _Parts) -> Iterator[Screen]:
    if "hidden state" in parts:
        table = NumberTable("“{query}”", "feature", rows=(Row("x", "hidden state"),))
        yield parts.screen("hidden-state", "Hidden state", ("hidden state",), table)
    if "norm weight" in parts:
        before = parts.first("hidden state", "embedding norm", "embedding", "scaled embedding", "token embedding")
        yield _norm(parts, "norm", "Norm", before, "input")
    elif "token embedding" not in parts:
        table = NumberTable("All tokens", "feature", each=parts.input_axis, source="input")
        yield parts.screen("input", "Input", ("input",), table)
    for name in parts.present("memory", "values"):
        table = NumberTable("All keys", "feature", each="key", source=name)
        yield parts.screen(name, name.capitalize(), (name,), table)


def _projections(parts: _Parts) -> Iterator[Screen]:
    is_additive = "U" in parts
    weight, bias = ("W", "") if is_additive else ("W_Q", parts.first("b_Q"))
    with_bias = ", with the bias," if bias else ""
    caption = f"x of “{{query}}” times the weights: the sum of each column{with_bias} is q"
    table = _product(caption, "input", weight, bias, Row("q", "query"), limit=8)
    has_norm = "norm weight" in parts or "token embedding" not in parts
    names = ("query", "W_Q") if has_norm else ("input", "query", "W_Q")
    yield parts.screen("query", "Query", names, table, reading=_first_feature(parts, "input", weight, bias, "query"))
    roles = (("key", "Key", "U" if is_additive else "W_K", parts.first("b" if is_additive else "b_K")),
             ("value", "Value", "W_V", parts.first("b_V")))  # fmt: skip
    for name, title, weight, bias in roles:
        if name not in parts:
            continue
        source = (parts.first("values") if name == "value" else "") or parts.first("memory", "input")
        every = NumberTable(f"{title}s of all tokens", "dim", each="key", source=name)
        caption = f"The {name} of “{{key}}”, computed in the same way"
        product = _product(caption, source, weight, bias, Row(name[0], name), limit=3)
        yield parts.screen(name, f"{title}s", (name,), every, product)
    if "rotated query" in parts:
        rows = tuple(Row(f"q{end}", name) for end, name in (("", "query"), (" rotated", "rotated query")))
        query = NumberTable("“{query}” at position {position}", "dim", rows=rows)
        keys = NumberTable("Rotated keys", "dim", each="key", source="rotated key")
        yield parts.screen("rotation", "Rotation", ("rotated query",), query, keys)


def _product(caption: str, source: str, weight: str, bias: str, result: Row, limit: int) -> NumberTable:
    """A row vector times a matrix: the vector as a column, the matrix next to it, the sums below."""
    tail = (*([Row("bias", bias)] if bias else []), Row(result.label, result.source, is_result=True))
    return NumberTable(caption, "dim", (Column("x", source),), each="feature", source=weight, limit=limit, tail=tail,
                       follows_key=result.source != "query")  # fmt: skip


def _first_feature(parts: _Parts, source: str, weight: str, bias: str, result: str) -> str:
    """How the first feature of a product of a vector and a matrix is computed."""
    count = parts.size(source, "feature")
    features = range(count if count <= 3 else 2)
    terms = [f"{{#({source}|feature={i}}} · {{#({weight}|feature={i},dim=0}}" for i in features]
    terms += ["…"] if count > 3 else []
    terms += [f"{{#({bias}|dim=0}}"] if bias else []
    return f"Its first feature is {' + '.join(terms)} = {{#{result}|dim=0}}."


def _scores(parts: _Parts) -> Iterator[Screen]:
    query, key = parts.first("rotated query", "query"), parts.first("rotated key", "key")
    if "hidden layer" in parts:
        table = NumberTable("tanh(query + key) for each key", "dim", each="key", source="hidden layer")
        yield parts.screen("hidden-layer", "Hidden layer", ("hidden layer",), table)
        table = NumberTable("Hidden layer times v for each key", "dim", (Column("sum", "scores"),), each="key",
                            source="hidden layer*v")  # fmt: skip
        yield parts.screen("scores", "Scores", ("scores",), table)
        return
    one = NumberTable(
        "“{query}” and “{key}”", "dim", (Column("sum", ""),),
        rows=(Row("q", query), Row("k", key)),
        tail=(Row("q · k", f"{query}*{key}", ("scores",), is_result=True),),
    )  # fmt: skip
    every = NumberTable(
        "The products with all keys", "dim", (Column("sum", "scores"),), each="key", source=f"{query}*{key}"
    )
    yield parts.screen("scores", "Scores", ("scores",), one, every)
    factor = parts.steps["scaled scores"].formula.removeprefix("S ")
    columns = Column("score", "scores"), Column("scaled", "scaled scores", bar=True)
    reading = f"For “{{query}}” and “{{key}}”: {{#scores}} {factor} = {{#scaled scores}}."
    yield parts.screen("scale", "Scale", ("scaled scores",), NumberTable(columns=columns, each="key"), reading=reading)
    if "position bias" in parts:
        columns = (
            Column("scaled", "scaled scores"),
            Column("bias", "position bias"),
            Column("sum", "biased scores", bar=True),
        )
        table = NumberTable(columns=columns, each="key")
        yield parts.screen("bias", "Position bias", ("position bias", "biased scores"), table)


def _softmax(parts: _Parts) -> Iterator[Screen]:
    scores = parts.first("biased scores", "scaled scores", "scores")
    if "mask" in parts:
        columns = Column("score", scores), Column("mask", "mask"), Column("masked", "masked scores", bar=True)
        names = ("mask", "masked scores")
        yield parts.screen("mask", "Mask", names, NumberTable(columns=columns, each="key"))
        scores = "masked scores"
    columns = Column("score", scores), Column("exp", "exponentials"), Column("weight", "weights", bar=True)
    table = NumberTable(
        columns=columns, each="key", tail=(Row("sum", columns=("", "sums", "sum of weights"), is_result=True),)
    )
    names = tuple(parts.present("exponentials", "weights"))
    text = "The exponentials are those of the score minus the largest score of the row."
    reading = "For “{key}”: {#exponentials} / {#sums} = {#weights}."
    yield parts.screen(
        "softmax", "Softmax", names, table, reading=reading, text="" if "exponentials" in parts else text
    )


def _outputs(parts: _Parts) -> Iterator[Screen]:
    source, axis = ("value", "dim") if "value" in parts else ("memory", "feature")
    weighted = f"weights*{source}"
    if "b by distance" in parts:
        table = NumberTable("For each key", "dim", each="key", source="b by distance")
        yield parts.screen("distance", "Vectors by distance", ("b by distance",), table)
        weighted += "+weights*b by distance"
    result = parts.first("sum of weighted values", "output")
    tail = (Row("sum", result, ("sum of weights",), is_result=True),)
    table = NumberTable("Weight times value for each key", axis, (Column("weight", "weights"),), each="key",
                        source=weighted, tail=tail)  # fmt: skip
    reading = "“{key}” contributes most: its weight is {#weights}."
    yield parts.screen("weighted-values", "Weighted values", ("weighted values", result), table, reading=reading)
    if "W_O" not in parts:
        return
    tail = [Row("head {head}", "part of the head"), *([Row("bias", "b_O")] if "b_O" in parts else [])]
    tail.append(Row("output", "output", is_result=True))
    table = NumberTable("The output of the head times its part of the weights", "feature", (Column("o", result),),
                        each="dim", source="W_O", limit=6, tail=tuple(tail))  # fmt: skip
    others = parts.num_heads - 1
    reading = "Head {head} adds its row to the output" + (f", as the other {others} heads do." if others else ".")
    yield parts.screen("output", "Output", ("output",), table, reading=reading)
