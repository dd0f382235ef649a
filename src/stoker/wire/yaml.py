"""YAML (and so JSON) as people write it, with the line of every value and without surprises.

Scalars are read by the core schema of YAML 1.2: `off`, `no` and `on` are text, `1:30` is text, and a number keeps the
way it was written, since an environment variable wants `1.10` and not `1.1`. An alias stands for what it names and is
counted as that, so a few lines cannot stand for a billion values. Nothing here calls itself, so depth is no danger.
"""

import math
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from stoker.core.errors import UserError
from stoker.core.limits import MOST_FILE_BYTES, MOST_FILE_DEPTH, MOST_FILE_NODES

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INT: Final = re.compile(r"[-+]?[0-9]{1,30}")
_OTHER_INT: Final = re.compile(r"0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,4})?")
_PAIR: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_STR_TAGS: Final = frozenset({"!", "tag:yaml.org,2002:str"})


@dataclass(frozen=True, slots=True)
class Scalar:
    line: int
    text: str
    """As it was written, without quotes."""
    value: Any
    weight: int = 1
    depth: int = 0


@dataclass(slots=True)
class Items:
    line: int
    nodes: list["Node"] = field(default_factory=list)
    weight: int = 1
    depth: int = 0


@dataclass(slots=True)
class Pairs:
    line: int
    nodes: dict[str, "Node"] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """Of the keys, which may stand above their values."""
    key: Scalar | None = None
    """Waits for its value."""
    weight: int = 1
    depth: int = 0


Node = Scalar | Items | Pairs


class BadYaml(UserError):
    """Not YAML, or more of it than anybody needs."""

    code = "yaml"

    def __init__(self, what: str, line: int | None, hint: str = "") -> None:
        super().__init__(f"line {line}: {what}." if line else f"{what[:1].upper()}{what[1:]}.", hint=hint)
        self.line = line


def compose(text: str | bytes) -> Node:
    """The one document of a text."""
    if len(text) > MOST_FILE_BYTES:
        raise BadYaml(f"the file has more than {MOST_FILE_BYTES} characters", None, "Put long commands into a script.")
    composer = _Composer()
    try:
        for event in yaml.parse(_joined(text), Loader=_LOADER):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        if mark and _is_tab(text, mark.line, mark.column):
            raise BadYaml("a tab cannot indent a line", line, "Use spaces; most editors can replace tabs.") from error
        hint = ""
        if mark and _is_star(text, mark.line):
            hint = 'A value that begins with * needs quotes: "* * * * *".'
        raise BadYaml(f"this is not YAML: {error.problem or error.context}", line, hint) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadYaml(f"this is not YAML: {' '.join(str(error).split())}", None) from error
    if composer.root is None:
        raise BadYaml("there is nothing in it", None, "The least is `type: task` and a list of `commands`.")
    return composer.root


def _is_tab(text: str | bytes, line: int, column: int) -> bool:
    """Whether that is what the reader stumbled over."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text).splitlines()
    return line < len(lines) and lines[line][column : column + 1] == "\t" and not lines[line][:column].strip()


def _is_star(text: str | bytes, line: int) -> bool:
    """Whether a value of that line begins like an alias and is none: cron lines do."""
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text).splitlines()
    return line < len(lines) and re.search(r"(^|[:\[,-])\s*\*[\s/]", lines[line]) is not None


def _joined(text: str | bytes) -> str | bytes:
    """JSON writes what is beyond 16 bits as two escapes, which YAML does not know."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            return text
    return _PAIR.sub(_character, text) if text.lstrip()[:1] in ("{", "[", '"') else text


def _character(pair: re.Match[str]) -> str:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return pair[1] + chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def plain(node: Node) -> Any:
    """What it says, as Python values. No deeper than the limit, so it may call itself."""
    match node:
        case Scalar():
            return node.value
        case Items():
            return [plain(one) for one in node.nodes]
        case Pairs():
            return {key: plain(one) for key, one in node.nodes.items()}


def as_written(node: Node) -> Any:
    """The same with every scalar as the text that stands there; only nothing at all stays None."""
    match node:
        case Scalar():
            return None if node.value is None and node.text in _NULL else node.text
        case Items():
            return [as_written(one) for one in node.nodes]
        case Pairs():
            return {key: as_written(one) for key, one in node.nodes.items()}


