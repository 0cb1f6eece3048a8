"""Images of Python programs: Debian's own Python 3.11 of this machine (program, standard library, shared libraries), pip packages, files.

The packages lie where that Python looks for them by itself (no PYTHONPATH), their console scripts in /usr/local/bin.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

from . import host, image_options, oci, package_trees
from .console import UserError, command, succeeds
from .settings import Cache

PYTHON = "/usr/bin/python3.11"
LIBRARY = "usr/lib/python3.11"
PACKAGES = "usr/local/lib/python3.11/dist-packages"
SCRIPTS = "usr/local/bin"
LAYOUT = 1  # to be raised when the trees below are made in another way
UNUSED = (
    "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sitecustomize.py", "test", "tkinter",
    "turtledemo", "__pycache__",
)  # fmt: skip


def _compile(root: Path) -> None:
    """Byte code. The image's files have date 0, so code that is checked by date would be compiled again at each start."""
    mode = ("--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/")
    succeeds(
        PYTHON, "-m", "compileall", "-q", "-j", "0", *mode, root
    )  # some packages carry files that aren't meant to compile


def _standard_library(cache: Cache, version: str) -> Path:
    def fill(root: Path) -> None:
        shutil.copytree(f"/{LIBRARY}", root / LIBRARY, symlinks=True, ignore=shutil.ignore_patterns(*UNUSED))
        _compile(root)

    return package_trees.make(cache, "python-library", [LAYOUT, version, UNUSED], fill)


def _pip() -> list[str]:
    for python in (PYTHON, "python3"):
        if succeeds(python, "-m", "pip", "--version"):
            return [python, "-m", "pip"]
    host.need({"/usr/bin/pip3": "python3-pip"})
    return [PYTHON, "-m", "pip"]


def _packages(cache: Cache, version: str, packages: list[str], requirements: list[Path]) -> Path:
    texts = [path.read_text() for path in requirements]

    def fill(root: Path) -> None:
        place = root / PACKAGES
        wanted = [*packages, *(word for path in requirements for word in ("--requirement", str(path)))]
        pip = [
            *_pip(), "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--no-warn-conflicts",
            "--root-user-action=ignore", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
            "--only-binary=:all:", "--target", str(place), *wanted,
        ]  # fmt: skip
        if subprocess.run(pip).returncode:  # its messages are the user's
            raise UserError(f"pip could not install {' '.join(wanted)}")
        if (place / "bin").is_dir():
            (root / SCRIPTS).parent.mkdir(parents=True, exist_ok=True)
            (place / "bin").rename(root / SCRIPTS)
            for script in (root / SCRIPTS).iterdir():
                _point_to_python(script)
        _compile(root)

    return package_trees.make(cache, "python-packages", [LAYOUT, version, packages, texts], fill)


def _point_to_python(script: Path) -> None:
    """A console script begins with the path of the Python that pip ran in."""
    data = script.read_bytes()
    first, newline, rest = data.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        script.write_bytes(f"#!{PYTHON}".encode() + newline + rest)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="image-python",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("out", type=Path, metavar="OUT.tar")
    parser.add_argument("name", metavar="localhost/NAME:TAG")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE==VERSION")
    parser.add_argument(
        "--requirements", action="append", default=[], type=Path, metavar="FILE", help="packages as in pip's file"
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--module", help="run `python3 -m MODULE`")
    start.add_argument("--script", metavar="PATH", help="run the Python file at this path in the image (see --file)")
    start.add_argument("--program", metavar="NAME", help="run a package's console script")
    image_options.add(parser)
    options = parser.parse_intermixed_args()

    for package in options.packages:
        if "==" not in package and "@" not in package:
            raise UserError(
                f"{package}: give an exact version (PACKAGE==VERSION), else the image is another one tomorrow"
            )
    for path in options.requirements:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    host.need(host.PYTHON_FOR_IMAGES)
    cache = Cache.from_env()
    version = command(PYTHON, "-VV").strip()
    trees = [_standard_library(cache, version)]
    if options.packages or options.requirements:
        trees.append(_packages(cache, version, options.packages, options.requirements))

    image = oci.Image(
        image_options.check_name(options.name), [PYTHON], env=["PYTHONUNBUFFERED=1"], user=str(oci.USER), workdir="/tmp"
    )
    if options.module:
        image.entrypoint += ["-m", options.module]
    elif options.script:
        image.entrypoint.append(options.script)
    elif options.program:
        if not any((tree / SCRIPTS / options.program).is_file() for tree in trees):
            raise UserError(f"--program {options.program}: none of the packages has a console script of that name")
        image.entrypoint = [f"/{SCRIPTS}/{options.program}"]
    image_options.apply(image, options)
    if options.script and options.script not in image.entries:
        raise UserError(f"--script {options.script}: no --file or --tree puts a file there")

    def complete(image: oci.Image) -> None:
        for tree in trees:
            image.add_tree(tree, "/")
        image.add_program(PYTHON)
        image.add_link("/usr/bin/python3", "python3.11")
        image.add_libraries_of_extensions()

    image_options.write_if_changed(options.out, image, [tree.name for tree in trees], complete)
