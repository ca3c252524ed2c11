"""An asyncio server: echoes TCP and UDP on the given port.

Each line on standard input makes it open another UDP socket, on the port of that line, which a thread of
its own serves; "fork" makes a child that does so on the next port.
"""
import asyncio
import os
import signal
import socket
import sys
import threading


async def echo(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()
    writer.close()


class Udp(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


def blocking(port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", port))
    print("opened", flush=True)
    while True:
        data, peer = s.recvfrom(4096)
        s.sendto(data, peer)


def listen_to_commands():
    for line in sys.stdin:
        words = line.split()
        port = int(words[-1])
        if words[0] == "fork":
            if os.fork() == 0:
                signal.alarm(20)
                blocking(port)
        else:
            threading.Thread(target=blocking, args=(port,), daemon=True).start()


async def main():
    port = int(sys.argv[1])
    server = await asyncio.start_server(echo, "0.0.0.0", port)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Udp, ("0.0.0.0", port))
    threading.Thread(target=listen_to_commands, daemon=True).start()
    print("ready", flush=True)
    await server.serve_forever()


asyncio.run(main())
