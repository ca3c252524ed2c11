"""What AF_UNIX streams do, by two programs: local_unix.py serve PATH, local_unix.py call PATH [RULE...].

For each rule the client makes a connection, which both use for a while, so that it goes over memory if it ever does. Then
each does its part of the rule and prints what it sees. Both print the same, whatever carries the connection. A path that
begins with @ is an abstract name. With "hold" for its rule the client prints its process id and uses the connection at each
line on standard input; with "many" it holds a thousand.
"""
import array
import errno
import fcntl
import hashlib
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

ROUNDS = 2000
NAMES = [
    (select.EPOLLIN, "IN"), (select.EPOLLOUT, "OUT"), (select.EPOLLERR, "ERR"), (select.EPOLLHUP, "HUP"),
    (select.EPOLLRDHUP, "RDHUP"), (select.EPOLLPRI, "PRI"),
]
OUTPUT = []


def say(*words):
    OUTPUT.append(" ".join(str(word) for word in words))


def attempt(call, *words):
    """What a call returns, or its error."""
    try:
        return call(*words)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)


def events(stream, timeout=2000):
    asked = select.POLLIN | select.POLLOUT | select.POLLRDHUP
    poll = select.poll()
    poll.register(stream, asked)
    found = dict(poll.poll(timeout)).get(stream.fileno(), 0)
    return "+".join(name for bit, name in NAMES if found & bit) or "nothing"


def wait_for(stream, event):
    poll = select.poll()
    poll.register(stream, event)
    return bool(poll.poll(10000))


def exactly(stream, size):
    data = b""
    while len(data) < size:
        part = stream.recv(size - len(data))
        assert part, "the end after %d of %d bytes" % (len(data), size)
        data += part
    return data


def pattern(size, which=b"local"):
    return hashlib.shake_128(which).digest(size)


def warm_up(stream, is_server):
    for at in range(ROUNDS):
        if is_server:
            assert exactly(stream, 1)[0] == at % 256
            stream.sendall(bytes([at % 256]))
        else:
            stream.sendall(bytes([at % 256]))
            assert exactly(stream, 1)[0] == at % 256


def unread(stream):
    count = array.array("i", [0])
    fcntl.ioctl(stream, termios.FIONREAD, count)
    return count[0]


# Each rule: what the server does with its end, and what the client does.

def close_server(stream):
    exactly(stream, 1)
    stream.close()


def close_client(stream):
    stream.sendall(b"x")
    wait_for(stream, select.POLLHUP)
    say("closed:", events(stream))
    say(stream.recv(1), attempt(stream.send, b"y"), attempt(stream.send, b"y"), attempt(stream.recv, 1))


def unread_server(stream):
    wait_for(stream, select.POLLIN)
    while unread(stream) < 3:
        time.sleep(0.001)
    stream.sendall(b"answer")
    stream.close()


def unread_client(stream):
    stream.sendall(b"abc")
    wait_for(stream, select.POLLHUP)
    say("unread:", events(stream))
    say(attempt(stream.send, b"y"), attempt(stream.recv, 10), attempt(stream.recv, 1), attempt(stream.recv, 1))


def error_server(stream):
    wait_for(stream, select.POLLIN)
    stream.close()


