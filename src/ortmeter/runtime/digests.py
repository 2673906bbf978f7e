"""Short digests of models and inputs, which say whether two measurements were of the same."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ortmeter.runtime.loading import external_files

_LENGTH = 16  # characters


def digest(parts: Iterable[bytes]) -> str:
    digests = (hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:_LENGTH]


def content(array: np.ndarray) -> bytes:
    return json.dumps(array.tolist()).encode() if array.dtype.kind in "OUT" else array.tobytes()


def model_digest(path: Path) -> str:
    """Return the digest of a model and of its external data."""
    digests = []
    # A session refuses external data that is no regular file.
    for file in (path, *filter(Path.is_file, external_files(path))):
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").digest())
    return digest(digests)
