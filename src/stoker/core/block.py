"""An instance is divided into blocks, and every job on it holds some of them.

Theory of operation. All blocks of an instance are the same size: one of N is an Nth of its CPUs, memory,
disk and named resources, and where there are GPUs either a whole number of them (N divides the GPUs) or
an equal share of one (N is a multiple of the GPUs). So what a job asks for becomes one number, the fewest
blocks whose share satisfies it, and overselling becomes impossible: no block is held twice.

Three rules about GPUs. All GPUs a job gets are of the kind it asked for. Whole GPUs are never shared:
where a GPU is several blocks, a job takes all of them. A count below one is a least share of a single
GPU: the job gets at least that much and at most the whole of one, and never parts of two.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from stoker.core import phrase
from stoker.core.errors import Broken, UserError
from stoker.core.gpu import GpuRequest
from stoker.core.ids import JobId
from stoker.core.quantity import Range, format_number
from stoker.core.resources import Capacity, Request

AUTO = "auto"
AUTO_BLOCKS_PER_CPU = 16
MAX_BLOCKS = 16_384
WHOLE = "a whole instance"
ENGINE = "docker"
"""The limit that a container meets where there is nothing to run it."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a request does not fit: which limit it meets, in a sentence and in numbers."""

    code: str
    sentence: str
    needs: float = 0
    has: float = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What some blocks of an instance are together."""

    cpu: float
    memory_mb: int
    disk_mb: int
    gpus: float
    named: Mapping[str, int]


def divide(capacity: Capacity, blocks: int | str) -> int:
    """How many blocks `blocks: N | auto` makes of a machine."""
    gpus = len(capacity.gpus)
    if blocks == AUTO:
        return gpus or min(MAX_BLOCKS, max(1, int(capacity.cpu * AUTO_BLOCKS_PER_CPU)))
    hint = "Write blocks: auto, or a whole number such as blocks: 4."
    if isinstance(blocks, bool) or not isinstance(blocks, int) or not 1 <= blocks <= MAX_BLOCKS:
        raise UserError(f"blocks: expected auto or 1 to {MAX_BLOCKS}, got {blocks!r}.", hint=hint)
    if not _divides(gpus, blocks):
        raise UserError(
            f"blocks: {gpus} GPUs cannot be divided evenly into {blocks} blocks.",
            hint=f"Use a number that divides {gpus}, or a multiple of {gpus} to share each GPU.",
        )
    return blocks


def _divides(gpus: int, total: int) -> bool:
    return gpus == 0 or gpus % total == 0 or total % gpus == 0


def blocks_per_gpu(capacity: Capacity, total: int) -> int:
    """More than one where GPUs are shared, else one or (without GPUs) zero."""
    return max(1, total // len(capacity.gpus)) if capacity.gpus else 0


def share(capacity: Capacity, total: int, n: int) -> Share:
    """What `n` of `total` blocks are, rounded down, so that shares never add up to more than there is."""
    return Share(
        cpu=round(capacity.cpu * 1000) * n // total / 1000,
        memory_mb=capacity.memory_mb * n // total,
        disk_mb=capacity.disk_mb * n // total,
        gpus=len(capacity.gpus) * n / total,
        named={name: amount * n // total for name, amount in capacity.named.items()},
    )


def gpu_indices(capacity: Capacity, total: int, numbers: Iterable[int]) -> tuple[int, ...]:
    """The GPUs behind these blocks; a job that asked for none should be shown none."""
    each = max(1, len(capacity.gpus) // total)
    of_one = blocks_per_gpu(capacity, total)
    if not of_one:
        return ()
    places = {number // of_one * each + extra for number in numbers for extra in range(each)}
    return tuple(capacity.gpus[place].index for place in sorted(places))


def need(capacity: Capacity, total: int, request: Request, *, whole: bool = False) -> int | Misfit:
    """The fewest blocks whose share satisfies the request, on an empty machine."""
    if request.container and not capacity.docker:
        return Misfit(ENGINE, "has no Docker engine", 1, 0)
    least, step, most = 1, 1, total
    if request.gpu is not None:
        found = _gpu_need(capacity, total, request.gpu)
        if isinstance(found, Misfit):
            return found
        least, step, most = found
    for code, asked, has in _amounts(capacity, request):
        if asked.lo > has:
            needs = phrase.amount(code, asked.lo, up=True)
            return Misfit(code, f"needs {needs}, has {phrase.bare(code, has)}", asked.lo, has)
        if asked.lo > 0:
            # In thousandths, the finest amount there is: floats would ask for a block too many.
            least = max(least, -(-round(asked.lo * 1000) * total // round(has * 1000)))
    n = total if whole else -(-least // step) * step
    if n > most:
        needs = WHOLE if whole else phrase.needed(request)
        return Misfit("gpu", f"needs {needs}, more than goes with the GPUs it asks for", n, most)
    return _over(capacity, total, request, n) or n


def _amounts(capacity: "Capacity | Share", request: Request) -> Iterator[tuple[str, Range, float]]:
    yield "cpu", request.cpu, capacity.cpu
    yield "memory", request.memory_mb, capacity.memory_mb
    yield "disk", request.disk_mb, capacity.disk_mb
    for name, amount in request.named.items():
        yield name, Range(amount), capacity.named.get(name, 0)


def _gpu_need(capacity: Capacity, total: int, gpu: GpuRequest) -> tuple[int, int, int] | Misfit:
    """The least blocks by GPUs alone, the step they come in, and the most that GPUs of this kind allow."""
    good = sum(gpu.accepts(one) for one in capacity.gpus)
    if good < max(1, gpu.count.lo):
        among = f" among its {phrase.amount('gpu', len(capacity.gpus))}" if good < len(capacity.gpus) else ""
        return Misfit("gpu", f"needs {phrase.gpus(gpu)}, has {good}{among}", gpu.count.lo, good)
    of_one = blocks_per_gpu(capacity, total)
    each = max(1, len(capacity.gpus) // total)
    if gpu.fraction:
        if each > 1:
            return Misfit("gpu", f"needs a share of one GPU, has GPUs only {each} at a time", 1, each)
        return -(-round(gpu.count.lo * 1000) * of_one // 1000), 1, of_one
    most = _eligible(capacity, total, gpu).bit_count()
    return -(-int(gpu.count.lo) // each) * of_one, of_one, most


def _over(capacity: Capacity, total: int, request: Request, n: int) -> Misfit | None:
    """More GPUs than the job may have; fewer blocks would be too little, so nothing fits.

    Upper bounds of the rest refuse no machine: they limit what the job uses of its share.
    """
    if request.gpu is None:
        return None
    most, gets = 1 if request.gpu.fraction else request.gpu.count.hi, share(capacity, total, n).gpus
    if most is None or gets <= most:
        return None
    sentence = f"would get {phrase.amount('gpu', gets)} with what it needs, asked for at most {format_number(most)}"
    return Misfit("gpus upper bound", sentence, most, gets)


def _eligible(capacity: Capacity, total: int, gpu: GpuRequest | None) -> int:
    """The blocks (a bit each) all of whose GPUs are of the kind asked for."""
    if gpu is None or all(gpu.accepts(one) for one in capacity.gpus):
        return (1 << total) - 1
    bad = {one.index for one in capacity.gpus if not gpu.accepts(one)}
    return sum(1 << number for number in range(total) if bad.isdisjoint(gpu_indices(capacity, total, (number,))))


def pick(capacity: Capacity, total: int, free: int, request: Request, n: int) -> int:
    """Chooses `n` of the free blocks, a bit each; 0 when the free ones do not serve. `n` comes from `need`."""
    of_one = blocks_per_gpu(capacity, total)
    if n == total:
        return free if free.bit_count() == total else 0
    if of_one <= 1:
        return _together(free & _eligible(capacity, total, request.gpu), n)
    one = (1 << of_one) - 1
    groups = [(free >> place * of_one & one, place) for place in range(len(capacity.gpus))]
    if request.gpu is None:
        return _broken_first(groups, of_one, n)
    groups = [(mask, place) for mask, place in groups if request.gpu.accepts(capacity.gpus[place])]
    if request.gpu.fraction:
        # The GPU with the least room that is enough, so that the others stay whole.
        fitting = min(((m.bit_count(), p, m) for m, p in groups if m.bit_count() >= n), default=(0, 0, 0))
        return _together(fitting[2], n) << fitting[1] * of_one
    places = _together(sum(1 << place for mask, place in groups if mask == one), n // of_one)
    return sum(one << place * of_one for place in numbers_of(places))


def _broken_first(groups: list[tuple[int, int]], of_one: int, n: int) -> int:
    """Blocks for a job without GPUs, from the GPUs that have the least room, so that whole ones stay whole."""
    taken = 0
    for mask, place in sorted(groups, key=lambda group: (group[0].bit_count(), group[1])):
        some = _together(mask, min(n - taken.bit_count(), mask.bit_count()))
        taken |= some << place * of_one
    return taken if taken.bit_count() == n else 0


def _together(free: int, n: int) -> int:
    """The smallest run of free bits that holds `n`, the lowest among equals; else the lowest `n`; else 0."""
    if n <= 0 or free.bit_count() < n:
        return 0
    best, scattered = (free.bit_length() + 1, -1), 0
    rest, base = free, 0
    while rest:
        skip = (rest & -rest).bit_length() - 1
        rest, base = rest >> skip, base + skip
        length = (~rest & (rest + 1)).bit_length() - 1
        if length >= n:
            best = min(best, (length, base))
        part = min(length, n - scattered.bit_count())
        scattered |= ((1 << part) - 1) << base
        rest, base = rest >> length, base + length
    return ((1 << n) - 1) << best[1] if best[1] >= 0 else scattered


def numbers_of(mask: int) -> tuple[int, ...]:
    return tuple(number for number, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Who holds which blocks of one instance. A value: taking and giving make a new one."""

    capacity: Capacity
    total: int = 1
    held: Mapping[JobId, tuple[int, ...]] = field(default_factory=dict)
    free: int = field(init=False, compare=False, repr=False)  # a bit each, set while nobody holds it

    def __post_init__(self) -> None:
        if not 1 <= self.total <= MAX_BLOCKS or not _divides(len(self.capacity.gpus), self.total):
            raise Broken(f"{len(self.capacity.gpus)} GPUs are not {self.total} blocks")
        free = (1 << self.total) - 1
        for job, numbers in self.held.items():
            for number in numbers:
                if not 0 <= number < self.total or not free >> number & 1:
                    raise Broken(f"block {number} of {self.total}, held by {job}, does not exist or is held twice")
                free ^= 1 << number
        object.__setattr__(self, "free", free)

    @property
    def free_count(self) -> int:
        return self.free.bit_count()

    def fits(self, request: Request, *, whole: bool = False) -> int | Misfit:
        """How many blocks it would take now."""
        chosen = self._choose(request, whole)
        return chosen if isinstance(chosen, Misfit) else chosen.bit_count()

    def take(self, job: JobId, request: Request, *, whole: bool = False) -> "Blocks | Misfit":
        """Blocks for a job; a job that holds some already keeps those."""
        if job in self.held:
            return self
        chosen = self._choose(request, whole)
        return chosen if isinstance(chosen, Misfit) else self.hold(job, numbers_of(chosen))

    def hold(self, job: JobId, numbers: tuple[int, ...]) -> "Blocks":
        """These very blocks, as a plan chose them; `Broken` when another job has one of them."""
        if self.held.get(job) == numbers:
            return self
        return Blocks(self.capacity, self.total, {**self.held, job: numbers})

    def give(self, job: JobId) -> "Blocks":
        """Without what the job held; a job that held nothing changes nothing."""
        if job not in self.held:
            return self
        return Blocks(self.capacity, self.total, {other: held for other, held in self.held.items() if other != job})

    def gpu_indices(self, job: JobId) -> tuple[int, ...]:
        return gpu_indices(self.capacity, self.total, self.held.get(job, ()))

    def _choose(self, request: Request, whole: bool) -> int | Misfit:
        n = need(self.capacity, self.total, request, whole=whole)
        if isinstance(n, Misfit):
            return n
        return pick(self.capacity, self.total, self.free, request, n) or busy(
            self.capacity, self.total, self.free_count, n, request
        )


def busy(capacity: Capacity, total: int, free: int, n: int, request: Request) -> Misfit:
    """The misfit of a request that would fit an empty machine."""
    needs, has = shortage(capacity, total, free, n, request)
    return Misfit("busy", f"needs {needs}, has {has}", n, free)


def shortage(capacity: Capacity, total: int, free: int, n: int, request: Request) -> tuple[str, str]:
    """What such a request needs, and what is free of that which is short, in words."""
    left = share(capacity, total, free)
    gpus = phrase.spare("gpu", left.gpus, len(capacity.gpus))
    needs = phrase.needed(request)
    if free >= n and request.gpu is not None:
        return needs, f"{gpus} free, but not such as it could use"
    pairs = zip(_amounts(left, request), _amounts(capacity, request), strict=True)
    short = [phrase.spare(code, has, of) for (code, asked, has), (_, _, of) in pairs if asked.lo > has]
    if request.gpu is not None and request.gpu.count.lo > left.gpus:
        short.append(gpus)
    if not short:
        needs = WHOLE if n == total else needs or "a share of an instance"
        short.append(gpus if request.gpu is not None else phrase.spare("cpu", left.cpu, capacity.cpu))
    return needs, f"{phrase.joined(short)} free"
