"""Random AF_UNIX streams between processes: unix_campaign.py FOLDER SEED [PROCESSES [STREAMS]].

A process listens for each number, and each stream joins two of them. Both ends of a stream make the same plan of it by the
seed: phases in which each sends and receives so many bytes, by random calls, in the process itself, in a child, in a program
that is executed, or in a process to which the stream is passed; and how it ends. Each byte is compared with what it must
be. Some processes are stopped and go on, at random; in the end one is killed. What is printed depends on the seed alone,
whatever carries the streams.
"""
import array
import errno
import faulthandler
import fcntl
import hashlib
import mmap
import os
import random
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time

PERIOD = 65537
LOCK = threading.Lock()
# A byte for each worker: one more as it is stopped, and as it goes on. None in a process that is never stopped.
STOPS, ME = None, 0
NAMES = [(select.POLLIN, "IN"), (select.POLLOUT, "OUT"), (select.POLLERR, "ERR"), (select.POLLHUP, "HUP"), (select.POLLRDHUP, "RDHUP")]
PATIENCE = 60


def name_of(error):
    return errno.errorcode.get(error.errno, str(error))


def stops_in(folder):
    return mmap.mmap(os.open("%s/stops" % folder, os.O_RDWR), 0)


def attempt(call, *words):
    try:
        return call(*words)
    except OSError as error:
        return name_of(error)


