"""Writes an OCI image archive of one layer, FROM scratch, that `ctr images import` takes. No registry, no daemon, no root.

Reproducible: the same files make the same bytes. Dates are 0, owners are root, names are sorted; the layer isn't compressed, for it
only travels to the same disk and gzip costs more than it saves.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .console import UserError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
USER = 65532  # the customary "nonroot"
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COPY_CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One file or link of the image: exactly one of source, text, target is given."""

    mode: int
    source: Path | None = None
    text: bytes | None = None
    target: str | None = None


@dataclass
class Image:
    """What goes into an image. Paths in it are absolute; a later entry of a path replaces an earlier one."""

    name: str  # with tag: localhost/app:dev
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    env: list[str] = field(default_factory=list)  # NAME=VALUE
    user: str = ""
    workdir: str = ""
    stop_signal: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)

    def add_file(self, source: Path, path: str, mode: int | None = None) -> None:
        try:
            status = source.stat()
        except OSError as error:
            raise UserError(f"can't read {source}: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{source} is no regular file")
        self.entries[_absolute(path)] = Entry(
            _clean_mode(status.st_mode) if mode is None else mode, source=source.resolve()
        )

    def add_tree(self, source: Path, path: str, exclude: str | None = None) -> None:
        """All files and links below `source`, but those whose path relative to it matches the expression `exclude`."""
        if not source.is_dir():
            raise UserError(f"{source} is no folder")
        for folder, folders, files in os.walk(source):
            here = Path(folder)
            links = [name for name in folders if (here / name).is_symlink()]
            for name in files + links:
                file = here / name
                relative = file.relative_to(source).as_posix()
                if exclude and re.search(exclude, relative):
                    continue
                inside = str(PurePosixPath(_absolute(path)) / relative)
                if file.is_symlink():
                    self.add_link(inside, os.readlink(file))
                elif file.is_file():
                    self.add_file(file, inside)

    def add_text(self, path: str, text: str, mode: int = 0o644) -> None:
        self.entries[_absolute(path)] = Entry(mode, text=text.encode())

    def add_link(self, path: str, target: str) -> None:
        self.entries[_absolute(path)] = Entry(0o777, target=target)

    def add_program(self, program: str) -> None:
        """A program of this machine, at its own path, with the shared libraries it is linked with."""
        found = shutil.which(program)
        if not found:
            raise UserError(f"{program}: no such program on this machine")
        self.add_file(Path(found), found)
        for library in _libraries(Path(found), complete=True):
            self.add_file(Path(library), library)

    def add_libraries_of_extensions(self) -> None:
        """What extension modules (.so, .node) among the files need of this machine's shared libraries."""
        own = {entry.source for entry in self.entries.values()}
        for entry in list(self.entries.values()):
            if entry.source and re.search(r"\.(so|node)(\.|$)", entry.source.name):
                for library in _libraries(entry.source, complete=False):
                    if Path(library).resolve() not in own:
                        self.add_file(Path(library), library)

    def write(self, archive: Path) -> str:
        """Writes the archive in one step (a reader never meets half of it) and returns the manifest's digest."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        temporary = archive.with_name(f".{archive.name}.{os.getpid()}")
        layer = archive.with_name(f".{archive.name}.{os.getpid()}.layer")
        try:
            self._write_layer(layer)
            digest = self._write_archive(temporary, layer)
            temporary.replace(archive)
        finally:
            temporary.unlink(missing_ok=True)
            layer.unlink(missing_ok=True)
        return digest

    def _all_entries(self) -> dict[str, Entry]:
        """With the users' names, which programs look up."""
        users = f"root:x:0:0::/:/bin/sh\nuser:x:{USER}:{USER}::/tmp:/bin/sh\n"
        defaults = {
            "/etc/passwd": Entry(0o644, text=users.encode()),
            "/etc/group": Entry(0o644, text=f"root:x:0:\nuser:x:{USER}:\n".encode()),
        }
        return defaults | self.entries

    def _write_layer(self, path: Path) -> None:
        entries = self._all_entries()
        folders = {"/tmp"} | {str(parent) for path_ in entries for parent in PurePosixPath(path_).parents}
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for folder in sorted(folders - entries.keys() - {"/"}):
                _add(tar, folder, tarfile.DIRTYPE, 0o1777 if folder == "/tmp" else 0o755)
            for inside, entry in sorted(entries.items()):
                if entry.target is not None:
                    _add(tar, inside, tarfile.SYMTYPE, entry.mode, target=entry.target)
                elif entry.source is not None:
                    with open(entry.source, "rb") as content:
                        _add(tar, inside, tarfile.REGTYPE, entry.mode, os.fstat(content.fileno()).st_size, content)
                else:
                    text = entry.text or b""
                    _add(tar, inside, tarfile.REGTYPE, entry.mode, len(text), io.BytesIO(text))

    def _write_archive(self, path: Path, layer: Path) -> str:
        with open(layer, "rb") as content:
            layer_hash = hashlib.file_digest(content, "sha256").hexdigest()
        machine = {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
        run = {
            "Env": [DEFAULT_PATH, *self.env], "Entrypoint": self.entrypoint, "Cmd": self.cmd,
            "User": self.user, "WorkingDir": self.workdir, "StopSignal": self.stop_signal,
        }  # fmt: skip
        layer_blob = _descriptor("application/vnd.oci.image.layer.v1.tar", layer_hash, layer.stat().st_size)
        config = machine | {
            "config": {key: value for key, value in run.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
        }
        config_data, config_blob = _document("application/vnd.oci.image.config.v1+json", config)
        kind = "application/vnd.oci.image.manifest.v1+json"
        manifest_data, manifest_blob = _document(
            kind, {"schemaVersion": 2, "mediaType": kind, "config": config_blob, "layers": [layer_blob]}
        )
        names = {
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": self.name.rpartition(":")[2],
        }
        kind = "application/vnd.oci.image.index.v1+json"
        described = manifest_blob | {"platform": machine, "annotations": names}
        index_data, _ = _document(kind, {"schemaVersion": 2, "mediaType": kind, "manifests": [described]})
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            # The small documents first: who asks for the digest needn't read the layer.
            small = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index_data}
            small |= {_blob_path(config_blob): config_data, _blob_path(manifest_blob): manifest_data}
            for name, data in small.items():
                _add(tar, name, tarfile.REGTYPE, 0o644, len(data), io.BytesIO(data))
            with open(layer, "rb") as content:
                _add(tar, _blob_path(layer_blob), tarfile.REGTYPE, 0o644, layer.stat().st_size, content)
        return str(manifest_blob["digest"])


def name_and_digest(archive: Path) -> tuple[str, str]:
    """The name and manifest digest of an archive that `Image.write` made."""
    try:
        with tarfile.open(archive) as tar:
            index = tar.extractfile("index.json")
            if index is None:
                raise KeyError("index.json")
            manifest = json.load(index)["manifests"][0]
            return manifest["annotations"]["io.containerd.image.name"], manifest["digest"]
    except FileNotFoundError:
        raise UserError(f"{archive}: no such file") from None
    except (tarfile.TarError, KeyError, ValueError, IndexError) as error:
        raise UserError(f"{archive} is no image archive of this test bed: {error}") from None


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise UserError(f"{path!r}: paths in an image start with / and have no ..")
    return str(PurePosixPath(path))


def _clean_mode(mode: int) -> int:
    """Readable for all, executable for all or none: the checkout's umask must not show in the image."""
    return 0o755 if mode & 0o100 else 0o644


def _libraries(program: Path, complete: bool) -> list[str]:
    """Paths of the shared libraries that ldd names; none for a static program.

    `complete`: one that isn't there is an error. (A package may bring extension modules for other systems along.)
    """
    named = subprocess.run(["ldd", str(program)], capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if complete and (missing := re.findall(r"(\S+) => not found", named.stdout)):
        raise UserError(f"{program} needs {', '.join(missing)}, which this machine doesn't have")
    return re.findall(r"(/\S+) \(0x", named.stdout)


def _add(
    tar: tarfile.TarFile, path: str, kind: bytes, mode: int, size: int = 0, content: object = None, target: str = ""
) -> None:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, size, target, 0
    tar.addfile(info, content)  # type: ignore[arg-type]


def _descriptor(media_type: str, sha256: str, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size}


def _document(media_type: str, content: dict[str, object]) -> tuple[bytes, dict[str, object]]:
    data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return data, _descriptor(media_type, hashlib.sha256(data).hexdigest(), len(data))


def _blob_path(descriptor: dict[str, object]) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/")
