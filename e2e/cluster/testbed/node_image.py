"""Images of Node programs: this machine's own node with its shared libraries, npm packages in /app/node_modules, files."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

from . import host, image_options, oci, package_trees
from .console import UserError, command
from .settings import Cache

APP = "app"
LAYOUT = 1  # to be raised when the tree below is made in another way


def _packages(cache: Cache, version: str, packages: list[str]) -> Path:
    def fill(root: Path) -> None:
        (root / APP).mkdir()
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--omit=dev", "--ignore-scripts", *packages]
        if subprocess.run(npm, cwd=root / APP).returncode:
            raise UserError(f"npm could not install {' '.join(packages)}: run it without --silent to see why")

    return package_trees.make(cache, "node-packages", [LAYOUT, version, packages], fill)


def _parts_outside(node: str) -> list[str]:
    """Debian's node keeps some of its own modules as files; a node from elsewhere has them inside."""
    listed = command(node, "-p", "JSON.stringify(process.config.variables.node_builtin_shareable_builtins ?? [])")
    return [path for path in json.loads(listed) if path.startswith("/")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="image-node", description=__doc__, allow_abbrev=False)
    parser.add_argument("out", type=Path, metavar="OUT.tar")
    parser.add_argument("name", metavar="localhost/NAME:TAG")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE@VERSION")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--program", metavar="NAME", help="run a package's program (a name in node_modules/.bin)")
    start.add_argument(
        "--script", metavar="PATH", help="run the JavaScript file at this path in the image (see --file)"
    )
    image_options.add(parser)
    options = parser.parse_intermixed_args()

    for package in options.packages:
        if not re.fullmatch(r"@?[^@]+@[0-9][^@]*", package):
            raise UserError(
                f"{package}: give an exact version (PACKAGE@VERSION), else the image is another one tomorrow"
            )
    host.need(host.NODE_FOR_IMAGES)
    node = shutil.which("node") or "node"
    cache = Cache.from_env()
    version = command(node, "--version").strip()
    tree = _packages(cache, version, options.packages) if options.packages else None

    image = oci.Image(
        image_options.check_name(options.name), [node], env=["NODE_ENV=production"], user=str(oci.USER), workdir="/tmp"
    )
    image_options.apply(image, options)
    if options.program:
        link = tree / APP / "node_modules" / ".bin" / options.program if tree else None
        if tree is None or link is None or not link.exists():
            raise UserError(f"--program {options.program}: none of the packages has a program of that name")
        image.entrypoint.append(f"/{link.resolve().relative_to(tree.resolve())}")
    elif options.script:
        if options.script not in image.entries:
            raise UserError(f"--script {options.script}: no --file or --tree puts a file there")
        image.entrypoint.append(options.script)

    def complete(image: oci.Image) -> None:
        if tree:
            image.add_tree(tree, "/")
        image.add_program(node)
        for path in _parts_outside(node):
            image.add_file(Path(path), path)
        image.add_libraries_of_extensions()

    image_options.write_if_changed(options.out, image, [version, tree and tree.name], complete)
