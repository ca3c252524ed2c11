"""Two programs of one machine: local_udp.py serve HOW ADDRESS PORT, local_udp.py call HOW ADDRESS PORT COUNT.

The server echoes. HOW: "blocking", "poll", "asyncio", "connected" (to its first peer), "fork" (a child goes on after ten
datagrams), "exec" (a program it executes does so), "spawn" (one that it starts by posix_spawn), "reuse" (two processes share the port). The client sends COUNT datagrams, each after the answer to the one
before, and checks the answers. HOW: "blocking", "connected", "asyncio", "threads" (one reads, one sends), "fork" (a
child goes on), "exec" (a program it executes does so), "spawn" (one that it starts by posix_spawn), "pass" (a process that gets the socket does so), "sizes" (up to the largest), "info" (what recvmsg tells), "hold" (again for each line on standard input,
until "end"), "flood" (likewise, until "flood": then more than the other end reads, before the next line), "refused" (nothing is there after a line).
"""
import asyncio
import os
import select
import socket
import struct
import sys
import threading
import time

# linux/in.h: not in every version of this module.
IP_PKTINFO, IP_RECVTTL = 8, 12


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def answer(end, wait=lambda: None):
    wait()
    data, peer = end.recvfrom(65536)
    end.sendto(data, peer)


def go_on(end, name, script, execute=os.execvp):
    """Executes a program that has the socket by this name."""
    os.set_inheritable(end.fileno(), True)
    before = "import socket, sys; sys.argv[0] = ''; %s = socket.socket(fileno=%d)" % (name, end.fileno())
    # A timeout has made it non-blocking.
    return execute("python3", ["python3", "-c", "%s\n%s.setblocking(True)\n%s" % (before, name, script)])


def spawn(*words):
    return os.posix_spawnp(*words, os.environ)


def serve(how, address, port):
    end = socket.socket(family(address), socket.SOCK_DGRAM)
    if how == "reuse":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    end.bind((address, port))
    print("ready %d" % os.getpid(), flush=True)
    if how == "connected":
        data, peer = end.recvfrom(65536)
        end.connect(peer)
        end.send(data)
        while True:
            end.send(end.recv(65536))
    if how == "reuse":
        if os.fork() == 0:
            end.close()
            end = socket.socket(family(address), socket.SOCK_DGRAM)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            end.bind((address, port))
    if how == "fork":
        for n in range(10):
            answer(end)
        if os.fork() != 0:
            os.wait()
    if how in ("exec", "spawn"):
        for n in range(10):
            answer(end)
        go_on(end, "e", "while True: e.sendto(*e.recvfrom(65536))", os.execvp if how == "exec" else spawn)
        os.wait()
    if how == "poll":
        end.setblocking(False)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        while True:
            answer(end, poll.poll)
    while True:
        answer(end)


async def serve_asyncio(address, port):
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, peer):
            self.transport.sendto(data, peer)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, local_addr=(address, port))
    print("ready %d" % os.getpid(), flush=True)
    await asyncio.Event().wait()