class End:
    """One end of a stream: what it has sent and received so far, and the next random choices of its own."""

    def __init__(self, stream, number, side, seed, sent=0, got=0):
        self.stream, self.number, self.side, self.seed, self.sent, self.got = stream, number, side, seed, sent, got
        self.random = random.Random("%s %s %s %s %s" % (seed, number, side, sent, got))
        base = [hashlib.shake_128(b"%d %d" % (number, of)).digest(PERIOD) for of in (0, 1)]
        self.out, self.into = base[side] * 2, base[1 - side] * 2

    def data(self, size):
        at = self.sent % PERIOD
        return self.out[at:at + min(size, PERIOD)]

    def check(self, data):
        at = self.got % PERIOD
        assert len(data) <= PERIOD and data == self.into[at:at + len(data)], "stream %d: wrong bytes after %d" % (self.number, self.got)
        self.got += len(data)

    def wait(self, event, how):
        fd = self.stream.fileno()
        if how == 0:
            poll = select.poll()
            poll.register(fd, event)
            found = poll.poll(PATIENCE * 1000)
        elif how == 1:
            found = any(select.select([fd] * bool(event & select.POLLIN), [fd] * bool(event & select.POLLOUT), [], PATIENCE))
        else:
            with select.epoll() as epoll:
                epoll.register(fd, event | (select.EPOLLET if how == 3 else 0))
                found = epoll.poll(PATIENCE)
        assert found, "stream %d: no event" % self.number

    def send(self, size, now=False):
        """Sends some of it."""
        data = self.data(size)
        how = 4 if now else self.random.randrange(5)
        try:
            if how == 0:
                self.stream.sendall(data)
                done = len(data)
            elif how == 1:
                done = self.stream.send(data)
            elif how == 2:
                cut = self.random.randrange(len(data) + 1)
                done = self.stream.sendmsg([data[:cut], data[cut:]])
            elif how == 3:
                done = os.write(self.stream.fileno(), data)
            else:
                done = self.stream.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if now:
                return 0
            self.wait(select.POLLOUT, self.random.randrange(4))
            return 0
        self.sent += done
        return done

    def receive(self, size, now=False):
        """Receives some of it."""
        size = min(size, PERIOD)
        how = 9 if now else self.random.randrange(9)
        try:
            if how == 0:
                data = self.stream.recv(size)
            elif how == 1:
                room = bytearray(size)
                data = bytes(room[:self.stream.recv_into(room)])
            elif how == 2:
                first, second = bytearray(size // 2), bytearray(size - size // 2)
                done = self.stream.recvmsg_into([first, second], 100)[0]
                data = bytes(first + second)[:done]
            elif how == 3:
                data = os.read(self.stream.fileno(), size)
            elif how == 4:
                seen = self.stream.recv(size, socket.MSG_PEEK)
                data = self.stream.recv(len(seen))
                assert data == seen, "stream %d: not what was peeked" % self.number
            elif how == 5:
                before = STOPS and STOPS[ME]
                data = self.stream.recv(size, socket.MSG_WAITALL)
                # Linux ends the call early where a stop interrupts it.
                stopped = STOPS and (before % 2 == 1 or before != STOPS[ME])
                assert len(data) == size or stopped, "stream %d: MSG_WAITALL: %d of %d" % (self.number, len(data), size)
            else:
                if not now:
                    self.wait(select.POLLIN, self.random.randrange(4))
                data = self.stream.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if now:
                return 0
            raise
        assert data, "stream %d: the end after %d" % (self.number, self.got)
        self.check(data)
        return len(data)

    def phase(self, out, into):
        """Sends and receives so much."""
        if out + into < 120000:
            piece = max(out // 50, 1)
            while out:
                out -= self.send(min(out, self.random.randrange(piece, 4 * piece + 1)))
            while into:
                into -= self.receive(self.random.randrange(1, into + 1))
            return
        poll = select.poll()
        while out or into:
            poll.register(self.stream, (select.POLLOUT if out else 0) | (select.POLLIN if into else 0))
            assert poll.poll(PATIENCE * 1000), "stream %d: neither way" % self.number
            out -= self.send(min(out, self.random.randrange(1, 100000)), True) if out else 0
            into -= self.receive(self.random.randrange(1, into + 1), True) if into else 0

    def events(self):
        poll = select.poll()
        poll.register(self.stream, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
        found = dict(poll.poll(0)).get(self.stream.fileno(), 0)
        return "+".join(name for bit, name in NAMES if found & bit)

    def wait_for_end(self):
        poll = select.poll()
        poll.register(self.stream, 0)
        assert poll.poll(PATIENCE * 1000), "stream %d: no end" % self.number


def unread(stream):
    count = array.array("i", [0])
    fcntl.ioctl(stream, termios.FIONREAD, count)
    return count[0]


def in_child(end, out, into, passes):
    """The phase, by a child, or by one that gets the stream passed."""
    pair = socket.socketpair() if passes else None
    with LOCK:
        child = os.fork()
    if child == 0:
        global STOPS
        STOPS = None
        status = 1
        try:
            if passes:
                end.stream.close()
                end.stream = socket.socket(fileno=socket.recv_fds(pair[1], 1, 1)[1][0])
            end.phase(out, into)
            status = 0
        except BaseException as wrong:
            os.write(2, b"child: %s\n" % repr(wrong).encode())
        os._exit(status)
    if passes:
        socket.send_fds(pair[0], [b"x"], [end.stream.fileno()])
        [one.close() for one in pair]
    assert os.waitpid(child, 0)[1] == 0, "stream %d: a child failed" % end.number
    end.sent, end.got = end.sent + out, end.got + into


def in_program(end, out, into):
    fd = end.stream.fileno()
    words = [fd, end.number, end.side, end.seed, end.sent, end.got, out, into]
    with LOCK:
        program = subprocess.Popen([sys.executable, __file__, "phase", *map(str, words)], pass_fds=[fd])
    assert program.wait() == 0, "stream %d: a program failed" % end.number
    end.sent, end.got = end.sent + out, end.got + into


def rights(end, gives):
    if gives:
        reader, writer = os.pipe()
        os.write(writer, b"rights %d" % end.number)
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reader]))]
        while True:
            try:
                end.stream.sendmsg([end.data(1)], passed, socket.MSG_DONTWAIT if end.random.randrange(2) else 0)
                break
            except BlockingIOError:
                end.wait(select.POLLOUT, end.random.randrange(4))
        end.sent += 1
        os.close(reader)
        os.close(writer)
        return
    data, ancillary, _, _ = end.stream.recvmsg(1, 100)
    end.check(data)
    fd = array.array("i", ancillary[0][2])[0]
    assert os.read(fd, 100) == b"rights %d" % end.number
    os.close(fd)


def change(end, plan):
    """What happens to the stream between two phases: both ends make the same choices."""
    what, side = plan.randrange(12), plan.randrange(2)
    if what == 0:
        rights(end, side == end.side)
    elif what == 1 and side == end.side:
        for on in (1, 0):
            end.stream.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, on)
    elif what == 2 and side == end.side:
        copy = end.stream.dup()
        end.stream.close()
        end.stream = copy


