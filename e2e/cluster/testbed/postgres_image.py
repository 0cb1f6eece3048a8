"""Images of Debian's PostgreSQL server, for tests: it listens on all addresses and asks for the password of POSTGRES_PASSWORD.

User and database are POSTGRES_USER. The data is below /data, made at the first start and gone with the container unless that is a volume.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import host, image_options, oci
from .console import command

VERSION = "15"
SHARE = f"/usr/share/postgresql/{VERSION}"
DATA = "/data/postgres"  # in a volume, whose own folder belongs to root
HOME = f"/usr/lib/postgresql/{VERSION}"
PROGRAMS = (f"{HOME}/bin/postgres", f"{HOME}/bin/initdb", "/bin/dash")
ZONE = "/usr/share/zoneinfo/UTC"
# What initdb makes functions of, and the replication that the server loads by name.
MODULES = ("plpgsql.so", "dict_snowball.so", "libpqwalreceiver.so")
START = f"""\
set -eu
umask 077
export TZ=UTC
if [ ! -s {DATA}/PG_VERSION ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  {HOME}/bin/initdb --pgdata={DATA} --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 \\
    --encoding=UTF8 --locale=C --no-sync --no-instructions >&2
  printf 'host all all all scram-sha-256\\n' >> {DATA}/pg_hba.conf
  printf 'CREATE DATABASE "%s";\\n' "$POSTGRES_USER" | {HOME}/bin/postgres --single -D {DATA} -c log_timezone=UTC postgres >&2
fi
exec {HOME}/bin/postgres -D {DATA} -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off \\
  -c timezone=UTC -c log_timezone=UTC -c shared_buffers=32MB -c max_connections=200 "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="image-postgres", description=__doc__, allow_abbrev=False)
    parser.add_argument("out", type=Path, metavar="OUT.tar")
    parser.add_argument("name", metavar="localhost/NAME:TAG")
    image_options.add(parser)
    options = parser.parse_args()
    host.need(host.POSTGRES_FOR_IMAGES)
    version = command(f"{HOME}/bin/postgres", "--version").strip()

    image = oci.Image(
        image_options.check_name(options.name),
        ["/bin/sh", "/start"],
        user=str(oci.USER),
        workdir="/tmp",
        stop_signal="SIGINT",  # a fast stop, in words of PostgreSQL
    )
    image_options.apply(image, options)

    def complete(image: oci.Image) -> None:
        for program in PROGRAMS:
            image.add_program(program)
        image.add_link("/bin/sh", "dash")
        image.add_tree(Path(SHARE), SHARE, exclude=r"^(extension/(?!plpgsql)|man/)")
        for module in MODULES:
            path = f"{HOME}/lib/{module}"
            image.add_file(Path(path), path)
        image.add_libraries_of_extensions()
        image.add_file(Path(ZONE), ZONE)
        image.add_text("/start", START)

    image_options.write_if_changed(options.out, image, [version, START], complete)
