"""From a file that a person wrote to what the server is sent.

The models that check a configuration take a quarter of a second to import, and the server checks it anyway. So the
file is only read here; when the server refuses it, or there is none to ask, the same models are asked here, where the
lines are known.
"""

from collections.abc import Mapping
from typing import Any, Final

from stoker.client.client import Json
from stoker.core.errors import UserError

AS_WRITTEN: Final = ("commands", "setup", "env")
"""As in `wire/configuration.py`: below these, `true` is a word."""


def read(text: bytes, where: str, environ: Mapping[str, str]) -> Json:
    """What the file says, with the caller's variables filled in; whether it makes sense is the server's to say."""
    from stoker.wire.yaml import BadYaml, Pairs, as_written, compose, plain

    try:
        root = compose(text)
    except BadYaml as error:
        raise UserError(f"{where}: {error.sentence}", hint=error.hint, code=error.code) from None
    if not isinstance(root, Pairs):
        raise explained(text, where, environ) or UserError(f"{where}: expected a map.")
    given = {key: as_written(node) if key in AS_WRITTEN else plain(node) for key, node in root.nodes.items()}
    if "env" in given:
        try:
            given["env"] = filled(given["env"], environ)
        except KeyError as missing:
            raise explained(text, where, environ) or unset(str(missing.args[0])) from None
    return given


def filled(env: Any, environ: Mapping[str, str]) -> Any:
    """A bare name takes the caller's value; one that the caller does not have is a KeyError."""
    match env:
        case dict():
            return {name: environ[name] if value is None else value for name, value in env.items()}
        case list() | tuple():
            return [f"{one}={environ[one]}" if isinstance(one, str) and "=" not in one else one for one in env]
    return env


def unset(name: str) -> UserError:
    return UserError(f"env: {name} is not set where you call.", hint=f"Set it, or write {name}=value.")


def explained(text: bytes, where: str, environ: Mapping[str, str]) -> UserError | None:
    """Everything that is wrong with it, with lines; None when nothing is, as far as we know."""
    from stoker.wire.configuration import load, with_env
    from stoker.wire.model import Invalid

    try:
        with_env(load(text), environ)
    except Invalid as error:
        told = [f"{where}: {problem}.{f' {problem.hint}' if problem.hint else ''}" for problem in error.problems]
        return UserError("\n       ".join(told), code=error.code)
    except UserError as error:
        return UserError(f"{where}: {error.sentence}", hint=error.hint, code=error.code)
    return None
