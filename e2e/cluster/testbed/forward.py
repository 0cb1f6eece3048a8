"""forward.py PORT NETNS TARGET: passes connections to 127.0.0.1:PORT here on to 127.0.0.1:TARGET in another network namespace."""

import asyncio
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000
CHUNK = 64 * 1024


def enter(netns: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(netns, os.O_RDONLY)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns", netns)
    os.close(descriptor)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies until the end, then passes the end on: each direction closes by itself."""
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def serve(listener: socket.socket, target: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = None
        try:
            there, upstream = await asyncio.open_connection("127.0.0.1", target)
            await asyncio.gather(pump(reader, upstream), pump(there, writer))
        except OSError:
            pass  # one side has gone: so goes the other
        finally:
            writer.close()
            if upstream:
                upstream.close()

    server = await asyncio.start_server(relay, sock=listener)
    await server.serve_forever()


def main() -> None:
    port, netns, target = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    listener = socket.create_server(("127.0.0.1", port), backlog=128)  # stays in the namespace where it was made
    enter(netns)
    asyncio.run(serve(listener, target))


main()
