"""How our agents get to a host: a tree made of layers, of which only those travel that the host does not have."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path, PurePath
from typing import Final, Protocol

from stoker.core.errors import Unavailable
from stoker.transport.remote import Remote

PIECE_BYTES: Final = 256 * 1024
SHIP_S: Final = 540.0
"""Less than a performance may take."""
UNPACKED: Final = 4
"""How many times as large as its archive a layer may become."""

LAYER: Final = """\
set -e
umask 022
base=$1 layer=$2
mkdir -p "$base/bundle/layers"
chmod 711 "$base"
new="$base/bundle/layers/.$layer"
rm -rf "$new"
mkdir "$new"
tar -xzpof - -C "$new"
rm -rf "$base/bundle/layers/$layer"
mv "$new" "$base/bundle/layers/$layer"
"""
"""Unpacks the layer $2, which comes as stdin."""

TREE: Final = """\
set -e
umask 022
base=$1 digest=$2
shift 2
new="$base/bundle/.$digest"
rm -rf "$new"
mkdir "$new"
for layer in "$@"; do
  cp -al "$base/bundle/layers/$layer/." "$new/" 2>/dev/null || cp -a "$base/bundle/layers/$layer/." "$new/"
done
cat >"$new/bundle.json"
rm -rf "$base/bundle/$digest"
mv "$new" "$base/bundle/$digest"
for layer in "$base"/bundle/layers/* "$base"/bundle/layers/.[!.]*; do
  case " $* " in *" ${layer##*/} "*) ;; *) rm -rf "$layer" ;; esac
done
"""
"""Makes the tree $2 of layers that are there, and removes those of which it is not made."""


class Layer(Protocol):
    @property
    def sha256(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def archive(self) -> Path: ...


class Parcel(Protocol):
    """A tree that runs wherever it is put."""

    @property
    def digest(self) -> str: ...

    @property
    def layers(self) -> Sequence[Layer]: ...

    @property
    def manifest(self) -> str: ...

    def command(self, root: PurePath, module: str) -> list[str]:
        """Starts a module of ours from a tree at `root`."""
        ...


def lacking(parcel: Parcel, trees: Sequence[str], layers: Sequence[str]) -> list[Layer]:
    """What has to travel to a host that has these."""
    return [] if parcel.digest in trees else [one for one in parcel.layers if one.sha256 not in layers]


async def ship(
    remote: Remote, base: str, parcel: Parcel, trees: Sequence[str], layers: Sequence[str], sent: Callable[[int], None]
) -> None:
    """`sent` is told how many bytes have travelled."""
    if parcel.digest in trees:
        return
    before = 0
    for layer in lacking(parcel, trees, layers):
        feed = _read(layer.archive, before, sent)
        await _do(remote, LAYER, base, layer.sha256, feed=feed)
        before += layer.size_bytes
    await _do(remote, TREE, base, parcel.digest, *(one.sha256 for one in parcel.layers), feed=_text(parcel.manifest))


async def _do(remote: Remote, script: str, *words: str, feed: AsyncIterator[bytes]) -> None:
    told = await remote.run(script, *words, limit_s=SHIP_S, feed=feed)
    if told.code:
        raise failed(told.err, f"The agents could not be put there: {told.said}.")


def failed(err: str, said: str) -> Unavailable:
    """With the reason for which it fails most often."""
    if "No space left" in err or "quota exceeded" in err:
        return Unavailable("Its disk is full.", hint="Make room there; it is tried again.", code="disk_full")
    return Unavailable(said)


async def _text(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


async def _read(archive: Path, before: int, sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(open, archive, "rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
            before += len(piece)
            sent(before)
