"""GPUs: the ones a machine has, and the ones a job asks for.

Short forms join what is known with colons, in any order: `2`, `A100:2`, `A100,H100:40GB..:1..8`,
`nvidia:24GB..`. A bare count is exact, unlike other amounts: programs use every GPU they see, and a
machine with eight for a job that wanted two costs four times as much. `2..` takes more.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from stoker.core.errors import UserError
from stoker.core.quantity import ANY, Range, format_number, format_range, format_size, number, parse_range, size_mb

VENDORS = ("nvidia", "amd", "intel", "google", "tenstorrent")
# A card sold as 24GB reports 22.5GB to 24GB of it, after error correction and reserved pages.
REPORTED_SHARE = 0.93
ONE = Range(1, 1)
_EXAMPLE = "2, A100:2, A100:40GB..:2, 24GB.. or {name: [A100, H100], count: 1..8, memory: 24GB.., vendor: nvidia}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,63}")
KEYS = ("name", "count", "memory", "vendor")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_mb: int
    vendor: str = "nvidia"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """Any of `names` (none: any name). A count below one is a least share of a single GPU."""

    count: Range = ONE
    names: tuple[str, ...] = ()
    memory_mb: Range = ANY
    vendor: str = ""

    @property
    def fraction(self) -> bool:
        return self.count.lo < 1

    def accepts(self, gpu: Gpu) -> bool:
        return (
            (not self.vendor or self.vendor == gpu.vendor.lower())
            and (not self.names or any(named(gpu.name, wanted) for wanted in self.names))
            and self.memory_mb.lo * REPORTED_SHARE <= gpu.memory_mb
            and (self.memory_mb.hi is None or gpu.memory_mb <= self.memory_mb.hi)
        )

    @property
    def kind(self) -> str:
        """`A100 or H100 of 40GB..`, for sentences; the count is not part of it."""
        words = [self.vendor, " or ".join(self.names) or "GPU"]
        memory = f"of {format_range(self.memory_mb, format_size)}" if self.memory_mb != ANY else ""
        return " ".join(word for word in (*words, memory) if word)


@lru_cache(maxsize=4096)
def named(model: str, wanted: str) -> bool:
    """`A100` is any run of words in `NVIDIA A100-SXM4-80GB`; `A10` is not. `RTX4090` is `GeForce RTX 4090`."""
    words = re.findall(r"[A-Z0-9]+", model.upper())
    target = "".join(re.findall(r"[A-Z0-9]+", wanted.upper()))
    runs = ("".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
    return any(run == target for run in runs)


def parse_gpu(value: object) -> GpuRequest | None:
    """What `gpu:` says; `0` is none."""
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if not isinstance(value, str):
        return _from_mapping({"count": value})
    parts: dict[str, object] = {}
    for token in (token.strip() for token in value.split(":")):
        key = _key_of(token)
        if key in parts:
            raise _bad(f"{value!r} gives the {key} twice")
        parts[key] = token.split(",") if key == "name" else token
    return _from_mapping(parts)


def _key_of(token: str) -> str:
    if token.lower() in VENDORS:
        return "vendor"
    ends = [end.strip() for end in token.split("..", 1)]
    if any(ends) and all(not end or size_mb(end) is not None for end in ends):
        return "memory"
    if any(ends) and all(not end or number(end) is not None for end in ends):
        return "count"
    return "name"


def _from_mapping(parts: Mapping[object, object] | Mapping[str, object]) -> GpuRequest | None:
    for key in parts:
        if key not in KEYS:
            raise _bad(f"{key!r} is not one of {', '.join(KEYS)}")
    count = _count(parts.get("count"))
    vendor = "" if parts.get("vendor") is None else parts["vendor"]
    if vendor != "" and (not isinstance(vendor, str) or vendor.lower() not in VENDORS):
        raise _bad(f"vendor {vendor!r} is not one of {', '.join(VENDORS)}")
    memory = parts.get("memory")
    memory_mb = ANY if memory is None else parse_range(memory, "gpu memory", size_mb, "24GB, 24GB.. or 24GB..80GB")
    names = _names(parts.get("name"))
    return GpuRequest(count, names, memory_mb, str(vendor).lower()) if count.hi != 0 else None


def _count(value: object) -> Range:
    if value is None:
        return ONE
    count = parse_range(value, "gpu count", number, "2, 1..8, 2.. or 0.5")
    text = str(value)
    if ".." not in text:
        count = Range(count.lo, count.lo)
    elif count.lo == 0 and count.hi != 0:
        count = Range(1, count.hi)
    share = 0 < count.lo < 1 and count.hi == count.lo
    if not share and any(end != int(end) for end in (count.lo, count.hi or 0)):
        raise _bad(f"count {text}: only a share of a single GPU, below 1, may be a fraction")
    if count.hi is not None and count.hi < count.lo:
        raise _bad(f"count {text}: a range counts whole GPUs, at least 1")
    return count


def _names(value: object) -> tuple[str, ...]:
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise _bad(f"name {value!r} is not a name or a list of names")
    names: list[str] = []
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name.strip()):
            raise _bad(f"{name!r} is not the name of a GPU")
        names += [name.strip()] if name.strip() not in names else []
    return tuple(names)


def _bad(what: str) -> UserError:
    return UserError(f"gpu: {what}.", hint=f"Write it as {_EXAMPLE}.")


def format_gpu(gpu: GpuRequest) -> str | dict[str, object]:
    """The short form where it is read back as the same, else the long one."""
    count = format_number(gpu.count.lo) if gpu.count.lo == gpu.count.hi else format_range(gpu.count, format_number)
    memory = format_range(gpu.memory_mb, format_size) if gpu.memory_mb != ANY else ""
    short = ":".join(part for part in (gpu.vendor, ",".join(gpu.names), memory, count) if part)
    if _reads_back(short, gpu):
        return short
    parts: dict[str, object] = {"name": list(gpu.names), "count": count, "memory": memory, "vendor": gpu.vendor}
    return {key: part for key, part in parts.items() if part}


def _reads_back(short: str, gpu: GpuRequest) -> bool:
    """A card may have a name like a count or a size (`4090`), which only the long form can hold."""
    try:
        return parse_gpu(short) == gpu
    except UserError:
        return False
