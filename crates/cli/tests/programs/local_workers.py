"""Workers that wait for one listener, and their clients.

local_workers.py serve HOW ADDRESS PORT: two workers, each of which serves one connection at a time, to its end, and
answers each request with its process id. HOW: "accept" (they inherit a listener and wait in accept(2)), "poll" (they wait
in poll(2)), "epoll" (in epoll_wait(2)), "reuseport" (each has a listener of its own), "late" (the same, each waits in poll(2) and accepts late,
from a blocking listener; they end at the end of standard input), "plain" (as "accept", and the second
one does so without busypoll). A worker that ends is replaced. Prints the process ids.

local_workers.py call HOW ADDRESS PORT: "one" (connection), "turns" (one connection after the other, until both workers have answered and
longer), "idle" (one worker is kept busy, and the other one must answer all others), "all" (both are kept busy; a
connection waits, and is answered when one of them is idle), "losses" (one connection after the other, until a line on
standard input; prints how many were lost), "requests" (HTTP requests, each on a connection of its own,
until a line on standard input).
"""
import os
import select
import socket
import sys
import threading
import time

# A worker needs so long to wait again. It is a hint: without it more connections are the kernel's.
PAUSE = 0.002


def serve_one(stream):
    with stream:
        stream.setblocking(True)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while request := stream.recv(4096):
                stream.sendall(b"%07d %s" % (os.getpid(), request))
        except ConnectionResetError:
            pass


def work(how, listener):
    if how in ("poll", "epoll"):
        listener.setblocking(False)
        waiter = select.poll() if how == "poll" else select.epoll()
        waiter.register(listener, select.POLLIN)
    while True:
        if how in ("poll", "epoll"):
            waiter.poll()
        try:
            stream, _ = listener.accept()
        except BlockingIOError:
            continue
        serve_one(stream)


def accept_late(listener):
    waiter = select.poll()
    waiter.register(listener, select.POLLIN)
    waiter.register(sys.stdin, select.POLLIN)
    while ready := dict(waiter.poll()):
        if sys.stdin.fileno() in ready:
            sys.exit()
        # By then the client has gone elsewhere.
        time.sleep(0.02)
        try:
            stream, _ = listener.accept()
        except ConnectionAbortedError:
            print("aborted", flush=True)
            continue
        serve_one(stream)


def listen(address, port, reuse_port):
    return socket.create_server((address, port), backlog=128, reuse_port=reuse_port)


def start(how, number, address, port, listener):
    pid = os.fork()
    if pid == 0:
        if how == "plain" and number == 1:
            os.environ.pop("LD_PRELOAD")
            os.set_inheritable(listener.fileno(), True)
            os.execvp("python3", ["python3", sys.argv[0], "work", "accept", str(listener.fileno()), "0"])
        listener = listener or listen(address, port, True)
        accept_late(listener) if how == "late" else work(how, listener)
    return pid


def serve(how, address, port):
    listener = None if how in ("reuseport", "late") else listen(address, port, False)
    workers = {start(how, number, address, port, listener): number for number in range(2)}
    print("ready %d" % os.getpid(), *workers, flush=True)
    while workers:
        ended, _ = os.wait()
        if how == "late":
            workers.pop(ended)
            continue
        number = workers.pop(ended)
        workers[start(how, number, address, port, listener)] = number


def connect(address, port):
    stream = socket.create_connection((address, port), timeout=60)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def ask(stream):
    stream.sendall(b"and back")
    answer = b""
    while len(answer) < 16:
        part = stream.recv(16 - len(answer))
        assert part, "the end after %r" % answer
        answer += part
    assert answer[7:] == b" and back", answer
    return int(answer[:7])


def call(how, address, port):
    if how == "turns":
        seen = []
        while len(set(seen)) < 2 or len(seen) < 20:
            with connect(address, port) as stream:
                seen.append(ask(stream))
            time.sleep(PAUSE)
    elif how == "one":
        with connect(address, port) as stream:
            ask(stream)
    elif how == "idle":
        with connect(address, port) as first:
            busy = ask(first)
            for n in range(50):
                with connect(address, port) as stream:
                    assert ask(stream) != busy
                time.sleep(PAUSE)
            assert ask(first) == busy
    elif how == "all":
        first, second = connect(address, port), connect(address, port)
        busy = {ask(first), ask(second)}
        assert len(busy) == 2, busy
        third = connect(address, port)
        third.sendall(b"and back")
        third.settimeout(0.05)
        try:
            assert not third.recv(16), "a worker that serves another connection has answered"
            assert False, "the end"
        except TimeoutError:
            pass
        idle = ask(first)
        first.close()
        third.settimeout(60)
        answer = third.recv(16)
        assert int(answer[:7]) == idle, (answer, idle)
        assert ask(third) == idle
        second.close()
        third.close()
    elif how == "losses":
        count, losses, over = 0, 0, threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
        print("connected", flush=True)
        while not over.is_set():
            with connect(address, port) as stream:
                try:
                    ask(stream)
                except (ConnectionError, AssertionError):
                    losses += 1
            count += 1
        print("losses %d of %d" % (losses, count), flush=True)
    elif how == "requests":
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
        print("connected", flush=True)
        count = 0
        while not over.is_set():
            with connect(address, port) as stream:
                stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answer = b""
                while part := stream.recv(4096):
                    answer += part
                assert b"200 OK" in answer and answer.endswith(b"hello\n"), answer
            count += 1
        print("requests %d" % count, flush=True)


role, how, address, port = sys.argv[1:5]
if role == "serve":
    serve(how, address, int(port))
elif role == "work":
    work(how, socket.socket(fileno=int(address)))
else:
    call(how, address, int(port))
print("done", flush=True)
