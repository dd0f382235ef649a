"""What a person says of a host in `settings.json`: taken as it is said, or refused before anything is promised."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import UserError
from stoker.shim.settings import Settings, read
from tests.agents.shim_stage import prepared

PLAIN = [sys.executable, "-m", "stoker.shim"]


def gpu(index: int, **more: Any) -> dict[str, Any]:
    return {"index": index, "id": f"GPU-{index}", "name": "A100", "memory_mb": 81920} | more


async def test_the_gpus_that_somebody_describes_are_those_of_the_host(shared_directory: Path) -> None:
    """Each is given to one task at a time, and again when that has ended; also by the shim that comes after."""
    made = prepared(shared_directory, command=PLAIN)
    (made.home / "settings.json").write_text(json.dumps({"gpus": [gpu(0), gpu(1)]}))
    try:
        await made.start()
        host = (await made.ask("GET", "/host")).json
        assert [(one["id"], one["vendor"]) for one in host["gpus"]] == [("GPU-0", "nvidia"), ("GPU-1", "nvidia")]
        first = await made.start_job('test "$CUDA_VISIBLE_DEVICES" = GPU-1 && sleep 60', gpu_indices=[1])
        assert first.gpu_ids == ("GPU-1",)
        await made.restart()
        second = await made.submit(gpu_indices=[1])
        ended = await made.ended(second.id)
        assert "GPU 1 is held by task" in ended.message
        assert (await made.task(first.id)).result is None
        assert (await made.terminate(first.id)).gpu_ids == ()
        assert (await made.submit(gpu_indices=[1])).gpu_ids == ("GPU-1",)
    finally:
        made.clear()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", "the whole"),
        ('{"gpu": []}', "gpu: Extra inputs"),
        (json.dumps({"gpus": [gpu(0, memory_mb="much")]}), "gpus.0.memory_mb"),
        (json.dumps({"gpus": [gpu(0), gpu(0, id="GPU-9")]}), "two GPUs have the same index"),
        (json.dumps({"gpus": [gpu(0), gpu(1, id="GPU-0")]}), "two GPUs have the same id"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_key(tmp_path: Path, said: str, words: str) -> None:
    (tmp_path / "settings.json").write_text(said)
    with pytest.raises(UserError, match=words):
        read(tmp_path)


def test_a_shim_that_is_told_nonsense_says_so_and_does_not_start(shared_directory: Path) -> None:
    made = prepared(shared_directory)
    (made.home / "settings.json").write_text("[]")
    done = subprocess.run([*PLAIN, "--home", str(made.home)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "settings.json cannot be used" in done.stderr


def test_without_a_word_it_is_what_the_drivers_know(tmp_path: Path) -> None:
    assert read(tmp_path).described() is None
    assert Settings(gpus=()).described() == ()
