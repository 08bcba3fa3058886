"""Substitution types values as the Collector does, and looks at nothing twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config import ConfigError, Duration, Secret, Settings, Url
from config.decode import decode
from config.nodes import Node, parse
from config.problems import Place
from config.substitution import MAX_EXPANSIONS, Substitution


class Everything(Settings):
    """One field of each kind that a substituted value may go into."""

    text: str = "unset"
    whole: int = -1
    number: float = -1.0
    flag: bool = False
    maybe: str | None = "unset"
    duration: Duration = Duration("1s")
    url: Url | None = Url("http://unset")
    secret: Secret = Secret("unset")
    names: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)


def load(text, **environ):
    """Settings from a text, with an environment; the problems as text beside them."""
    problems = []
    node = Substitution(environ, problems).node(parse(text, "f.yaml", problems), ())
    settings = decode(Everything, node, problems)
    return settings, [str(problem) for problem in problems]


def made(text, **environ):
    """Settings from a text without problems."""
    settings, problems = load(text, **environ)
    assert problems == []
    return settings


@pytest.mark.parametrize("quote", ["", '"', "'"])
@pytest.mark.parametrize(
    ("field", "content", "value"),
    [
        # A text field gets the text, whatever YAML would make of it.
        ("text", "0123", "0123"),
        ("text", "0xdeadbeef", "0xdeadbeef"),
        ("text", "1e3", "1e3"),
        ("text", "yes", "yes"),
        ("text", "true", "true"),
        ("text", "null", "null"),
        ("text", "[a, b]", "[a, b]"),
        ("text", "{a: b}", "{a: b}"),
        ("text", '"x"', '"x"'),
        ("text", "a: [", "a: ["),
        ("text", "", ""),
        ("text", " padded ", " padded "),
        ("text", "# no comment", "# no comment"),
        ("maybe", "", ""),
        ("maybe", "12", "12"),
        ("secret", "0123", Secret("0123")),
        ("secret", "", Secret("")),
        # Any other field gets what YAML reads.
        ("whole", "0123", 83),
        ("whole", "0x10", 16),
        ("whole", "1e3", 1000),
        ("number", "12", 12.0),
        ("flag", "true", True),
        ("duration", "5s", Duration("5s")),
        ("duration", "0", Duration("0s")),
        ("url", "http://host:1/", Url("http://host:1")),
        ("names", "[a, b]", ("a", "b")),
        ("labels", "{a: b}", {"a": "b"}),
        # Set but empty is null: "not written" for whatever is not a text.
        ("whole", "", -1),
        ("duration", "", Duration("1s")),
        ("url", "", None),
        ("names", "", ()),
    ],
)
def test_a_whole_value_is_what_its_field_asks_for(quote, field, content, value):
    """The Collector's table of a reference that is the whole value, quoted or not."""
    assert getattr(made(f"{field}: {quote}${{env:X}}{quote}", X=content), field) == value


