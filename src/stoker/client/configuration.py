"""From a file that a person wrote to what the server is sent.

The models that check a configuration take a quarter of a second to import, and the server checks it anyway. So the
file is only read here, merged with a profile and filled in; when the server refuses it, or there is none to ask, the
same models are asked here, where the lines are known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stoker.client.client import Json, Refused
from stoker.client.expression import Filler
from stoker.client.profile import Profile, merged
from stoker.core.errors import UserError

if TYPE_CHECKING:
    from stoker.wire.yaml import Pairs

AS_WRITTEN: Final = ("commands", "setup", "env", "python", "entrypoint")
"""As in `wire/configuration.py`: below these, `true` is a word."""
INSIDE: Final = "groups"


class Source(NamedTuple):
    """A file, or the part of one, that has a say."""

    where: str
    root: "Pairs"


@dataclass(frozen=True)
class Written:
    """What is sent, and where each part of it stands."""

    given: Json
    sources: tuple[Source, ...]
    """The first wins."""

    def place(self, path: Sequence[str | int]) -> tuple[str, int]:
        """Of what stands at this path: the file that says most of it, and its line there."""
        from stoker.wire.yaml import depth_of, line_of

        best = max(self.sources, key=lambda one: depth_of(one.root, path))
        return best.where, line_of(best.root, path)

    def refuse(self, path: Sequence[str | int], what: str, hint: str) -> UserError:
        where, line = self.place(path)
        key = ".".join(map(str, path))
        return UserError(f"{where}: line {line}: {key}: {what}.", hint=hint, code="configuration")

    def explained(self) -> UserError | None:
        """Everything that is wrong with it, with lines; None when nothing is, as far as we know."""
        from stoker.wire.configuration import parse_any
        from stoker.wire.model import Invalid

        try:
            parse_any(self.given)
        except Invalid as error:
            return self._located(((one.key, one.message, one.hint) for one in error.problems), error.code)
        except UserError as error:
            where, _ = self.place(())
            return UserError(f"{where}: {error.sentence}", hint=error.hint, code=error.code)
        return None

    def located(self, error: Refused) -> UserError:
        """The same, with lines: what only the server can know to be wrong."""
        told = (
            # In a request it stands one level deeper.
            (str(one["key"]).removeprefix("configuration."), str(one["message"]), str(one.get("hint", "")))
            for one in error.problems
        )
        return self._located(told, error.code)

    def _located(self, problems: Iterable[tuple[str, str, str]], code: str) -> UserError:
        order = {source.where: number for number, source in enumerate(self.sources)}
        placed = [(self.place(_path(key)), f"{key}: {what}. {hint}") for key, what, hint in problems]
        placed.sort(key=lambda one: (order.get(one[0][0], -1), one[0][1]))
        told = (f"{where}: line {line}: {said}".replace(": : ", ": ").rstrip() for (where, line), said in placed)
        return UserError("\n       ".join(told), code=code)


def read(
    text: bytes, where: str, environ: Mapping[str, str], words: Sequence[str] = (), profile: Profile | None = None
) -> Written:
    """What the file says over its profile, with the caller's variables and words filled in; whether it makes sense is
    the server's to say."""
    from stoker.wire.yaml import BadYaml, Pairs, compose

    try:
        root = compose(text)
    except BadYaml as error:
        raise UserError(f"{where}: {error.sentence}", hint=error.hint, code=error.code) from None
    if not isinstance(root, Pairs):
        what = "expected a map with `type: task`, `commands` and so on"
        raise UserError(f"{where}: line {root.line}: {what}.", code="configuration")
    written = Written(_plain(root), (Source(where, root),))
    if written.given.get("type", "task") != "task":
        return written
    if profile is not None:
        given = merged(_plain(profile.node), written.given)
        written = Written(given, (*written.sources, Source(profile.where, profile.node)))
    return _filled(written, environ, words)


def alone(profile: Profile, environ: Mapping[str, str]) -> Written:
    """A profile without a file: what it says lies under flags, in which nothing is an expression."""
    return _filled(Written(_plain(profile.node), (Source(profile.where, profile.node),)), environ, ())


def _plain(root: "Pairs") -> Json:
    from stoker.wire.yaml import keyed

    return keyed(root, AS_WRITTEN, INSIDE)


def _filled(written: Written, environ: Mapping[str, str], words: Sequence[str]) -> Written:
    filler = Filler(environ, words, written.refuse)
    given = filler.fill(written.given)
    if words and "run.args" not in filler.used:
        raise UserError(
            f"{written.sources[0].where}: nothing in it takes the words behind --.",
            hint="Write ${{ run.args }} where they belong, for example behind a command.",
            code="configuration",
        )
    written = replace(written, given=given)
    groups = given.get(INSIDE)
    try:
        for one in (given, *(groups if isinstance(groups, list) else ())):
            if isinstance(one, dict) and "env" in one:
                one["env"] = filled(one["env"], environ)
    except KeyError as missing:
        raise written.explained() or unset(str(missing.args[0]), written.place(("env",))[0]) from None
    return written


def _path(key: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdecimal() else step for step in key.split(".")) if key else ()


def filled(env: Any, environ: Mapping[str, str]) -> Any:
    """A bare name takes the caller's value; one that the caller does not have is a KeyError."""
    match env:
        case dict():
            return {name: environ[name] if value is None else value for name, value in env.items()}
        case list() | tuple():
            return [f"{one}={environ[one]}" if isinstance(one, str) and "=" not in one else one for one in env]
    return env


def unset(name: str, where: str = "") -> UserError:
    said = f"{where}: env: {name}" if where else f"env: {name}"
    return UserError(f"{said} is not set where you call.", hint=f"Set it, or write {name}=value.")