def error_client(stream):
    stream.sendall(b"abc")
    wait_for(stream, select.POLLHUP)
    code = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    say("SO_ERROR:", errno.errorcode.get(code, code), stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    say(attempt(stream.recv, 1))


def half_server(stream):
    say("half closed:", exactly(stream, 5), stream.recv(1), events(stream))
    stream.sendall(b"answer")


def half_client(stream):
    stream.sendall(b"hello")
    stream.shutdown(socket.SHUT_WR)
    say("half closed:", attempt(stream.send, b"x"), exactly(stream, 6))
    wait_for(stream, select.POLLHUP)
    say(events(stream))


def reading_server(stream):
    exactly(stream, 1)
    say("SHUT_RD:", events(stream), attempt(stream.send, b"x"))
    stream.close()


def reading_client(stream):
    stream.shutdown(socket.SHUT_RD)
    stream.sendall(b"x")
    say("SHUT_RD:", stream.recv(1))
    wait_for(stream, select.POLLHUP)
    say(events(stream))


def both_server(stream):
    exactly(stream, 5)
    say("SHUT_RDWR:", stream.recv(1), events(stream), attempt(stream.send, b"x"))


def both_client(stream):
    stream.sendall(b"hello")
    stream.shutdown(socket.SHUT_RDWR)
    say("SHUT_RDWR:", events(stream), attempt(stream.recv, 1), attempt(stream.send, b"x"))


def last_data_server(stream):
    exactly(stream, 1)
    stream.sendall(pattern(50000))
    stream.close()


def last_data_client(stream):
    stream.sendall(b"x")
    wait_for(stream, select.POLLHUP)
    data = b""
    while part := stream.recv(7000):
        data += part
    say("last data:", data == pattern(50000))


def flags_server(stream):
    exactly(stream, 1)
    stream.sendall(b"abcdef")
    exactly(stream, 1)
    stream.sendall(b"0123")
    time.sleep(0.05)
    stream.sendall(b"456789")
    exactly(stream, 1)


def flags_client(stream):
    say("flags:", attempt(stream.recv, 1, socket.MSG_DONTWAIT))
    stream.sendall(b"x")
    wait_for(stream, select.POLLIN)
    say(stream.recv(3, socket.MSG_PEEK), stream.recv(3, socket.MSG_TRUNC), unread(stream), stream.recv(9))
    stream.sendall(b"x")
    say(stream.recv(10, socket.MSG_WAITALL))
    say(attempt(stream.recv, 1, socket.MSG_OOB), attempt(stream.recv, 1, socket.MSG_DONTWAIT))
    stream.settimeout(0.01)
    try:
        stream.recv(1)
    except TimeoutError:
        say("timeout")
    stream.settimeout(None)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20000))
    say(attempt(stream.recv, 1), stream.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) != bytes(16))
    stream.setblocking(False)
    say(attempt(stream.recv, 1))
    stream.setblocking(True)
    stream.sendall(b"x")


def options(stream):
    level = socket.SOL_SOCKET
    for name in ["SO_DOMAIN", "SO_TYPE", "SO_PROTOCOL", "SO_ERROR", "SO_ACCEPTCONN", "SO_PASSCRED"]:
        say(name, stream.getsockopt(level, getattr(socket, name)))
    say(attempt(stream.getsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY))
    say(attempt(stream.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
    say(attempt(stream.setsockopt, level, socket.SO_LINGER, struct.pack("ii", 1, 0)))
    say(attempt(stream.connect, stream.getsockname() or "/nothing"), attempt(stream.listen))
    credentials = struct.unpack("3i", stream.getsockopt(level, socket.SO_PEERCRED, 12))
    say(credentials[0] > 1, credentials[1:] == (os.getuid(), os.getgid()), stream.family.name, stream.type.name)


def options_server(stream):
    options(stream)
    say(stream.getsockname(), repr(stream.getpeername()))
    stream.sendall(struct.pack("i", struct.unpack("3i", stream.getsockopt(1, socket.SO_PEERCRED, 12))[0]))
    exactly(stream, 1)


def options_client(stream):
    options(stream)
    say(repr(stream.getsockname()), stream.getpeername())
    say(struct.unpack("i", exactly(stream, 4))[0] == os.getpid())
    stream.sendall(b"x")


def sender_server(stream):
    exactly(stream, 1)
    stream.sendall(b"abc")
    say("sender:", stream.recvfrom(3))
    say(stream.recvmsg(3))
    exactly(stream, 1)


def sender_client(stream):
    stream.sendall(b"x")
    say("sender:", stream.recvfrom(3))
    say(attempt(stream.sendto, b"x", "/nowhere"))
    stream.sendall(b"abc")
    stream.sendmsg([b"d", b"ef"])
    stream.sendall(b"x")


def rights_server(stream):
    wait_for(stream, select.POLLIN)
    data, ancillary, flags, _ = stream.recvmsg(100, 1000)
    while len(data) < 100:
        part, more, flags, _ = stream.recvmsg(100 - len(data), 1000)
        data, ancillary = data + part, ancillary + more
    say("rights:", len(data), len(ancillary), ancillary[0][:2])
    fd = array.array("i", ancillary[0][2])[0]
    say(os.read(fd, 10))
    stream.sendall(b"thanks")
    say(stream.recv(1))


def rights_client(stream):
    reader, writer = os.pipe()
    os.write(writer, b"in the pipe")
    stream.sendall(b"a" * 60)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reader]))]
    stream.sendmsg([b"b" * 10], rights)
    stream.sendall(b"c" * 30)
    say("rights:", exactly(stream, 6))


