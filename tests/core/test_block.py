"""Blocks of an instance are never sold twice, and a job gets what it asked for."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.block import Blocks, Misfit, divide, gpu_indices, need, share
from stoker.core.errors import Broken, UserError
from stoker.core.ids import JobId
from stoker.core.resources import Capacity, Gpu, Request, parse_request

GB = 1024


def job(n: int) -> JobId:
    return JobId(UUID(int=n))


def machine(cpu: float = 8, memory_gb: int = 32, gpus: Sequence[str] = (), **named: int) -> Capacity:
    cards = tuple(Gpu(index, name, 80 * GB) for index, name in enumerate(gpus))
    return Capacity(cpu, memory_gb * GB, 1000 * GB, cards, named)


def ask(**resources: Any) -> Request:
    return parse_request(resources)


def taken(blocks: Blocks | Misfit) -> Blocks:
    assert isinstance(blocks, Blocks), blocks
    return blocks


def refusal(outcome: object) -> str:
    assert isinstance(outcome, Misfit), outcome
    return outcome.sentence


def test_auto_is_a_block_a_gpu_else_sixteen_a_cpu() -> None:
    """`stoker up` on a laptop runs many small things at once; on a GPU host a job gets a card."""
    assert divide(machine(gpus=["A100"] * 8), "auto") == 8
    assert divide(machine(cpu=4), "auto") == 64
    assert divide(machine(cpu=0.01), "auto") == 1


def test_blocks_must_divide_the_gpus_or_share_each_evenly() -> None:
    """Eight GPUs are 1, 2, 4 or 8 blocks, or 16 halves; three blocks would tear a card apart."""
    eight = machine(gpus=["A100"] * 8)
    assert [n for n in range(1, 33) if _divisible(eight, n)] == [1, 2, 4, 8, 16, 24, 32]
    assert divide(machine(), 3) == 3
    with pytest.raises(UserError, match="8 GPUs cannot be divided evenly into 3 blocks"):
        divide(eight, 3)


def _divisible(capacity: Capacity, n: int) -> bool:
    try:
        return divide(capacity, n) == n
    except UserError:
        return False


@pytest.mark.parametrize("blocks", [0, -1, True, "many", 2.0, 10**9])
def test_a_strange_number_of_blocks_is_refused(blocks: Any) -> None:
    """`blocks: many` in a fleet's configuration is told what to write."""
    with pytest.raises(UserError, match="expected auto or 1 to"):
        divide(machine(), blocks)


def test_a_share_is_an_equal_part_of_everything() -> None:
    """A quarter of a machine is a quarter of its cards, CPUs and licences."""
    got = share(machine(cpu=6, memory_gb=32, gpus=["A100"] * 8, license=5), 4, 1)
    assert (got.cpu, got.memory_mb, got.gpus, got.named) == (1.5, 8 * GB, 2, {"license": 1})


@pytest.mark.parametrize(
    ("request_", "blocks"),
    [
        (ask(), 1),
        (ask(cpu=0.5), 1),
        (ask(cpu=1), 2),
        (ask(cpu=1.001), 3),
        (ask(memory="8GB"), 4),
        (ask(cpu=1, memory="8GB"), 4),
        (ask(cpu=8), 16),
        (ask(disk="1000GB"), 16),
        (ask(named={"license": 2}), 8),
    ],
)
def test_a_job_takes_as_many_blocks_as_its_resources_need(request_: Request, blocks: int) -> None:
    """Eight CPUs, 32 GB and four licences in sixteen blocks."""
    assert need(machine(license=4), 16, request_) == blocks


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ask(cpu=16), "needs 16 CPUs, has 8"),
        (ask(memory="64GB"), "needs 64 GB of memory, has 32 GB"),
        (ask(disk="2TB"), "needs 2 TB of disk, has 1000 GB"),
        (ask(gpu=4), "needs 4 GPUs, has 2"),
        (ask(gpu="H100"), "needs 1 H100, has 0 among its 2 GPUs"),
        (ask(gpu="amd:192GB.."), "needs 1 amd GPU of 192GB.., has 0 among its 2 GPUs"),
        (ask(named={"license": 1}), "needs 1 license, has 0"),
        (ask(gpu=1, memory="20GB"), "would get 2 GPUs with what it needs, asked for at most 1"),
        (ask(gpu=0.5, cpu=5), "needs 5 CPUs and 0.5 GPUs, more than goes with the GPUs it asks for"),
    ],
)
def test_what_can_never_fit_says_which_limit_with_numbers(request_: Request, says: str) -> None:
    """`stoker why` shows these words beside the machine's name."""
    assert refusal(need(machine(gpus=["A100", "A100"]), 2, request_)) == says


