"""A connection whose peer has closed it goes to another process: closed.py pass|fork SIZE stays|ends.

The peer sends SIZE bytes, or with "full" all that is taken at once, closes the connection, and stays or ends. Then the
connection is passed by SCM_RIGHTS, or a child inherits it. There all data is read, and then the end.
"""
import os
import socket
import sys

way, size, peer = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", 0))
go, done = os.pipe(), os.pipe()
between = socket.socketpair()
PART = bytes(range(250)) * 40


def expected(count):
    return (PART * (count // len(PART) + 1))[:count]


def connect():
    os.read(go[0], 1)
    stream = socket.create_connection(listener.getsockname())
    for at in range(200):
        stream.sendall(b"x")
        stream.recv(1)
    count = 0
    if size == "full":
        stream.setblocking(False)
        try:
            while True:
                # Each part goes on where the one before has ended.
                at = count % len(PART)
                count += stream.send(PART[at:])
        except BlockingIOError:
            pass
    else:
        count = int(size)
        stream.sendall(expected(count))
    stream.close()
    os.write(done[1], count.to_bytes(8, "little"))
    if peer == "stays":
        os.read(go[0], 1)


def read(stream):
    count = int.from_bytes(os.read(done[0], 8), "little")
    data = b""
    while part := stream.recv(65536):
        data += part
    return data == expected(count)


def passed():
    _, fds, _, _ = socket.recv_fds(between[1], 1, 1)
    return read(socket.socket(fileno=fds[0]))


def in_child(what):
    child = os.fork()
    if child == 0:
        result = what()
        os._exit(0 if result in (None, True) else 1)
    return child


client = in_child(connect)
reader = in_child(passed) if way == "pass" else None
os.write(go[1], b"x")
stream, _ = listener.accept()
for at in range(200):
    stream.recv(1)
    stream.sendall(b"x")
# The peer has closed it, and has ended if it does.
if peer == "ends":
    os.waitpid(client, 0)
else:
    os.write(done[1], os.read(done[0], 8))
if way == "pass":
    socket.send_fds(between[0], [b"x"], [stream.fileno()])
else:
    reader = in_child(lambda: read(stream))
stream.close()
print("all" if os.waitpid(reader, 0)[1] == 0 else "not all", flush=True)
os.write(go[1], b"x")