def connection_server(stream):
    data, fds, _, _ = socket.recv_fds(stream, 1, 1)
    passed = socket.socket(fileno=fds[0])
    say("connection:", data, exactly(passed, 5))
    passed.sendall(b"answer")
    say(passed.recv(1))


def connection_client(stream):
    """A TCP connection, over memory by then, is passed over the stream."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        passed, _ = listener.accept()
    for at in range(200):
        ours.sendall(b"x")
        passed.sendall(exactly(passed, 1))
        exactly(ours, 1)
    ours.sendall(b"hello")
    socket.send_fds(stream, [b"c"], [passed.fileno()])
    passed.close()
    say("connection:", exactly(ours, 6))
    ours.close()


def answer_rights_server(stream):
    exactly(stream, 1)
    stream.sendall(b"a" * 60)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
    stream.sendmsg([b"b" * 10], rights)
    say("rights back:", exactly(stream, 6))


def answer_rights_client(stream):
    stream.sendall(b"x")
    data, fds = exactly(stream, 60), []
    more, ancillary, _, _ = stream.recvmsg(100, 1000)
    say("rights back:", data + more == b"a" * 60 + b"b" * 10, len(ancillary))
    stream.sendall(b"thanks")


def passcred_server(stream):
    exactly(stream, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    stream.sendall(b"x")
    data, ancillary, _, _ = stream.recvmsg(100, 1000)
    say("credentials:", data, [part[:2] for part in ancillary])
    stream.sendall(b"x")


def passcred_client(stream):
    stream.sendall(b"x")
    exactly(stream, 1)
    stream.sendall(b"who am I")
    say("credentials:", exactly(stream, 1))


def oob_server(stream):
    wait_for(stream, select.POLLPRI)
    say("urgent:", attempt(stream.recv, 1, socket.MSG_OOB), stream.recv(10))
    stream.sendall(b"x")


def oob_client(stream):
    stream.sendall(b"ab")
    say("urgent:", attempt(stream.send, b"c", socket.MSG_OOB))
    exactly(stream, 1)


def fork_server(stream):
    exactly(stream, 1)
    stream.sendall(b"for the child")
    echo(stream)


def fork_client(stream):
    """A child goes on, with what is there already."""
    stream.sendall(b"x")
    wait_for(stream, select.POLLIN)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        ok = exactly(stream, 13) == b"for the child"
        stream.sendall(b"child")
        ok = ok and exactly(stream, 5) == b"child"
        os._exit(0 if ok else 1)
    say("fork:", os.waitpid(child, 0)[1])
    stream.sendall(b"parent")
    say(exactly(stream, 6))


def forked_server(stream):
    """Likewise at the other end; and the parent closes it."""
    wait_for(stream, select.POLLIN)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        echo(stream)
        os._exit(0)
    stream.close()
    say("forked:", os.waitpid(child, 0)[1])


def forked_client(stream):
    stream.sendall(pattern(30000))
    say("forked:", exactly(stream, 30000) == pattern(30000))
    stream.shutdown(socket.SHUT_WR)
    say(stream.recv(1))


def exec_server(stream):
    exactly(stream, 1)
    stream.sendall(b"for the program")
    echo(stream)


PROGRAM = """
import os, socket, sys
stream = socket.socket(fileno=int(sys.argv[1]))
assert stream.recv(15, socket.MSG_WAITALL) == b"for the program"
stream.sendall(b"executed")
assert stream.recv(8, socket.MSG_WAITALL) == b"executed"
"""


def exec_client(stream):
    stream.sendall(b"x")
    wait_for(stream, select.POLLIN)
    fd = stream.fileno()
    say("exec:", subprocess.run([sys.executable, "-c", PROGRAM, str(fd)], pass_fds=[fd]).returncode)
    stream.sendall(b"parent")
    say(exactly(stream, 6))


def spawn_client(stream):
    """posix_spawn, which makes a child without the hooks of fork."""
    stream.sendall(b"x")
    wait_for(stream, select.POLLIN)
    fd = stream.fileno()
    actions = [(os.POSIX_SPAWN_DUP2, fd, 9)]
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", PROGRAM, "9"], os.environ, file_actions=actions)
    say("spawn:", os.waitpid(child, 0)[1])
    stream.sendall(b"parent")
    say(exactly(stream, 6))


def pass_client(stream):
    """The connection itself is passed to another process."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        stream.close()
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        stream = socket.socket(fileno=fds[0])
        ok = exactly(stream, 15) == b"for the program"
        stream.sendall(b"passed")
        os._exit(0 if ok and exactly(stream, 6) == b"passed" else 1)
    stream.sendall(b"x")
    wait_for(stream, select.POLLIN)
    socket.send_fds(ours, [b"x"], [stream.fileno()])
    say("pass:", os.waitpid(child, 0)[1])
    stream.sendall(b"parent")
    say(exactly(stream, 6))


