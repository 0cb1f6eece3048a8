"""Folders with installed packages, kept in the cache by what they are made from: a warm run asks no package index."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .settings import Cache


def make(cache: Cache, kind: str, inputs: object, fill: Callable[[Path], None]) -> Path:
    """The folder for these inputs. If there is none yet, `fill` fills a new one, which gets its name only when it is complete."""
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    place = cache.images / kind / key
    if place.is_dir():
        os.utime(place)
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=place.parent))
    try:
        fill(temporary)
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():  # else somebody else made the same meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place