def finish(end, plan):
    """Ends the stream; returns what it looks like from this end."""
    how, is_first = plan.randrange(6), plan.randrange(2) == end.side
    size = plan.choice([1, 1000, 20000, 50000])
    stream = end.stream
    if how == 0:
        if is_first:
            stream.close()
            return "closes"
        end.wait_for_end()
        return "closed: %s %s %s" % (end.events(), attempt(stream.recv, 1), attempt(stream.send, b"x"))
    if how == 1:
        if is_first:
            end.phase(size, 0)
            stream.shutdown(socket.SHUT_WR)
            return "shuts: %s %s" % (attempt(stream.send, b"x"), stream.recv(1))
        end.phase(0, size)
        seen = stream.recv(1), end.events()
        stream.close()
        return "shut: %s %s" % seen
    if how == 2:
        if is_first:
            stream.shutdown(socket.SHUT_RDWR)
            # Whether there is room depends on how far the peer has read.
            seen = end.events().replace("+OUT", "")
            return "shuts both: %s %s %s" % (seen, attempt(stream.recv, 1), attempt(stream.send, b"x"))
        end.wait_for_end()
        return "shut both: %s %s %s" % (end.events(), attempt(stream.recv, 1), attempt(stream.send, b"x"))
    if how == 3:
        if is_first:
            while unread(stream) < size:
                time.sleep(0.001)
            stream.close()
            return "closes unread"
        end.phase(size, 0)
        end.wait_for_end()
        return "closed unread: %s %s %s" % (attempt(stream.recv, 1), attempt(stream.recv, 1), end.events())
    # What was sent before the end is read after it, by a child, too.
    if is_first:
        end.phase(size, 0)
        stream.close()
        return "sends and closes"
    end.wait_for_end()
    if how == 4:
        in_child(end, 0, size, plan.randrange(2))
    else:
        end.phase(0, size)
    return "last data: %s %s" % (attempt(stream.recv, 1), end.events())


def run(stream, number, side, seed, lines, warm):
    plan = random.Random("plan %s %s" % (seed, number))
    end = End(stream, number, side, seed)
    for at in range(plan.choice([10, 400, 700, 1000])):
        if side == 0:
            end.phase(1, 0)
            end.phase(0, 1)
        else:
            end.phase(0, 1)
            end.phase(1, 0)
    # Before any process forks.
    [warm.wait() for _ in "12"]
    for at in range(plan.randrange(1, 8)):
        sizes = [plan.choice([0, 1, 100, 5000, 50000, 400000]) for _ in (0, 1)]
        out, into = sizes[side], sizes[1 - side]
        where = [plan.choice(["here"] * 12 + ["child", "passed", "program"]) for _ in (0, 1)][side]
        if where == "here":
            end.phase(out, into)
        elif where == "program":
            in_program(end, out, into)
        else:
            in_child(end, out, into, where == "passed")
        change(end, plan)
    lines.append("%d.%d: %d %d %s" % (number, side, end.sent, end.got, finish(end, plan)))
    end.stream.close()


def doomed(stream, number, side, seed, lines):
    """Both send and receive until one process is killed."""
    end = End(stream, number, side, seed)
    try:
        while True:
            end.send(end.random.randrange(1, 20000), True)
            if unread(stream) or end.random.randrange(50) == 0:
                end.receive(20000, True)
    except AssertionError as over:
        assert "the end" in str(over), over
    except OSError as error:
        assert error.errno in (errno.ECONNRESET, errno.EPIPE), error
        # What was sent before can still be read.
        while data := attempt(stream.recv, 5000):
            if data == "ECONNRESET":
                break
            end.check(data)
    lines.append("%d.%d: doomed" % (number, side))