def bulk_server(stream):
    echo(stream)


def bulk_client(stream):
    data = pattern(3_000_000)
    sender = threading.Thread(target=stream.sendall, args=(data,))
    sender.start()
    say("bulk:", exactly(stream, len(data)) == data)
    sender.join()
    stream.setblocking(False)
    epoll = select.epoll()
    epoll.register(stream, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    sent, came = 0, b""
    while len(came) < len(data):
        for _, event in epoll.poll():
            while event & select.EPOLLOUT and sent < len(data):
                try:
                    sent += stream.send(data[sent:sent + 100000])
                except BlockingIOError:
                    break
            while event & select.EPOLLIN:
                try:
                    came += stream.recv(100000)
                except BlockingIOError:
                    break
    say("nonblocking:", came == data)


def change(stream):
    """From now on only the kernel can have it."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def midway_server(stream):
    """It becomes the kernel's in the middle of a stream, at the wish of either end, or of both."""
    who = exactly(stream, 1)
    came = 0
    while data := stream.recv(65536):
        came += len(data)
        if who in b"sb" and came > 500_000:
            change(stream)
            who = b""
        stream.sendall(data)


def midway_client(stream, who=b"c"):
    data = pattern(1_500_000)
    stream.sendall(who)

    def send():
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    # What is under way fills all buffers.
    time.sleep(0.02)
    came = b""
    while part := stream.recv(30000):
        came += part
        if who in b"cb" and len(came) > 500_000:
            change(stream)
            who = b"-"
    sender.join()
    say("midway:", came == data)


def edges_server(stream):
    exactly(stream, 1)
    stream.sendall(b"abc")
    exactly(stream, 1)
    stream.close()


def edges_client(stream):
    epoll = select.epoll()
    epoll.register(stream, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    stream.sendall(b"x")
    name = lambda found: "+".join(name for bit, name in NAMES if found & bit)
    say("edges:", [name(event) for _, event in epoll.poll(5)], epoll.poll(0.01))
    stream.sendall(b"x")
    wait_for(stream, select.POLLHUP)
    say([name(event) for _, event in epoll.poll(5)], stream.recv(9), stream.recv(9))


def late_server(stream):
    """What nobody has read when the peer closes is there for a child, too."""
    exactly(stream, 1)
    stream.sendall(pattern(50000))
    stream.close()


def late_client(stream):
    stream.sendall(b"x")
    wait_for(stream, select.POLLHUP)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(0 if exactly(stream, 50000) == pattern(50000) and not stream.recv(1) else 1)
    say("late:", os.waitpid(child, 0)[1], stream.recv(1))


def stop_peer(stream):
    """The other process is stopped until `go_on`. One that is waited for goes on late, which is seen."""
    peer = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    words = ["sh", "-c", "timeout 60 head -c1 > /dev/null; kill -CONT %d" % peer]
    again = subprocess.Popen(words, stdin=subprocess.PIPE)
    os.kill(peer, signal.SIGSTOP)
    return again


def go_on(again):
    """Whether the other process was stopped until now, and goes on now."""
    until_now = again.poll() is None
    again.stdin.close()
    return until_now, again.wait()


def stopped_server(stream):
    data, ancillary, _, _ = stream.recvmsg(100, 1000)
    while len(data) < 61:
        part, more, _, _ = stream.recvmsg(100, 1000)
        data, ancillary = data + part, ancillary + more
    say("stopped:", len(data), len(ancillary))
    stream.sendall(b"thanks")
    say(stream.recv(1))


def stopped_client(stream):
    """It gets a descriptor all the same."""
    again = stop_peer(stream)
    stream.sendall(b"a" * 60)
    stream.sendmsg([b"b"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    say("stopped:", go_on(again), exactly(stream, 6))


def stopped_rights_server(stream):
    """What was sent before the first descriptor comes before it, and nothing else."""
    data, ancillary = b"", []
    while len(data) < 64:
        part, more, _, _ = stream.recvmsg(100, 1000)
        data, ancillary = data + part, ancillary + more
        assert not more or len(data) > 60
    names = [os.read(array.array("i", one[2])[0], 10) for one in ancillary]
    say("stopped rights:", data, names)
    stream.sendall(b"thanks")
    say(stream.recv(1))


def stopped_rights_client(stream, flags, closes):
    """Descriptors are sent at once."""
    again = stop_peer(stream)
    stream.sendall(b"a" * 60)
    for at in range(2):
        reader, writer = os.pipe()
        os.write(writer, b"pipe %d" % at)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reader]))]
        say("stopped rights:", stream.sendmsg([b"b", b"c"], rights, flags))
        os.close(reader)
        os.close(writer)
    if closes:
        stream.shutdown(socket.SHUT_WR)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
        say(attempt(stream.sendmsg, [b"d"], rights))
    say(go_on(again), exactly(stream, 6))


