"""Files are read with their lines, by the rules of YAML 1.2, and bombs are defused before they grow."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.limits import MOST_FILE_BYTES
from stoker.wire.yaml import BadYaml, as_written, compose, line_of, plain

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("off", "off"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("012", 12),
        ("0o17", 15),
        ("0x1f", 31),
        ("-3", -3),
        ("1.10", 1.1),
        ("1e3", 1000.0),
        ("1e9999", "1e9999"),
        (".inf", ".inf"),
        ("1_000", "1_000"),
        ("~", None),
        ("true", True),
        ("'true'", "true"),
        ("!!str 5", "5"),
        ("|\n a\n b\n", "a\nb\n"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_scalar_means_what_it_looks_like(text: str, means: object) -> None:
    found = plain(compose(text))
    assert found == means
    assert type(found) is type(means)


def test_what_was_written_is_kept_beside_what_it_means() -> None:
    root = compose("a: 1.10\nb: [true, ~, '']\nc: {d: off}\n")
    assert as_written(root) == {"a": "1.10", "b": ["true", None, ""], "c": {"d": "off"}}


def test_every_place_has_its_line_and_what_is_missing_that_of_its_parent() -> None:
    root = compose("a:\n  - 1\n  - b: 2\n\nc:\n  d:\n    4\n")
    assert line_of(root, ()) == 1
    assert line_of(root, ("a", 1)) == 3
    assert line_of(root, ("a", 1, "b")) == 3
    assert line_of(root, ("c", "d")) == 6
    assert line_of(root, ("c", "nothing", 3)) == 5
    assert line_of(root, ("a", 7)) == 1


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "already given in line 1"),
        ("x: *y\n", 1, "names nothing"),
        ("x: &x [*x]\n", 1, "names nothing above it, or itself"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "is not allowed"),
        ("a: !!binary aGk=\n", 1, "is not allowed"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("? [a]\n: b\n", 1, "a key has to be a name"),
        ("a: 1\n b: 2\n", 2, "not YAML"),
        ("[" * 100_000, 1, "nested more than"),
        ("{a: " * 100_000, 1, "nested more than"),
        ("a: 'x\n", None, "not YAML"),
        ("\x00", None, "not YAML"),
        ("", None, "nothing in it"),
        ("# only a comment\n", None, "nothing in it"),
        (b"\xff\xfe\xff", None, "not YAML"),
        ("- x\n" * 30_000, None, "more than 20000 values"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str | bytes, line: int | None, says: str) -> None:
    with pytest.raises(BadYaml, match=says) as refused:
        compose(text)
    if line is not None:
        assert refused.value.line == line


def test_a_billion_laughs_are_not_told() -> None:
    """Thirty lines that stand for more values than there are atoms: refused as soon as they count too many."""
    began = time.monotonic()
    with pytest.raises(BadYaml, match="stands for more than"):
        compose(LAUGHS)
    assert time.monotonic() - began < 1.0


def test_an_honest_alias_is_what_it_stands_for() -> None:
    assert plain(compose("a: &a [1, 2]\nb: *a\n")) == {"a": [1, 2], "b": [1, 2]}


def test_a_file_without_end_is_not_read() -> None:
    with pytest.raises(BadYaml, match="The file has"):
        compose("a" * (MOST_FILE_BYTES + 1))


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=20,
    )
)
def test_json_is_read_as_json(value: object) -> None:
    """A program may write the configuration, and programs write JSON."""
    assert plain(compose(json.dumps(value))) == value


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        plain(compose(text))
    except UserError as refused:
        assert refused.sentence


@pytest.mark.parametrize("text", ["a:\n\t- b\n", "a:\n  \t- b\n", b"a:\n\tb: c\n"])
def test_a_tab_that_indents_is_named(text: str | bytes) -> None:
    """It looks like spaces: "cannot start any token" says nothing to who wrote it."""
    with pytest.raises(BadYaml, match="line 2: a tab cannot indent a line"):
        compose(text)


def test_a_tab_elsewhere_is_no_mistake() -> None:
    assert plain(compose("a: 'b\tc'\nd: e\t\n")) == {"a": "b\tc", "d": "e"}
