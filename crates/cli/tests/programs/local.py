"""Two programs of one machine: local.py serve HOW ADDRESS PORT, local.py call HOW ADDRESS PORT BYTES; or both in one
process: local.py within HOW ADDRESS PORT BYTES, with HOW of the client.

The server echoes. HOW: "threads", "asyncio", "fork" (a child for each connection), "workers" (two that share the
listener), "pollers" (likewise, and each waits before it accepts), "leaves" (waits for a connection, and leaves
accepting to a child), "executes" (likewise, to a program that it executes), "late" (accepts after a line on standard
input). The client sends BYTES bytes and checks what comes back. HOW: "blocking", "asyncio", "fork" (a child goes on
with the connection), "exec" (a program it executes does so), "hold" (until a line on standard input), "bound" (to the
address, before it connects), "loops" (in an event loop, and after its end both it and a child in others), "first"
(sends before it says so, and then a child goes on, or if BYTES is odd, it does so itself), "many" (a thousand
connections at once).
"""
import asyncio
import hashlib
import os
import select
import socket
import sys
import threading
import time


def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()


def pattern(size):
    return hashlib.shake_128(b"local").digest(size)


def exchange(stream, size):
    sent = pattern(size)
    sender = threading.Thread(target=stream.sendall, args=(sent,))
    sender.start()
    came = b""
    while len(came) < size:
        part = stream.recv(65536)
        assert part, "the end after %d bytes" % len(came)
        came += part
    sender.join()
    assert came == sent


def serve(how, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=128)
    print("ready %d" % os.getpid(), flush=True)
    if how in ("workers", "pollers"):
        os.fork()
    elif how in ("leaves", "executes", "late"):
        select.select([listener], [], [])
        sys.stdin.readline()
    if how == "leaves" and os.fork():
        os.wait()
    elif how == "executes":
        os.set_inheritable(listener.fileno(), True)
        arguments = [sys.argv[0], "listener", "threads", str(listener.fileno()), "0"]
        os.execvp("python3", ["python3"] + arguments)
    accept_all(listener, how)


def accept_all(listener, how):
    while True:
        if how == "pollers":
            listener.setblocking(False)
            select.select([listener], [], [])
        try:
            stream, peer = listener.accept()
        except BlockingIOError:
            continue
        stream.setblocking(True)
        assert stream.getpeername() == peer
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if how == "fork":
            if os.fork() == 0:
                listener.close()
                echo(stream)
                os._exit(0)
            stream.close()
        else:
            threading.Thread(target=echo, args=(stream,), daemon=True).start()


async def serve_asyncio(address, port):
    async def handle(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    server = await asyncio.start_server(handle, address, port)
    print("ready %d" % os.getpid(), flush=True)
    await server.serve_forever()


async def call_asyncio(address, port, size):
    reader, writer = await asyncio.open_connection(address, port)
    sent = pattern(size)
    writer.write(sent)
    assert await reader.readexactly(size) == sent
    writer.close()
    await writer.wait_closed()


async def call_many(address, port, size):
    streams = [await asyncio.open_connection(address, port) for n in range(1000)]
    for round in range(3):
        for reader, writer in streams:
            writer.write(pattern(size))
        for reader, writer in streams:
            assert await reader.readexactly(size) == pattern(size)
    print("connected", flush=True)
    sys.stdin.readline()
    for reader, writer in streams:
        writer.close()


async def both_asyncio(address, port, size):
    server = asyncio.create_task(serve_asyncio(address, port))
    for n in range(100):
        await asyncio.sleep(0.02)
        await call_asyncio(address, port, size)
    server.cancel()


def both(how, address, port, size):
    threading.Thread(target=serve, args=("threads", address, port), daemon=True).start()
    # The thread listens, and the process is found, some time after.
    until = time.time() + 60
    while time.time() < until:
        try:
            call("bound", address, port, 1)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    for n in range(100):
        time.sleep(0.02)
        call(how, address, port, size)


def call(how, address, port, size):
    source = (address, 0) if how == "bound" else None
    stream = socket.create_connection((address, port), source_address=source)
    if how == "first":
        early = pattern(min(size, 60000))
        stream.sendall(early)
        print("connected", flush=True)
        sys.stdin.readline()
        if size % 2 == 0 and os.fork():
            assert os.wait()[1] == 0
            return
        came = b""
        while len(came) < len(early):
            came += stream.recv(65536)
        assert came == early
        exchange(stream, size)
        return
    assert stream.getpeername()[:2] == (address, port), stream.getpeername()
    if how == "blocking":
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in range(100):
            exchange(stream, 1)
    exchange(stream, size)
    if how == "fork":
        if os.fork() == 0:
            exchange(stream, size)
            os._exit(0)
        assert os.wait()[1] == 0
    elif how == "exec":
        os.set_inheritable(stream.fileno(), True)
        script = "import socket, sys; sys.argv[0] = ''; s = socket.socket(fileno=%d); s.sendall(b'x'); assert s.recv(9) == b'x'; print('done', flush=True)"
        os.execvp("python3", ["python3", "-c", script % stream.fileno()])
    elif how == "hold":
        print("connected", flush=True)
        sys.stdin.readline()
        exchange(stream, size)
    stream.shutdown(socket.SHUT_WR)
    assert stream.recv(1) == b""
    stream.close()


async def wait_idle(address, port):
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    before, began = time.process_time(), time.monotonic()
    await asyncio.sleep(0.3)
    assert time.process_time() - before < (time.monotonic() - began) / 2, "it does not sleep"
    writer.close()


def call_in_loops(address, port, size):
    asyncio.run(call_asyncio(address, port, size))
    child = os.fork()
    for n in range(5):
        asyncio.run(call_asyncio(address, port, size))
        asyncio.run(wait_idle(address, port))
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


role, how, address, port = sys.argv[1:5]
if role == "serve" and how == "asyncio":
    asyncio.run(serve_asyncio(address, int(port)))
elif role == "serve":
    serve(how, address, int(port))
elif role == "within" and how == "asyncio":
    asyncio.run(both_asyncio(address, int(port), int(sys.argv[5])))
elif role == "within":
    both(how, address, int(port), int(sys.argv[5]))
elif role == "listener":
    accept_all(socket.socket(fileno=int(address)), how)
elif how == "many":
    asyncio.run(call_many(address, int(port), int(sys.argv[5])))
elif how == "asyncio":
    asyncio.run(call_asyncio(address, int(port), int(sys.argv[5])))
elif how == "loops":
    call_in_loops(address, int(port), int(sys.argv[5]))
else:
    call(how, address, int(port), int(sys.argv[5]))
print("done", flush=True)
