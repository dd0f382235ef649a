"""What people write under `resources:` is understood, printed back the same, or refused with an example."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.gpu import VENDORS, named
from stoker.core.resources import ANY, Capacity, Gpu, GpuRequest, Range, Request, format_request, parse_request

GB = 1024


@st.composite
def ranges(draw: st.DrawFn, finest: int = 1, most: int = 2**40) -> Range:
    ends = sorted(draw(st.lists(st.integers(0, most), min_size=2, max_size=2)))
    lo, hi = (end / finest if end % finest else end // finest for end in ends)
    return draw(st.sampled_from([Range(lo), Range(lo, hi), Range(0, hi)]))


@st.composite
def gpu_requests(draw: st.DrawFn) -> GpuRequest:
    whole = ranges(most=64).map(lambda r: Range(max(1, r.lo), None if r.hi is None else max(1, r.hi)))
    fraction = st.integers(1, 999).map(lambda n: Range(n / 1000, n / 1000))
    name = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9 ._/+-]{0,8}[A-Za-z0-9])?", fullmatch=True)
    names = draw(st.lists(name | st.sampled_from(["4090", "16GB", "nvidia", "2..4"]), max_size=3, unique=True))
    return GpuRequest(draw(whole | fraction), tuple(names), draw(ranges()), draw(st.sampled_from(["", *VENDORS])))


requests = st.builds(
    Request,
    cpu=ranges(finest=1000),
    memory_mb=ranges(),
    disk_mb=ranges(),
    gpu=st.none() | gpu_requests(),
    named=st.dictionaries(st.from_regex(r"[a-z][a-z0-9_.-]{0,9}", fullmatch=True), st.integers(1, 10**6), max_size=3),
)


@given(requests)
def test_a_request_survives_the_database(request: Request) -> None:
    """A run is submitted, stored as JSONB, and read by another replica an hour later: nothing may have changed."""
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert parse_request(format_request(request)) == request
    assert str(request)


@given(requests, requests)
def test_equal_requests_hash_alike(one: Request, other: Request) -> None:
    """The placer groups identical requests, so equality and hash must agree."""
    again = parse_request(format_request(one))
    assert hash(again) == hash(one)
    assert (one == other) <= (hash(one) == hash(other))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({}, Request()),
        (None, Request()),
        ({"cpu": None}, Request()),
        ({"cpu": 4}, Request(cpu=Range(4))),
        ({"cpu": 0.5}, Request(cpu=Range(0.5))),
        ({"cpu": "4.."}, Request(cpu=Range(4))),
        ({"cpu": "..8"}, Request(cpu=Range(0, 8))),
        ({"cpu": "2..8"}, Request(cpu=Range(2, 8))),
        ({"cpu": " 2 .. 8 "}, Request(cpu=Range(2, 8))),
        ({"memory": "8GB"}, Request(memory_mb=Range(8 * GB))),
        ({"memory": "8GB..16GB"}, Request(memory_mb=Range(8 * GB, 16 * GB))),
        ({"memory": "512mb.."}, Request(memory_mb=Range(512))),
        ({"disk": "1.5 TB"}, Request(disk_mb=Range(1536 * GB))),
        ({"gpu": 0}, Request()),
        ({"gpu": 2}, Request(gpu=GpuRequest(Range(2, 2)))),
        ({"gpu": "2.."}, Request(gpu=GpuRequest(Range(2)))),
        ({"gpu": "..4"}, Request(gpu=GpuRequest(Range(1, 4)))),
        ({"gpu": 0.5}, Request(gpu=GpuRequest(Range(0.5, 0.5)))),
        ({"gpu": "A100"}, Request(gpu=GpuRequest(names=("A100",)))),
        ({"gpu": "A100:2"}, Request(gpu=GpuRequest(Range(2, 2), ("A100",)))),
        ({"gpu": "2:A100"}, Request(gpu=GpuRequest(Range(2, 2), ("A100",)))),
        ({"gpu": "A100:40GB..:2"}, Request(gpu=GpuRequest(Range(2, 2), ("A100",), Range(40 * GB)))),
        ({"gpu": "24GB.."}, Request(gpu=GpuRequest(memory_mb=Range(24 * GB)))),
        ({"gpu": "AMD:MI300X,MI250"}, Request(gpu=GpuRequest(names=("MI300X", "MI250"), vendor="amd"))),
        (
            {"gpu": {"name": ["A100", "H100"], "count": "1..8", "memory": "24GB..", "vendor": "nvidia"}},
            Request(gpu=GpuRequest(Range(1, 8), ("A100", "H100"), Range(24 * GB), "nvidia")),
        ),
        ({"named": {"license": 2, "none": 0}}, Request(named={"license": 2})),
    ],
)
def test_what_is_written_is_what_is_meant(written: Any, meant: Request) -> None:
    """The forms of the documentation, each read as its author means it."""
    assert parse_request(written) == meant


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("8 cpus", "expected a mapping"),
        ({"cpus": 4}, "'cpus' is not one of cpu, memory, disk, gpu, named"),
        ({"cpu": True}, "got True"),
        ({"cpu": "four"}, "'four' is not an amount"),
        ({"cpu": ".."}, "'..' is not an amount"),
        ({"cpu": -1}, "'-1' is not an amount"),
        ({"cpu": float("nan")}, "'nan' is not an amount"),
        ({"cpu": "8..2"}, "ends before it begins"),
        ({"cpu": 1e30}, "more than any machine has"),
        ({"memory": 8}, "'8' is not an amount"),
        ({"memory": "8Gb/s"}, "not an amount"),
        ({"memory": ["8GB"]}, "expected an amount"),
        ({"gpu": 1.5}, "only a share of a single GPU"),
        ({"gpu": "0.5..2"}, "only a share of a single GPU"),
        ({"gpu": True}, "got True"),
        ({"gpu": -1}, "'-1' is not an amount"),
        ({"gpu": ""}, "not the name of a GPU"),
        ({"gpu": "A100:2:3"}, "gives the count twice"),
        ({"gpu": {"model": "A100"}}, "'model' is not one of name, count, memory, vendor"),
        ({"gpu": {"vendor": False}}, "vendor False is not one of nvidia"),
        ({"gpu": {"vendor": 0}}, "vendor 0 is not one of nvidia"),
        ({"gpu": {"vendor": "nvdia"}}, "vendor 'nvdia' is not one of nvidia"),
        ({"gpu": {"name": 4090}}, "not a name or a list of names"),
        ({"gpu": {"memory": 24}}, "not an amount"),
        ({"named": ["license"]}, "expected names and whole numbers"),
        ({"named": {"license": 0.5}}, "expected a whole number"),
        ({"named": {"my license": 1}}, "is not a name"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_write(written: Any, says: str) -> None:
    """A typo in a configuration must not become a run that waits for ever for something nobody has."""
    with pytest.raises(UserError) as refused:
        parse_request(written)
    assert says in refused.value.sentence
    assert "Write" in refused.value.hint or "as in" in refused.value.hint


def test_a_gpu_is_known_by_the_name_people_use() -> None:
    """Drivers say `NVIDIA A100-SXM4-80GB`; people write A100. A10 must not be given an A100, nor L40 an L40S."""
    assert named("NVIDIA A100-SXM4-80GB", "a100")
    assert named("NVIDIA GeForce RTX 4090", "RTX4090")
    assert named("NVIDIA GeForce RTX 4090", "4090")
    assert not named("NVIDIA A100-SXM4-80GB", "A10")
    assert not named("NVIDIA L40S", "L40")


def test_a_card_sold_as_24gb_counts_as_24gb() -> None:
    """An L4 reports 23034 MB: a job that asks for `24GB..` runs on it, one that asks for `40GB..` does not."""
    l4 = Gpu(0, "NVIDIA L4", 23034)
    assert GpuRequest(memory_mb=Range(24 * GB)).accepts(l4)
    assert not GpuRequest(memory_mb=Range(40 * GB)).accepts(l4)
    assert not GpuRequest(memory_mb=Range(0, 16 * GB)).accepts(l4)
    assert not GpuRequest(vendor="amd").accepts(l4)


def test_a_machine_survives_the_database() -> None:
    """What a host reported once is stored with the instance."""
    machine = Capacity(7.5, 64 * GB, 10, (Gpu(0, "A100", 40 * GB), Gpu(3, "MI300X", 192 * GB, "amd")), {"license": 2})
    assert Capacity.from_json(json.loads(json.dumps(machine.to_json()))) == machine


def test_a_range_holds_both_its_ends() -> None:
    """`2..8` means two and eight too."""
    assert [n for n in range(10) if Range(2, 8).holds(n)] == [2, 3, 4, 5, 6, 7, 8]
    assert ANY.holds(0)
