"""Reads the files of states: from the blob store, or from the base what no state has changed."""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3

from orchestrator.environment.errors import BaseChanged
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.layering import BaseTree
from orchestrator.environment.files.manifest import Entry

Read = Callable[[str, Entry], bytes]
"""Called with a path and the file that a state has there: returns its content."""


def reader(blobs: BlobStore, base: BaseTree, base_path: str) -> Read:
    """Reads what is stored from the store, all else from the base.

    The function that is returned raises BaseChanged if the base has another content by now, and
    OSError if a file cannot be read.
    """

    def read(path: str, entry: Entry) -> bytes:
        if blobs.has(entry.content):
            return blobs.read(entry.content)
        try:
            data = base.read(path)
        except FileNotFoundError as error:
            raise BaseChanged(base_path, (path,)) from error
        if blake3(data).hexdigest() != entry.content:
            raise BaseChanged(base_path, (path,))
        return data

    return read