async def call_asyncio(address, port, count):
    class Ask(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.left, self.done, self.transport = count, asyncio.get_running_loop().create_future(), transport
            transport.sendto(b"%d" % self.left)

        def datagram_received(self, data, peer):
            assert data == b"%d" % self.left and peer[:2] == (address, port), (data, peer, self.left)
            self.left -= 1
            if self.left == 0:
                self.done.set_result(None)
            else:
                self.transport.sendto(b"%d" % self.left)

        def error_received(self, wrong):
            self.done.set_exception(wrong)
    loop = asyncio.get_running_loop()
    transport, asks = await loop.create_datagram_endpoint(Ask, remote_addr=(address, port))
    await asyncio.wait_for(asks.done, 60)
    transport.close()


def exchange(end, to, count):
    for n in range(count):
        sent = b"%d " % n * 10
        end.sendto(sent, to) if to else end.send(sent)
        data, peer = end.recvfrom(65536)
        assert data == sent, (n, data)
        assert not to or peer[:2] == to, (peer, to)


def call(how, address, port, count):
    if how == "pass":
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            end = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
            end.setblocking(True)
            exchange(end, (address, port), count)
            os._exit(0)
    end = socket.socket(family(address), socket.SOCK_DGRAM)
    end.settimeout(60)
    to = (address, port)
    if how in ("connected", "refused"):
        end.connect(to)
        to = None
    if how == "info":
        end.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        end.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        for n in range(count):
            end.sendto(b"%d" % n, to)
            data, ancillary, flags, peer = end.recvmsg(100, 100)
            found = {kind: value for level, kind, value in ancillary}
            index, local, dst = struct.unpack("=I4s4s", found[IP_PKTINFO])
            assert (data, flags, peer) == (b"%d" % n, 0, to), (data, flags, peer)
            assert index == socket.if_nametoindex("lo") and dst == socket.inet_aton("127.0.0.1"), found
            assert struct.unpack("=I", found[socket.IP_TTL])[0] == 64, found
        return
    if how == "threads":
        came = []

        def read():
            while len(came) < count:
                came.append(end.recv(65536))
        reader = threading.Thread(target=read)
        reader.start()
        for n in range(count):
            end.sendto(b"%d" % n, to)
            while len(came) <= n:
                time.sleep(0.0001)
        reader.join()
        assert came == [b"%d" % n for n in range(count)], came
        return
    if how == "sizes":
        exchange(end, to, 10)
        for size in [0, 1, 1400, 16000, 16356, 16357, 30000, 65507]:
            sent = os.urandom(size)
            end.sendto(sent, to)
            assert end.recv(65536) == sent, size
        data = os.urandom(1000)
        end.sendto(data, to)
        data, ancillary, flags, peer = end.recvmsg(10)
        assert len(data) == 10 and flags & socket.MSG_TRUNC
        return
    exchange(end, to, count)
    if how == "fork":
        if os.fork() == 0:
            exchange(end, to, count)
            os._exit(0)
        assert os.wait()[1] == 0
        exchange(end, to, count)
    elif how in ("exec", "spawn"):
        script = "to = %r\nfor n in range(%d):\n  e.sendto(b'%%d' %% n, to); assert e.recv(99) == b'%%d' %% n" % (to, count)
        if how == "exec":
            go_on(end, "e", script + "\nprint('done', flush=True)")
        go_on(end, "e", script, spawn)
        assert os.wait()[1] == 0
        end.setblocking(True)
        exchange(end, to, count)
    elif how == "pass":
        socket.send_fds(ours, [b"x"], [end.fileno()])
        assert os.wait()[1] == 0
        exchange(end, to, count)
    elif how == "hold":
        print("called", flush=True)
        while sys.stdin.readline().strip() != "end":
            exchange(end, to, count)
            print("called", flush=True)
    elif how == "flood":
        print("called", flush=True)
        while sys.stdin.readline().strip() != "flood":
            exchange(end, to, count)
            print("called", flush=True)
        for n in range(5000):
            assert end.sendto(b"%d" % n, to)
        print("called", flush=True)
        sys.stdin.readline()
        came = [int(end.recv(100))]
        end.settimeout(1)
        try:
            while True:
                came.append(int(end.recv(100)))
        except TimeoutError:
            pass
        assert came == sorted(came) and came[0] == 0, came
        assert 100 < len(came) < 5000, len(came)
        end.settimeout(60)
        exchange(end, to, count)
    elif how == "refused":
        print("called", flush=True)
        sys.stdin.readline()
        for n in range(1000):
            try:
                end.send(b"x")
                end.settimeout(0.1)
                end.recv(10)
                assert False
            except TimeoutError:
                pass
            except ConnectionRefusedError:
                return
        assert False


role, how, address, port = sys.argv[1:5]
if role == "serve" and how == "asyncio":
    asyncio.run(serve_asyncio(address, int(port)))
elif role == "serve":
    serve(how, address, int(port))
elif how == "asyncio":
    asyncio.run(call_asyncio(address, int(port), int(sys.argv[5])))
else:
    call(how, address, int(port), int(sys.argv[5]))
print("done", flush=True)
