"""`backends.yml`: where machines may be launched. A backend that is not named has its defaults."""

from typing import Any, Final

from pydantic import ConfigDict, ValidationError

from stoker.wire import yaml
from stoker.wire.dummy import DummyConfiguration
from stoker.wire.model import Invalid, Model, Problem
from stoker.wire.problem import path_of, problems_of

CODE: Final = "backends"


class BackendsConfiguration(Model):
    model_config = ConfigDict(strict=True)

    dummy: DummyConfiguration | None = None


def load(text: str | bytes) -> BackendsConfiguration:
    """Raises `Invalid` with every problem in it, each with its line, or `BadYaml` when it is not even YAML."""
    lines = (text if isinstance(text, str) else text.decode(errors="replace")).splitlines()
    if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return BackendsConfiguration()
    root = yaml.compose(text)
    if not isinstance(root, yaml.Pairs):
        raise Invalid([Problem(key="", message="expected a map with `dummy:`", line=root.line)], code=CODE)
    given: dict[str, Any] = {key: yaml.plain(node) for key, node in root.nodes.items()}
    try:
        return BackendsConfiguration.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        where = {".".join(map(str, path)): yaml.line_of(root, path) for path in map(path_of, errors)}
        found = [one.model_copy(update={"line": where[one.key]}) for one in problems_of(errors, BackendsConfiguration)]
        raise Invalid(sorted(found, key=lambda one: one.line or 0), code=CODE) from None
