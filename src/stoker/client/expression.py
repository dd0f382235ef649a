"""`${{ env.X }}` and `${{ run.args }}` in a file: filled in once, by whoever applies it.

What is filled in is never looked at again, so a value that looks like an expression stays what it is. `$${{` writes
`${{` and means nothing else.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FILLED: Final = ("name", "commands", "setup", "env", "working_dir", "image", "registry_auth")
"""Keys below which expressions are looked for."""
IN_SHELL: Final = ("commands", "setup")
"""Below these, words are quoted for the shell."""
OPENS: Final = "${{"
_EXPRESSION: Final = re.compile(r"\$(\$\{\{)|\$\{\{([^{}\n]*)\}\}|\$\{\{")
_ENV: Final = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_KNOWN: Final = "Known are ${{ env.NAME }} and ${{ run.args }}; $${{ writes it as it is."

Path = tuple[str | int, ...]
Refuse = Callable[[Path, str, str], Exception]
"""Makes an error of a place, a sentence and a hint."""


@dataclass(slots=True)
class Filler:
    """One reading of one file, with the caller's variables and words."""

    environ: Mapping[str, str]
    words: Sequence[str]
    refuse: Refuse
    used: set[str] = field(default_factory=set)
    """The expressions that were there."""

    def fill(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._value(value, (key,)) if key in FILLED else value for key, value in given.items()}

    def _value(self, value: Any, path: Path) -> Any:
        match value:
            case str() if OPENS in value:
                return _EXPRESSION.sub(lambda found: self._filled(found, path), value)
            case list():
                return [self._value(one, (*path, place)) for place, one in enumerate(value)]
            case dict():
                return {key: self._value(one, (*path, key)) for key, one in value.items()}
        return value

    def _filled(self, found: re.Match[str], path: Path) -> str:
        if found[1]:
            return found[1]
        if found[2] is None:
            raise self.refuse(path, f"{OPENS} is not closed by }}}}", _KNOWN)
        expression = found[2].strip()
        self.used.add(expression)
        if expression == "run.args":
            return shlex.join(self.words) if path[0] in IN_SHELL else " ".join(self.words)
        if named := _ENV.fullmatch(expression):
            if named[1] not in self.environ:
                raise self.refuse(path, f"{named[1]} is not set where you call", f"Set it: export {named[1]}=…")
            return self.environ[named[1]]
        raise self.refuse(path, f"there is no expression {expression[:40]!r}", _KNOWN)