@pytest.mark.parametrize(
    ("field", "content", "problem"),
    [
        ("flag", "t", "a text (from ${env:X}) where true or false is expected"),
        ("flag", "yes", "a text (from ${env:X}) where true or false is expected"),
        ("flag", "23", "a number (from ${env:X}) where true or false is expected"),
        ("whole", "hunter2", "a text (from ${env:X}) where a whole number is expected"),
        ("whole", "1.5", "a number (from ${env:X}) where a whole number is expected"),
        ("duration", "5", "a number (from ${env:X}) is not a duration such as 200ms, 5s or 1m30s"),
        ("url", "hunter2", "a text (from ${env:X}) is not a URL such as http://localhost:4318 or https://host/path"),
        ("labels", "hunter2", "a text (from ${env:X}) where a map of keys is expected"),
        ("labels", "{hunter2: [1]}", "a list (from ${env:X}) where a text is expected"),
        ("names", "hunter2", "a text (from ${env:X}) where a list is expected"),
        (
            "labels",
            "{a: 1\nb: [",
            "a text (from ${env:X}) where a map of keys is expected; its content is not usable as YAML: see its line 2",
        ),
    ],
)
def test_problems_name_the_source_and_hide_the_value(field, content, problem):
    """A value of the wrong type is reported at its reference, without showing what the environment holds."""
    _, problems = load(f"{field}:   ${{env:X}}", X=content)
    assert len(problems) == 1
    assert problems[0].startswith(f"f.yaml:1:{len(field) + 5}: {field}")
    assert problems[0].endswith(problem)
    assert "hunter2" not in problems[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a${env:X}b", "a12b"),
        ("${env:X}${env:X}", "1212"),
        ("${env:M}!", "{a: 1}!"),
        ("${env:X}:${env:Y}", "12:x"),
        ("$${env:X}", "${env:X}"),
        ("$$${env:X}", "$12"),
        ("$$$${env:X}${env:X}", "$${env:X}12"),
        ("$X", "$X"),
        ("a$$b", "a$b"),
        ("$", "$"),
        ("a } b { c", "a } b { c"),
        ("${env:NO:-fallback}", "fallback"),
        ("x${env:NO:-}", "x"),
        ("${env:EMPTY:-fallback}", ""),
        ("${env:NO:-${env:X}}", "12"),
        ("${env:${env:NAME}}", "12"),
        ("${env:NO:-{a: {b: 1}}}", "{a: {b: 1}}"),
        ("${env:NO:-a$$b}", "a$b"),
        ("${yaml:[1, 2]}", "[1, 2]"),
        ("${yaml:${env:X}3}", "123"),
    ],
)
def test_texts_are_pasted_in(text, value):
    """Inside a longer text the original text is pasted in, and `$$` is a dollar sign."""
    settings = made(f"text: '{text}'", X="12", Y="x", M="{a: 1}", EMPTY="", NAME="X")
    assert settings.text == value


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@example("${env:X}")
@example("$$")
@example("${file:/etc/passwd}")
@example("{a: '${env:X}'}")
@example("a${")
def test_substituted_text_is_never_looked_at_again(content):
    """Whatever a variable holds arrives as it is, as a whole value, pasted, and within pasted references."""
    environ = {"X": content}
    assert made('text: "${env:X}"\nsecret: "<${env:X}>"', **environ).text == content
    assert made('secret: "<${env:X}>"', **environ).secret == Secret(f"<{content}>")
    assert made('text: "${env:NO:-${env:X}}"', **environ).text == content


@given(st.dictionaries(st.sampled_from("abc"), st.text("ab$X{}env:", max_size=12), max_size=3))
def test_texts_within_a_substituted_map_are_not_looked_at_again(labels):
    """A map that the environment holds is taken as it is."""
    content = "{" + ", ".join(f'{key}: "{text}"' for key, text in labels.items()) + "}"
    assert made("labels: ${env:X}", X=content).labels == labels


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text: ${env:a-b}", "f.yaml:1:7: text: ${env:a-b} does not name an environment variable"),
        ("text: ${env:}", "f.yaml:1:7: text: ${env:} does not name an environment variable"),
        ("text: ${evn:X}", "${evn:X} has an unknown source 'evn'; did you mean 'env'? known: env, file, yaml"),
        ("text: ${http://x/y}", "not fetched over the network; download it and write ${file:path}"),
        ("text: a${https://x}", "not fetched over the network"),
        ("text: ${a b}", "${a b} is not a reference; write ${env:NAME}"),
        ("text: a ${env:X", "a ${ is never closed; write ${env:NAME}, or $${ for a literal ${"),
        ("text: ${file:/no/such/file}", "${file:/no/such/file} can't be read: No such file or directory"),
        ("text: ${file:/}", "${file:/} can't be read: Is a directory"),
        ('text: "${file:\\0}"', "can't be read: this is not a file name"),
        ("text: " + "${env:" * 20 + "X" + "}" * 20, "more than 16 references inside one another"),
    ],
)
def test_bad_references_are_problems(text, problem):
    """A reference that leads nowhere is said at its place, and its field is left alone."""
    settings, problems = load(text, X="x")
    assert settings is None
    assert len(problems) == 1
    assert problem in problems[0]


def test_an_unset_variable_is_null_with_a_warning():
    """Without a default an unset variable counts as null, and its name is said."""
    settings, problems = load("text: ${env:NO}\nmaybe: ${env:NO}\nsecret: a${env:NO}b")
    assert settings == Everything(maybe=None, secret=Secret("ab"))
    assert problems[0] == (
        "f.yaml:1:7: warning: text: ${env:NO} is not set and counts as null; set it, or write ${env:NO:-default}"
    )
    assert len(problems) == 3


def test_the_short_spelling_is_deprecated():
    """`${X}` works, with a warning that names the right spelling."""
    settings, problems = load("text: ${X}\nmaybe: a${NO:-b}", X="x")
    assert settings == Everything(text="x", maybe="ab")
    assert problems == [
        "f.yaml:1:7: warning: text: ${X} is a deprecated spelling; write ${env:X}",
        "f.yaml:2:9: warning: maybe: ${NO:-b} is a deprecated spelling; write ${env:NO:-b}",
    ]


