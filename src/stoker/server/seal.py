"""Seals what the database keeps and nobody who has only the database may read: private keys.

The key of the seal is a file of the server's home, made at the first need. Replicas that share a database share it too.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.core.errors import Unavailable, UserError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class Seal:
    def __init__(self, path: Path) -> None:
        self._path = path

    def seal(self, text: str, about: str) -> bytes:
        """`about` has to be said again to open it: one is not taken for another."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        nonce = os.urandom(_NONCE_BYTES)
        return nonce + ChaCha20Poly1305(self._key()).encrypt(nonce, text.encode(), about.encode())

    def open(self, sealed: bytes, about: str) -> str:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return ChaCha20Poly1305(self._key()).decrypt(nonce, rest, about.encode()).decode()
        except InvalidTag:
            hint = f"Copy {self._path.name} of the server that was there first to {self._path}, only for its owner."
            raise Unavailable("Keys for SSH were sealed by a server with another key.", hint=hint) from None

    def _key(self) -> bytes:
        with suppress(FileExistsError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(os.urandom(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
        key = self._path.read_bytes()
        if len(key) != KEY_BYTES:
            raise UserError(f"{self._path} is no key of {KEY_BYTES} bytes.", hint="Restore it from a backup.")
        return key
