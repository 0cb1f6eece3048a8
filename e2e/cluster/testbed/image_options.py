"""The command-line options that all image helpers share."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from . import oci
from .console import UserError


def add(parser: argparse.ArgumentParser) -> None:
    many = [
        ("file", "SRC=DST[:MODE]", "a file; MODE is octal"),
        ("tree", "SRC=DST", "all files below a folder"),
        ("text", "DST=TEXT", "a small file with this text"),
        ("link", "DST=TARGET", "a symbolic link"),
        ("env", "NAME=VALUE", "an environment variable"),
        ("cmd", "WORD", "an argument that a pod's `args` would replace; repeat for more"),
    ]
    for name, form, meaning in many:
        parser.add_argument(f"--{name}", action="append", default=[], metavar=form, help=meaning)
    parser.add_argument("--user", help="UID[:GID] or name")
    parser.add_argument("--workdir", metavar="DIR")


def apply(image: oci.Image, options: argparse.Namespace) -> None:
    for value in options.tree:
        source, path = _pair("--tree", value)
        image.add_tree(Path(source), path)
    for value in options.file:
        source, rest = _pair("--file", value)
        path, _, mode = rest.partition(":")
        image.add_file(Path(source), path, _mode(mode) if mode else None)
    for value in options.text:
        image.add_text(*_pair("--text", value))
    for value in options.link:
        image.add_link(*_pair("--link", value))
    for value in options.env:
        _pair("--env", value)
        image.env.append(value)
    image.cmd = image.cmd + options.cmd
    image.user = image.user if options.user is None else options.user
    image.workdir = image.workdir if options.workdir is None else options.workdir


def _pair(option: str, value: str) -> tuple[str, str]:
    left, equals, right = value.partition("=")
    if not equals or not left:
        raise UserError(f"{option} {value!r}: two parts with = between them are wanted")
    return left, right


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise UserError(f"mode {text!r} is no octal number") from None


def check_name(name: str) -> str:
    """A node never asks anybody for localhost/ images with a fixed tag; any other name would be pulled, in vain."""
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag or not repository:
        raise UserError(f"image name {name!r} has no tag: localhost/NAME:TAG is wanted")
    return name


def content_key(image: oci.Image, *more: object) -> str:
    """The hash of all that goes into an image: its settings, its files' content, and `more`."""
    content = hashlib.sha256(json.dumps([vars(image) | {"entries": None}, *more], sort_keys=True).encode())
    for path, entry in sorted(image.entries.items()):
        data = entry.source.read_bytes() if entry.source else entry.text or (entry.target or "").encode()
        content.update(f"\0{path}\0{entry.mode:o}\0{len(data)}\0".encode() + data)
    return content.hexdigest()


def write_if_changed(archive: Path, user: oci.Image, inputs: object, complete: Callable[[oci.Image], None]) -> None:
    """Writes an archive unless the one that is there was made from the same inputs; OUT.tar.key beside it tells.

    `user` holds what the user gave; `complete` adds the rest to an image with the same settings, and the user's files go on top.
    """
    image_sources = [
        Path(file).read_text() for file in (__file__, oci.__file__)
    ]  # a change in the writer makes new images
    key = content_key(user, [inputs, image_sources])
    note = archive.with_name(f"{archive.name}.key")
    unchanged = archive.exists() and note.exists() and note.read_text() == key
    if not unchanged:
        note.unlink(missing_ok=True)
        image = dataclasses.replace(user, entries={})
        complete(image)
        image.entries |= user.entries
        image.write(archive)
        note.write_text(key)
    report(archive, "unchanged" if unchanged else "written")


def report(archive: Path, how: str) -> None:
    name, digest = oci.name_and_digest(archive)
    print(f"{name} {digest} {archive.stat().st_size / 1e6:.1f} MB, {how}", flush=True)