def worker(folder, me, seed, count, streams):
    global STOPS, ME
    STOPS, ME = stops_in(folder), me
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    faulthandler.dump_traceback_later(170, exit=True)
    plan = random.Random("streams %s" % seed)
    pairs = [(plan.randrange(count), plan.randrange(count)) for _ in range(streams)]
    last = [(plan.randrange(1, count), 0) for _ in range(4)]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("%s/%d" % (folder, me))
    listener.listen(1000)
    print("ready", flush=True)
    sys.stdin.readline()
    lines, threads, wrong = [], [], []
    warm = threading.Barrier(1 + sum(of == me for of, _ in pairs) + sum(to == me for _, to in pairs), timeout=PATIENCE)

    def begin(what, *words):
        def guarded():
            try:
                what(*words)
            except BaseException as error:
                wrong.append(error)
                print("worker %d: %s: %s" % (me, words[1:3], repr(error)), file=sys.stderr, flush=True)
                import traceback
                traceback.print_exc()
        threads.append(threading.Thread(target=guarded))
        threads[-1].start()

    def connect(number, to, what, *more):
        stream = socket.socket(socket.AF_UNIX)
        stream.connect("%s/%d" % (folder, to))
        stream.sendall(b"%8d" % number)
        begin(what, stream, number, 0, seed, lines, *more)

    def accept(times, what, *more):
        for _ in range(times):
            stream, _ = listener.accept()
            number = int(stream.recv(8, socket.MSG_WAITALL))
            begin(what, stream, number, 1, seed, lines, *more)

    accepting = threading.Thread(target=accept, args=(sum(to == me for _, to in pairs), run, warm))
    accepting.start()
    for number, (of, to) in enumerate(pairs):
        if of == me:
            connect(number, to, run, warm)
    accepting.join()
    warm.wait()
    print("warm", flush=True)
    sys.stdin.readline()
    warm.wait()
    [thread.join() for thread in threads]
    lines.sort()
    print("\n".join(lines + ["wrong"] * len(wrong) + ["done"]), flush=True)
    sys.stdin.readline()
    lines.clear()
    if me == 0:
        accepting = threading.Thread(target=accept, args=(len(last), doomed))
        accepting.start()
    else:
        for number, (of, to) in enumerate(last):
            if of == me:
                connect(1000 + number, to, doomed)
        print("connected", flush=True)
        [thread.join() for thread in threads]
        print("\n".join(["%d streams of the killed" % len(lines)] + ["wrong"] * len(wrong) + ["done"]), flush=True)


def main(folder, seed, count=10, streams=20):
    faulthandler.dump_traceback_later(200, exit=True)
    with open("%s/stops" % folder, "wb") as file:
        file.write(bytes(count))
    stops = stops_in(folder)
    words = [sys.executable, __file__, "worker", folder]
    workers = []
    for me in range(count):
        command = words + [str(me), str(seed), str(count), str(streams)]
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    [one.stdout.readline() for one in workers]
    over = threading.Event()

    def stop():
        choices = random.Random("stop %s" % seed)
        while not over.wait(choices.random() * 0.2):
            at = choices.randrange(count)
            stops[at] = (stops[at] + 1) % 256
            workers[at].send_signal(signal.SIGSTOP)
            time.sleep(choices.choice([0.005, 0.05, 0.3, 1.3]))
            workers[at].send_signal(signal.SIGCONT)
            stops[at] = (stops[at] + 1) % 256

    stopper = threading.Thread(target=stop)
    stopper.start()

    def go(some):
        for one in some:
            one.stdin.write("go\n")
            one.stdin.flush()

    def report(some):
        for at, one in enumerate(some):
            while line := one.stdout.readline():
                if line == "done\n":
                    break
                print("%d: %s" % (at, line), end="")
            else:
                print("%d: ended" % at)

    go(workers)
    [one.stdout.readline() for one in workers]
    go(workers)
    report(workers)
    over.set()
    stopper.join()
    go(workers)
    [one.stdout.readline() for one in workers[1:]]
    # They send and receive for a while.
    time.sleep(0.3)
    workers[0].kill()
    report(workers[1:])
    print("exit codes: %s" % [one.wait() for one in workers])


if sys.argv[1] == "phase":
    fd, number, side = map(int, sys.argv[2:5])
    sent, got, out, into = map(int, sys.argv[6:10])
    End(socket.socket(fileno=fd), number, side, sys.argv[5], sent, got).phase(out, into)
elif sys.argv[1] == "worker":
    worker(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
else:
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