def test_an_upper_bound_is_a_limit_and_refuses_no_machine() -> None:
    """A block is as large as somebody made it; the host's agent sees to it that the job uses no more."""
    assert need(machine(), 2, ask(cpu="..2", memory="..100MB", disk="1GB..2GB")) == 1
    assert need(machine(), 2, ask(cpu="6..7")) == 2


def test_an_undivided_machine_is_not_given_to_a_job_that_wants_less_gpus() -> None:
    """Eight cards in one block: `gpu: 2` would see eight. `2..` says that more is welcome."""
    eight = machine(gpus=["A100"] * 8)
    assert refusal(need(eight, 1, ask(gpu=2))) == "would get 8 GPUs with what it needs, asked for at most 2"
    assert need(eight, 1, ask(gpu="2..")) == 1


def test_all_gpus_of_a_job_are_of_the_kind_it_asked_for() -> None:
    """A workstation with two A100 and a small card for the screen."""
    mixed = Blocks(machine(gpus=["A100", "T400", "A100"]), 3)
    assert taken(mixed.take(job(1), ask(gpu="A100:2"))).gpu_indices(job(1)) == (0, 2)
    assert refusal(mixed.fits(ask(gpu="A100:3"))) == "needs 3 A100, has 2 among its 3 GPUs"
    whole = refusal(mixed.fits(ask(gpu="A100:2.."), whole=True))
    assert whole == "needs a whole instance, more than goes with the GPUs it asks for"


def test_gpu_numbers_follow_the_blocks() -> None:
    """The shim is told which cards to hand through; the host counts them its own way."""
    cards = tuple(Gpu(index, "A100", 80 * GB) for index in (1, 3, 5, 7))
    host = Capacity(8, 32 * GB, gpus=cards)
    assert gpu_indices(host, 4, (0, 2)) == (1, 5)
    assert gpu_indices(host, 2, (1,)) == (5, 7)
    assert gpu_indices(host, 8, (0, 1, 5)) == (1, 5)
    assert gpu_indices(machine(), 4, (0, 1)) == ()


def test_two_halves_share_one_gpu_and_a_whole_one_stays_whole() -> None:
    """Two notebooks at half a card each, then a training run that wants a card for itself."""
    blocks = Blocks(machine(gpus=["A100", "A100"]), 4)
    blocks = taken(taken(blocks.take(job(1), ask(gpu=0.5))).take(job(2), ask(gpu=0.5)))
    assert blocks.gpu_indices(job(1)) == blocks.gpu_indices(job(2)) == (0,)
    blocks = taken(blocks.take(job(3), ask(gpu=1)))
    assert blocks.held[job(3)] == (2, 3)


def test_a_fraction_never_spans_two_gpus() -> None:
    """Half of each card is free: that is no 0.6 of any."""
    blocks = Blocks(machine(gpus=["A100"] * 2), 4, {job(1): (0,), job(2): (2,)})
    assert refusal(blocks.fits(ask(gpu=0.6))) == "needs 0.6 GPUs, has 1 of 2 GPUs free, but not such as it could use"
    assert refusal(blocks.fits(ask(gpu=1))) == "needs 1 GPU, has 1 of 2 GPUs free, but not such as it could use"


def test_a_fraction_gets_a_whole_gpu_where_gpus_are_not_shared() -> None:
    """`gpu: 0.5` on a host with a block a card: more than it asked for, and it runs."""
    assert need(machine(gpus=["A100"] * 2), 2, ask(gpu=0.5)) == 1
    undivided = refusal(need(machine(gpus=["A100"] * 2), 1, ask(gpu=0.5)))
    assert undivided == "needs a share of one GPU, has GPUs only 2 at a time"


def test_a_job_without_gpus_leaves_whole_gpus_whole() -> None:
    """A small CPU job goes beside the half-used card."""
    blocks = Blocks(machine(gpus=["A100"] * 2), 4, {job(1): (3,)})
    assert taken(blocks.take(job(2), ask(cpu=1))).held[job(2)] == (2,)


def test_blocks_are_taken_from_the_smallest_gap_that_holds_them() -> None:
    """Neighbouring cards talk faster, and large gaps stay for large jobs."""
    blocks = Blocks(machine(gpus=["A100"] * 8), 8, {job(1): (2,), job(2): (5,)})
    assert taken(blocks.take(job(3), ask(gpu=2))).held[job(3)] == (0, 1)
    assert taken(blocks.take(job(3), ask(gpu=3))).held[job(3)] == (0, 1, 3)