def stopped_shut_server(stream):
    """It runs on when the other process has shut the stream down."""
    how = exactly(stream, 1)
    if how == b"r":
        while (sent := attempt(stream.send, b"x")) == 1:
            time.sleep(0.001)
        say("stopped shut:", sent)
    else:
        say("stopped shut:", wait_for(stream, select.POLLRDHUP), events(stream), exactly(stream, 4), stream.recv(1))
    if how == b"w":
        stream.sendall(b"back")


def stopped_shut_client(stream, word, how):
    """It shows that it is shut down before the other process runs: to poll, epoll, and threads that wait."""
    epoll, got = select.epoll(), []
    epoll.register(stream, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    again = stop_peer(stream)
    stream.sendall(word if word == b"r" else word + b"data")
    reader = threading.Thread(target=lambda: got.append(stream.recv(1)))
    if word != b"w":
        reader.start()
        time.sleep(0.05)
    say("stopped shut:", attempt(stream.shutdown, how), events(stream, 0))
    say([event for _, event in epoll.poll(0)])
    if word == b"w":
        say(attempt(stream.send, b"x"), go_on(again), exactly(stream, 4))
        return
    reader.join()
    say(got, stream.recv(1))
    if word == b"b":
        say(attempt(stream.send, b"x"), attempt(stream.shutdown, socket.SHUT_WR))
    say(go_on(again))


def stopped_end_server(stream):
    data = b""
    while part := stream.recv(7000):
        data += part
    say("stopped end:", data == pattern(60000), events(stream))


def stopped_end_client(stream):
    """It gets what was sent before the end."""
    again = stop_peer(stream)
    stream.sendall(pattern(60000))
    say("stopped end:", attempt(stream.shutdown, socket.SHUT_WR))
    stream.close()
    say(go_on(again))


def quiet_server(stream):
    for _ in "12":
        exactly(stream, 1)
        stream.sendall(b"abc")
    exactly(stream, 1)


def quiet_client(stream):
    """An epoll instance reports a one-shot member once, and of a change of owner nothing."""
    epoll, all_events = select.epoll(), set()
    once = select.EPOLLIN | select.EPOLLONESHOT
    epoll.register(stream, once)
    stream.sendall(b"x")
    say("quiet:", [event for _, event in epoll.poll(5)], exactly(stream, 3))
    over = threading.Event()

    def watch():
        with select.epoll() as other:
            other.register(stream, select.EPOLLIN | select.EPOLLRDHUP)
            while not over.is_set():
                all_events.update(event for _, event in other.poll(0.001))

    watcher = threading.Thread(target=watch)
    watcher.start()
    change(stream)
    stream.sendall(b"x")
    wait_for(stream, select.POLLIN)
    while not all_events:
        time.sleep(0.001)
    time.sleep(0.02)
    over.set()
    watcher.join()
    say(all_events, epoll.poll(0))
    epoll.modify(stream, once)
    say([event for _, event in epoll.poll(5)], exactly(stream, 3))
    stream.sendall(b"x")


def taken_server(stream):
    count = 0
    while part := stream.recv(70000):
        count += len(part)
    say("taken:", count >= 233000)


def taken_client(stream):
    """As much is taken at once as by a kernel's socket."""
    again, count = stop_peer(stream), 0
    try:
        while True:
            count += stream.send(bytes(65536), socket.MSG_DONTWAIT)
    except BlockingIOError:
        say("taken:", count >= 233000)
    stream.close()
    say(go_on(again))


def raced_server(stream):
    """The stream becomes the kernel's while it is added to an epoll set."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    is_there = False
    while not is_there:
        with select.epoll() as epoll:
            epoll.register(stream, select.EPOLLIN)
            is_there = bool(poll.poll(0))
            # The set has seen it as well.
            if is_there:
                say("raced:", bool(epoll.poll(10)))
    say(exactly(stream, 3), stream.recv(1))


def raced_client(stream):
    time.sleep(random.random() * 0.003)
    stream.shutdown(socket.SHUT_RD)
    time.sleep(0.001)
    stream.sendall(b"end")


def counted_server(stream):
    """What is there is counted while the stream becomes the kernel's."""
    while unread(stream) < 500:
        pass
    seen, until = {500}, time.monotonic() + 0.01
    while time.monotonic() < until:
        seen.add(unread(stream))
    say("counted:", seen, len(exactly(stream, 500)))
    stream.sendall(b"x")


def counted_client(stream):
    stream.sendall(bytes(500))
    time.sleep(0.002 + random.random() * 0.003)
    change(stream)
    exactly(stream, 1)


def copies_server(stream):
    echo(stream)


def copies_client(stream):
    copy = stream.dup()
    stream.close()
    copy.sendall(b"copy")
    say("copies:", exactly(copy, 4))
    file = os.fdopen(os.dup(copy.fileno()), "rb", buffering=0)
    copy.sendall(b"file")
    say(file.read(4))


def echo(stream):
    try:
        while data := stream.recv(65536):
            stream.sendall(data)
    except OSError as error:
        say("echo:", errno.errorcode[error.errno])


RULES = {
    "close": (close_server, close_client),
    "unread": (unread_server, unread_client),
    "error": (error_server, error_client),
    "half": (half_server, half_client),
    "reading": (reading_server, reading_client),
    "both": (both_server, both_client),
    "last": (last_data_server, last_data_client),
    "flags": (flags_server, flags_client),
    "options": (options_server, options_client),
    "sender": (sender_server, sender_client),
    "rights": (rights_server, rights_client),
    "connection": (connection_server, connection_client),
    "answer_rights": (answer_rights_server, answer_rights_client),
    "passcred": (passcred_server, passcred_client),
    "oob": (oob_server, oob_client),
    "fork": (fork_server, fork_client),
    "forked": (forked_server, forked_client),
    "exec": (exec_server, exec_client),
    "spawn": (exec_server, spawn_client),
    "pass": (exec_server, pass_client),
    "bulk": (bulk_server, bulk_client),
    "midway_client": (midway_server, midway_client),
    "midway_server": (midway_server, lambda stream: midway_client(stream, b"s")),
    "midway_both": (midway_server, lambda stream: midway_client(stream, b"b")),
    "midway_neither": (midway_server, lambda stream: midway_client(stream, b"n")),
    "edges": (edges_server, edges_client),
    "late": (late_server, late_client),
    "stopped": (stopped_server, stopped_client),
    "stopped_rights": (stopped_rights_server, lambda stream: stopped_rights_client(stream, 0, False)),
    "stopped_now": (stopped_rights_server, lambda stream: stopped_rights_client(stream, socket.MSG_DONTWAIT, True)),
    "stopped_end": (stopped_end_server, stopped_end_client),
    "stopped_read": (stopped_shut_server, lambda stream: stopped_shut_client(stream, b"r", socket.SHUT_RD)),
    "stopped_write": (stopped_shut_server, lambda stream: stopped_shut_client(stream, b"w", socket.SHUT_WR)),
    "stopped_both": (stopped_shut_server, lambda stream: stopped_shut_client(stream, b"b", socket.SHUT_RDWR)),
    "quiet": (quiet_server, quiet_client),
    "taken": (taken_server, taken_client),
    "raced": (raced_server, raced_client),
    "counted": (counted_server, counted_client),
    "copies": (copies_server, copies_client),
}


def name_of(path):
    return "\0" + path[1:] if path.startswith("@") else path


def serve(path):
    listener = socket.socket(socket.AF_UNIX)
    if not path.startswith("@") and os.path.exists(path):
        os.unlink(path)
    listener.bind(name_of(path))
    listener.listen(2000)
    print("ready %d" % os.getpid(), flush=True)
    while True:
        stream, _ = listener.accept()
        rule = exactly(stream, 16).decode().strip()
        if rule in ("echo", "hold", "many"):
            threading.Thread(target=echo, args=(stream,)).start()
            continue
        warm_up(stream, True)
        RULES[rule][0](stream)
        stream.close()
        seen = "\n".join(OUTPUT)
        OUTPUT.clear()
        # By a connection of its own: the client prints it.
        with listener.accept()[0] as report:
            report.sendall(seen.encode() + b"\n")


def connect(path):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(name_of(path))
    return stream


def many(path, count=1000):
    """That many connections at once."""
    streams = []
    for _ in range(count):
        stream = connect(path)
        stream.sendall(b"many".ljust(16))
        for at in range(700):
            stream.sendall(b"x")
            exactly(stream, 1)
        streams.append(stream)
    print("connected", flush=True)
    sys.stdin.readline()
    for at, stream in enumerate(streams):
        stream.sendall(pattern(1000 + at))
    for at, stream in enumerate(streams):
        assert exactly(stream, 1000 + at) == pattern(1000 + at)
    print("done", flush=True)


def call(path, rules):
    if rules == ["many"]:
        return many(path)
    for rule in rules or RULES:
        stream = connect(path)
        stream.sendall(rule.ljust(16).encode())
        if rule == "hold":
            warm_up(stream, False)
            print("held %d" % os.getpid(), flush=True)
            for line in sys.stdin:
                print(attempt(stream.send, b"x"), attempt(stream.recv, 1), flush=True)
            return
        warm_up(stream, False)
        RULES[rule][1](stream)
        stream.close()
        seen = "\n".join(OUTPUT)
        OUTPUT.clear()
        with connect(path) as report:
            parts = b""
            while part := report.recv(65536):
                parts += part
        print("%s: client: %s" % (rule, seen))
        print("%s: server: %s" % (rule, parts.decode()), flush=True)
    print("done")


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    call(sys.argv[2], sys.argv[3:])
