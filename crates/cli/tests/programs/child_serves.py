"""A child serves each connection that the parent accepts: child_serves.py PORT HOW. A request is a length of six digits,
and as many bytes; the answer is the process's number, of seven digits, and the bytes."""
import os
import select
import signal
import socket
import subprocess
import sys
import time

port, how = int(sys.argv[1]), sys.argv[2]
poll = select.epoll()


def part(stream, count):
    if how == "epoll":
        while True:
            try:
                return stream.recv(count)
            except BlockingIOError:
                poll.poll()
    return stream.recv(count)


def exactly(stream, count):
    data = b""
    while len(data) < count:
        more = part(stream, count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def send(stream, data):
    while data:
        try:
            data = data[stream.send(data):]
        except BlockingIOError:
            select.select([], [stream], [])


def request(stream):
    length = exactly(stream, 6)
    data = exactly(stream, int(length))
    send(stream, b"%07d" % os.getpid() + data)
    return data


def serve(stream):
    global poll
    if how != "waits":
        # Its Host is made now, so it need not wait for one.
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.bind((stream.getsockname()[0], 0))
        own.setblocking(False)
        try:
            own.recv(1)
        except BlockingIOError:
            pass
    if how == "epoll":
        stream.setblocking(False)
        poll = select.epoll()
        poll.register(stream, select.EPOLLIN)
    while True:
        data = request(stream)
        if data == b"cat":
            # A program has the connection by its number, and answers once.
            os.set_inheritable(stream.fileno(), True)
            how_to = f"head -c 3 <&{stream.fileno()} >&{stream.fileno()}"
            os.system(how_to)
        elif data == b"sub":
            subprocess.run(["head", "-c", "3"], stdin=stream.fileno(), stdout=stream.fileno(), check=True)
        elif data == b"fork" and os.fork() > 0:
            # The grandchild goes on.
            stream.close()
            os._exit(0)
        elif data == b"die":
            leave_to_child(stream, True)
        elif data == b"pair":
            if (other := os.fork()) == 0:
                request(stream)
                os._exit(0)
            os.waitpid(other, 0)


def leave_to_child(stream, is_killed):
    """This process closes the connection while it is on its way to the child, and ends; or it is killed then."""
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.write(tell, b"!")
        try:
            while True:
                request(stream)
        except (EOFError, OSError) as error:
            print("the child has", repr(error), flush=True)
            os._exit(0)
    os.read(ready, 1)
    # The child asks for the connection.
    time.sleep(0.003)
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    stream.close()
    os._exit(0)


listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("", port))
listener.listen(64)
print("ready", flush=True)
if how == "leaves":
    # What the kernel has made before the first accept is taken over, and cannot move on for a moment.
    while " 01 " not in open("/proc/net/tcp").read():
        time.sleep(0.001)
    leave_to_child(listener.accept()[0], False)
kept = []
while True:
    stream, _ = listener.accept()
    if how == "turns" and kept:
        # This child does not use the connection, which its parent serves.
        if (other := os.fork()) == 0:
            os._exit(0)
        os.waitpid(other, 0)
        try:
            serve(stream)
        except (EOFError, ConnectionResetError):
            continue
    if how == "two" and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    if os.fork() == 0:
        listener.close()
        try:
            serve(stream)
        except (EOFError, ConnectionResetError):
            os._exit(0)
    if how in ("keeps", "turns"):
        kept.append(stream)
    else:
        stream.close()