def test_a_job_of_several_nodes_takes_the_whole_instance() -> None:
    """Its network is the host's, so nobody may be beside it."""
    blocks = Blocks(machine(), 16)
    assert len(taken(blocks.take(job(1), ask(cpu=1), whole=True)).held[job(1)]) == 16
    shared = taken(blocks.take(job(2), ask()))
    assert refusal(shared.fits(ask(), whole=True)) == "needs a whole instance, has 7.5 of 8 CPUs free"


def test_taking_twice_is_taking_once_and_giving_back_nothing_changes_nothing() -> None:
    """Messages are repeated; holdings are not."""
    blocks = taken(Blocks(machine(), 16).take(job(1), ask(cpu=1)))
    assert blocks.take(job(1), ask(cpu=8)) is blocks
    assert blocks.hold(job(1), blocks.held[job(1)]) is blocks
    assert blocks.give(job(2)) is blocks
    assert blocks.give(job(1)).give(job(1)) == Blocks(machine(), 16)


@pytest.mark.parametrize("held", [{job(1): (0,), job(2): (0,)}, {job(1): (1, 1)}, {job(1): (4,)}, {job(1): (-1,)}])
def test_a_block_held_twice_is_a_bug_that_is_seen(held: dict[JobId, tuple[int, ...]]) -> None:
    """A row of the database that says so must stop the placer, not be sold a third time."""
    with pytest.raises(Broken):
        Blocks(machine(), 4, held)


@st.composite
def instances(draw: st.DrawFn) -> Blocks:
    gpus = draw(st.lists(st.sampled_from(["A100", "H100"]), max_size=4))
    capacity = machine(
        draw(st.sampled_from([1, 2.5, 8])), draw(st.integers(1, 64)), gpus, license=draw(st.integers(0, 5))
    )
    return Blocks(capacity, draw(st.integers(1, 24).filter(lambda n: _divisible(capacity, n))))


wishes = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([0.5, 1, "2..4", "..2", 7]),
        "memory": st.sampled_from(["1GB", "3GB..9GB", "..16GB"]),
        "gpu": st.sampled_from([1, 2, 0.25, 0.5, "A100", "A100:2..", "1..3", "H100:0.5"]),
        "named": st.just({"license": 1}),
    },
).map(parse_request)


@given(instances(), st.lists(st.tuples(st.integers(0, 7), wishes, st.booleans(), st.booleans()), max_size=30))
def test_no_sequence_of_taking_and_giving_oversells(
    blocks: Blocks, acts: list[tuple[int, Request, bool, bool]]
) -> None:
    """A busy day on one machine: whatever comes and goes, each gets its bounds and nobody gets another's."""
    for number, request, giving, whole in acts:
        before = blocks
        outcome = blocks.give(job(number)) if giving else blocks.take(job(number), request, whole=whole)
        if isinstance(outcome, Misfit):
            assert outcome.sentence
            continue
        blocks = outcome  # Blocks refuses a block held twice when it is made
        if not giving and job(number) not in before.held:
            assert blocks.give(job(number)) == before
            _got_what_it_asked_for(blocks, job(number), request, whole)
    used = [share(blocks.capacity, blocks.total, len(held)) for held in blocks.held.values()]
    assert sum(part.cpu for part in used) <= blocks.capacity.cpu + 1e-9
    assert sum(part.memory_mb for part in used) <= blocks.capacity.memory_mb
    assert sum(part.named["license"] for part in used) <= blocks.capacity.named["license"]


def _got_what_it_asked_for(blocks: Blocks, holder: JobId, request: Request, whole: bool) -> None:
    held = blocks.held[holder]
    got = share(blocks.capacity, blocks.total, len(held))
    assert got.cpu >= request.cpu.lo and got.memory_mb >= request.memory_mb.lo and got.disk_mb >= request.disk_mb.lo
    assert all(got.named[name] >= amount for name, amount in request.named.items())
    assert not whole or len(held) == blocks.total
    if request.gpu is None:
        return
    cards = [gpu for gpu in blocks.capacity.gpus if gpu.index in blocks.gpu_indices(holder)]
    assert all(request.gpu.accepts(gpu) for gpu in cards)
    if request.gpu.fraction:
        assert len(cards) == 1 and got.gpus >= request.gpu.count.lo
        return
    assert request.gpu.count.holds(len(cards)) and got.gpus == len(cards)
    assert not any(
        set(blocks.gpu_indices(other)) & {gpu.index for gpu in cards} for other in blocks.held if other != holder
    )


@given(instances(), wishes, st.booleans())
def test_what_fits_an_empty_machine_is_what_is_needed(blocks: Blocks, request: Request, whole: bool) -> None:
    """Nothing that `need` promises may fail on a machine that nobody uses."""
    wanted = need(blocks.capacity, blocks.total, request, whole=whole)
    assert blocks.fits(request, whole=whole) == wanted