def test_places_point_at_the_reference():
    """The place of a problem is that of the `${`, also within a text, where the text is on one line."""
    _, problems = load('text: "ab ${env:1}"\nmaybe: |\n  ${env:1}\n')
    assert [problem.partition(" ")[0] for problem in problems] == ["f.yaml:1:7:", "f.yaml:2:8:"]
    _, problems = load("text: '${env:NO}'\nmaybe: ab ${env:NO}")
    assert [problem.partition(" ")[0] for problem in problems] == ["f.yaml:1:8:", "f.yaml:2:11:"]


@pytest.mark.parametrize(
    ("content", "value"), [("abc", "abc"), ("abc\n", "abc"), ("abc\r\n", "abc"), ("abc\n\n", "abc\n"), ("\n", "")]
)
def test_files_lose_one_line_end(tmp_path, content, value):
    """A secret made with `echo` arrives without the line end behind it."""
    (tmp_path / "secret").write_bytes(content.encode())
    path = f"{tmp_path}/secret"
    assert made(f"text: ${{file:{path}}}\nsecret: <${{file:{path}}}>") == Everything(
        text=value, secret=Secret(f"<{value}>")
    )


def test_files_are_found_from_the_working_directory(tmp_path, monkeypatch):
    """A relative path starts at the working directory, as in the Collector."""
    (tmp_path / "n").write_text("7")
    monkeypatch.chdir(tmp_path)
    assert made("whole: ${file:n}").whole == 7


def test_a_file_that_holds_a_map_is_a_part_of_the_document(tmp_path):
    """Its references are resolved, and its problems are at their places in it."""
    part = tmp_path / "part.yaml"
    part.write_text("a: ${env:X}\nb: 12\n")
    settings, problems = load(f"labels: ${{file:{part}}}", X="x")
    assert settings is None
    assert problems == [
        f"{part}:2:4: labels.b: a number (from ${{file:{part}}}) where a text is expected; put it in quotes"
    ]
    part.write_text("a: ${env:X}\n")
    assert made(f"labels: ${{file:{part}}}", X="$$").labels == {"a": "$$"}


def test_files_that_form_a_circle_are_refused(tmp_path):
    """A file that contains itself ends in one problem."""
    part = tmp_path / "part.yaml"
    part.write_text(f"[a, '${{file:{part}}}']")
    _, problems = load(f"names: ${{file:{part}}}")
    assert any("more than 16 files inside one another" in problem for problem in problems)


def test_expansions_are_limited():
    """The thousand-and-first reference is refused, as in the Collector."""
    node = Node("${env:X}" * (MAX_EXPANSIONS + 1), Place("f.yaml"))
    problems = []
    Substitution({"X": "x"}, problems).node(node, ())
    assert "more than 1000 substitutions" in str(problems[0])


def test_a_reference_in_an_alias_is_resolved_once():
    """An alias repeats the value and not the warning."""
    settings, problems = load("text: &a ${env:NO:-x}${OLD}\nmaybe: *a", OLD="y")
    assert settings == Everything(text="xy", maybe="xy")
    assert len(problems) == 1


@pytest.mark.parametrize("text", ["hunter2", "two\nlines", "it's"])
def test_own_checks_do_not_show_substituted_texts(text):
    """A component's own message is shown without the text that was substituted."""

    class Picky(Settings):
        """Refuses."""

        word: str = ""

        def __post_init__(self):
            raise ValueError(f"{self.word!r} is not a word")

    problems = []
    node = Substitution({"X": text}, problems).node(parse("word: ${env:X}", "f.yaml", problems), ())
    decode(Picky, node, problems)
    assert [problem.message[1:9] + problem.message[10:] for problem in problems] == ["${env:X} is not a word"]


def test_broken_text_in_the_environment_is_no_crash():
    """Bytes that are no text come through as the text that Python has for them."""
    assert made("text: ${env:X}", X="\udcff").text == "\udcff"


def test_config_error_prints_problems_in_the_order_of_the_document():
    """One line per problem, sorted by place, each once."""
    problems = []
    parse("a: 1\nb: !x y\na: 2", "f.yaml", problems)
    error = ConfigError([*reversed(problems), problems[0]])
    assert [line[:8] for line in str(error).splitlines()] == ["f.yaml:2", "f.yaml:3"]