def keyed(root: Pairs, words: Container[str], inside: str) -> dict[str, Any]:
    """By key; below `words` as written, and the same in each map of the list that `inside` names."""
    given: dict[str, Any] = {}
    for key, node in root.nodes.items():
        if key == inside and isinstance(node, Items):
            given[key] = [keyed(one, words, "") if isinstance(one, Pairs) else plain(one) for one in node.nodes]
        else:
            given[key] = as_written(node) if key in words else plain(node)
    return given


def line_of(root: Node, path: Iterable[str | int]) -> int:
    """Where the thing at this path begins, or the nearest above it that is there."""
    node, line = root, root.line
    for step in path:
        match node:
            case Pairs(nodes=nodes) if step in nodes:
                line, node = node.lines[str(step)], nodes[str(step)]
            case Items(nodes=items) if isinstance(step, int) and step < len(items):
                node = items[step]
                line = node.line
            case _:
                return line
    return line


def depth_of(root: Node, path: Iterable[str | int]) -> int:
    """How many steps of this path are there."""
    node, depth = root, 0
    for step in path:
        match node:
            case Pairs(nodes=nodes) if step in nodes:
                node = nodes[str(step)]
            case Items(nodes=items) if isinstance(step, int) and step < len(items):
                node = items[step]
            case _:
                return depth
        depth += 1
    return depth


class _Composer:
    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[tuple[Items | Pairs, str | None]] = []
        self._anchors: dict[str, Node] = {}

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.AliasEvent(anchor=name):
                if name not in self._anchors:
                    raise BadYaml(f"*{name} names nothing above it, or itself", line)
                self._put(self._anchors[name], line)
            case yaml.ScalarEvent(anchor=name):
                node = _scalar(event, line)
                self._name(name, node)
                self._put(node, line)
            case yaml.SequenceStartEvent(anchor=name):
                self._begin(Items(line), name, event.tag, line)
            case yaml.MappingStartEvent(anchor=name):
                self._begin(Pairs(line), name, event.tag, line)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                container, anchor = self._open.pop()
                self._name(anchor, container)
                self._put(container, container.line)
            case yaml.DocumentStartEvent() if self.root is not None:
                raise BadYaml("a second document begins", line, "Put each configuration into a file of its own.")

    def _begin(self, node: Items | Pairs, name: str | None, tag: str | None, line: int) -> None:
        if tag is not None and tag != "!":
            raise BadYaml(f"the tag {tag} is not allowed", line)
        if len(self._open) >= MOST_FILE_DEPTH:
            raise BadYaml(f"it is nested more than {MOST_FILE_DEPTH} deep", line)
        self._open.append((node, name))

    def _name(self, anchor: str | None, node: Node) -> None:
        if anchor is not None:
            self._anchors[anchor] = node

    def _put(self, node: Node, line: int) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1][0]
        if isinstance(parent, Pairs) and parent.key is None:
            parent.key = _key(node, line, parent)
        elif isinstance(parent, Pairs) and parent.key is not None:
            parent.nodes[parent.key.text], parent.lines[parent.key.text] = node, parent.key.line
            parent.key = None
        elif isinstance(parent, Items):
            parent.nodes.append(node)
        parent.weight += node.weight
        parent.depth = max(parent.depth, node.depth + 1)
        if parent.weight > MOST_FILE_NODES:
            raise BadYaml(f"it stands for more than {MOST_FILE_NODES} values", line, "Use fewer aliases.")
        if parent.depth > MOST_FILE_DEPTH:
            raise BadYaml(f"it is nested more than {MOST_FILE_DEPTH} deep", line)


def _key(node: Node, line: int, parent: Pairs) -> Scalar:
    if not isinstance(node, Scalar):
        raise BadYaml("a key has to be a name", line, "A value that begins with { or [ needs quotes.")
    if node.text in parent.nodes:
        raise BadYaml(f"the key {node.text!r} is already given in line {parent.lines[node.text]}", line)
    return node


def _scalar(event: Any, line: int) -> Scalar:
    text: str = event.value
    if event.tag is not None and event.tag not in _STR_TAGS:
        raise BadYaml(f"the tag {event.tag} is not allowed", line)
    bare = event.tag is None and event.style in (None, "")
    return Scalar(line, text, _resolved(text) if bare else text)


def _resolved(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _OTHER_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text
