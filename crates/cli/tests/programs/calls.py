"""Socket calls of all kinds, against peer.py. The name of a case states the rule it checks; it prints only that name,
when it has passed, on the kernel as on our stack."""
import array, errno, fcntl, os, signal, socket, struct, sys, termios, threading, time

HERE, PEER = sys.argv[1], sys.argv[2]

def fails(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, (errno.errorcode[error.errno], errno.errorcode[code])
        return
    raise AssertionError(f"no {errno.errorcode[code]} of {call} {arguments}")

def pair():
    """A connection of ours, and its listener's port: the peer connects and echoes."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", 0))
    listener.listen(8)
    order("connect %d" % listener.getsockname()[1])
    stream, peer = listener.accept()
    assert peer == stream.getpeername() and peer[0] == PEER, peer
    assert stream.getsockname() == (HERE, listener.getsockname()[1])
    comes_to_stack(listener.getsockname()[1])
    listener.close()
    return stream

def comes_to_stack(port):
    """The kernel may have made a connection before accept, and lets it go a moment after."""
    until = time.monotonic() + 20
    while is_kernels(port) == IN_STACK:
        assert time.monotonic() < until
        time.sleep(0.001)

def is_kernels(port):
    """Whether the kernel has a connection at a local port."""
    with open("/proc/self/net/tcp") as table:
        rows = [row.split() for row in table]
    return any(row[1].endswith(":%04X" % port) and row[3] == "01" for row in rows)

def order(text):
    ORDERS.sendall(text.encode() + b"\n")

def exactly(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        assert more, (len(data), count)
        data += more
    return data

def echoed(stream, data):
    stream.sendall(data)
    assert exactly(stream, len(data)) == data

def datagrams():
    """A bound socket of ours, and the address of a peer that echoes."""
    ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ours.bind(("", 0))
    return ours, (PEER, 7000)

def a_socket_may_have_several_numbers():
    stream = pair()
    two = stream.dup()
    three = socket.socket(fileno=fcntl.fcntl(stream.fileno(), fcntl.F_DUPFD_CLOEXEC, 60))
    assert three.fileno() >= 60
    os.dup2(stream.fileno(), 70)
    four = socket.socket(fileno=70)
    stream.close()
    for one in [two, three, four]:
        echoed(one, b"by any name")
    two.setblocking(False)
    fails(errno.EAGAIN, three.recv, 1)
    two.setblocking(True)
    two.close(), three.close()
    # Only closing the last number closes the connection.
    four.shutdown(socket.SHUT_WR)
    assert os.read(70, 10) == b""
    fails(errno.EPIPE, four.send, b"x")

def status_flags_belong_to_the_socket():
    stream = pair()
    flags = fcntl.fcntl(stream, fcntl.F_GETFL)
    assert flags & os.O_NONBLOCK == 0
    fcntl.fcntl(stream, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    fails(errno.EAGAIN, os.read, stream.fileno(), 1)
    fcntl.ioctl(stream, 0x5421, struct.pack("i", 0))  # FIONBIO
    assert fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_NONBLOCK == 0
    fails(errno.EAGAIN, stream.recv, 1, socket.MSG_DONTWAIT)

def ioctls_count_queued_bytes():
    stream = pair()
    stream.sendall(b"12345")
    assert stream.recv(1, socket.MSG_PEEK) == b"1"
    while True:
        count = array.array("i", [0])
        fcntl.ioctl(stream, termios.FIONREAD, count)
        if count[0] == 5:
            break
    fcntl.ioctl(stream, termios.TIOCOUTQ, count)
    assert exactly(stream, 5) == b"12345"
    ours, peer = datagrams()
    for text in [b"first", b"second!"]:
        ours.sendto(text, peer)
    assert ours.recv(1, socket.MSG_PEEK) == b"f"
    fcntl.ioctl(ours, termios.FIONREAD, count)
    assert count[0] == 5, count

def vectors_and_waitall_transfer_all_bytes():
    stream = pair()
    stream.sendmsg([b"one ", b"", b"two ", b"three"])
    assert stream.recv(13, socket.MSG_WAITALL) == b"one two three"
    os.writev(stream.fileno(), [b"a" * 3000, b"b" * 3000])
    assert stream.recv(6000, socket.MSG_WAITALL) == b"a" * 3000 + b"b" * 3000
    echoed(stream, b"xyz")
    stream.sendall(b"abcdef")
    assert stream.recv(3, socket.MSG_PEEK | socket.MSG_WAITALL)[:1] == b"a"
    buffers = [bytearray(2), bytearray(4)]
    stream.recv(6, socket.MSG_WAITALL | socket.MSG_PEEK)
    got = 0
    while got < 6:
        got += stream.recv_into(memoryview(buffers[1])[:1])
    fails(errno.ESPIPE, os.preadv, stream.fileno(), [bytearray(1)], 0)
    fails(errno.ESPIPE, os.lseek, stream.fileno(), 0, os.SEEK_CUR)

def datagrams_keep_their_boundaries():
    ours, peer = datagrams()
    ours.sendto(b"0123456789", peer)
    data, _, flags, sender = ours.recvmsg(4, 0, socket.MSG_PEEK)
    assert (data, flags & socket.MSG_TRUNC, sender) == (b"0123", socket.MSG_TRUNC, peer)
    assert ours.recv_into(bytearray(4), 4, socket.MSG_TRUNC) == 10
    fails(errno.EAGAIN, ours.recv, 1, socket.MSG_DONTWAIT)
    ours.sendto(b"", peer)
    assert ours.recvfrom(10) == (b"", peer)
    fails(errno.EDESTADDRREQ, ours.send, b"x")
    fails(errno.EMSGSIZE, ours.sendto, b"x" * 70_000, peer)
    fails(errno.ENOTCONN, ours.getpeername)
    # It is sent in fragments.
    ours.sendto(b"y" * 5_000, peer)
    assert ours.recv(9_000) == b"y" * 5_000

def a_datagram_from_port_0_has_a_sender():
    ours, _ = datagrams()
    # This activates the socket.
    ours.sendto(b"x", (PEER, 7000))
    assert ours.recvfrom(10) == (b"x", (PEER, 7000))
    order("unsigned %d" % ours.getsockname()[1])
    assert ours.recvfrom(10) == (b"unsigned", (PEER, 0))
    order("unsigned %d" % ours.getsockname()[1])
    assert ours.recvmsg(10)[3] == (PEER, 0)

def a_datagram_has_its_destination_and_time_stamp():
    ours, peer = datagrams()
    ours.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
    ours.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
    assert ours.getsockopt(socket.SOL_SOCKET, 35) == 1
    for size in [1, 5_000]:
        ours.sendto(b"z" * size, peer)
        _, told, flags, _ = ours.recvmsg(9_000, 200)
        told = {(level, kind): data for level, kind, data in told}
        index, _, to = struct.unpack("i4s4s", told[socket.IPPROTO_IP, 8])
        assert socket.inet_ntoa(to) == HERE and socket.if_indextoname(index), (index, to)
        seconds, _ = struct.unpack("ll", told[socket.SOL_SOCKET, 35])
        assert abs(seconds - __import__("time").time()) < 60
        assert flags & socket.MSG_CTRUNC == 0
    ours.sendto(b"z", peer)
    _, told, flags, _ = ours.recvmsg(10, 8)
    assert (told, flags & socket.MSG_CTRUNC) == ([], socket.MSG_CTRUNC)

def an_ipv6_socket_gets_ipv4_control_messages_for_an_ipv4_datagram():
    _, (address, port) = datagrams()
    ours = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    ours.setsockopt(socket.IPPROTO_IPV6, 49, 1)  # IPV6_RECVPKTINFO
    ours.setsockopt(socket.IPPROTO_IPV6, 74, 1)  # IPV6_RECVORIGDSTADDR
    ours.setsockopt(socket.IPPROTO_IP, 20, 1)  # IP_RECVORIGDSTADDR
    ours.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
    ours.sendto(b"z", ("::ffff:" + address, port))
    _, told, _, _ = ours.recvmsg(10, 200)
    kinds = [(level, kind) for level, kind, _ in told]
    assert kinds == [(41, 50), (0, 8), (0, 20)], kinds

def a_datagram_socket_may_connect_again():
    ours, peer = datagrams()
    ours.connect(peer)
    assert ours.getpeername() == peer and ours.getsockname()[0] == HERE
    ours.send(b"hello")
    assert ours.recv(10) == b"hello"
    ours.connect((PEER, 9))
    ours.send(b"no socket there")
    fails(errno.ECONNREFUSED, ours.recv, 10)
    ours.connect(peer)
    ours.send(b"again")
    assert ours.recv(10) == b"again"

def a_port_in_use_is_refused():
    ours, _ = datagrams()
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fails(errno.EADDRINUSE, other.bind, ours.getsockname())
    fails(errno.EINVAL, ours.bind, ("", 0))
    fails(errno.EADDRNOTAVAIL, other.bind, ("192.0.2.1", 0))
    other.bind((HERE, 0))
    one = socket.socket()
    one.bind(("", 0))
    one.listen(1)
    two = socket.socket()
    fails(errno.EADDRINUSE, two.bind, one.getsockname())
    fails(errno.EINVAL, one.bind, ("", 0))
    fails(errno.EISCONN, one.connect, (PEER, 7000))
    fails(errno.ENOTCONN, two.recv, 1)
    fails(errno.ENOTCONN, one.recv, 1)

def a_port_with_connections_or_time_wait_is_in_use():
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(8)
    port = listener.getsockname()[1]
    order("connect %d" % port)
    stream, _ = listener.accept()
    listener.close()
    fails(errno.EADDRINUSE, socket.socket().bind, ("", port))
    fails(errno.EADDRINUSE, socket.socket().bind, (HERE, port))
    stream.close()
    # Its TIME_WAIT blocks the port too.
    fails(errno.EADDRINUSE, socket.socket().bind, ("", port))

def a_socket_whose_connect_failed_may_listen():
    listener = socket.socket()
    listener.bind(("", 0))
    fails(errno.ECONNREFUSED, listener.connect, (PEER, 1))
    listener.listen(8)
    order("connect %d" % listener.getsockname()[1])
    echoed(listener.accept()[0], b"after all")

def a_connection_inherits_its_listener_s_options():
    listener = socket.socket()
    listener.bind(("", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3))
    listener.listen(8)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300_000))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    order("connect %d" % listener.getsockname()[1])
    stream, _ = listener.accept()
    comes_to_stack(listener.getsockname()[1])
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 3)
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == struct.pack("ll", 0, 300_000)
    assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\0") == b"reno"

def a_connect_from_a_port_in_time_wait_succeeds_at_once():
    port = 0
    for _ in range(3):
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind((HERE, port))
        port = ours.getsockname()[1]
        ours.connect((PEER, 7000))
        assert is_kernels(port) != IN_STACK
        echoed(ours, b"from here again")
        # The end that closes first keeps TIME_WAIT.
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(1) == b""
        ours.close()

def tcp_defer_accept_waits_for_data():
    listener = socket.socket()
    listener.bind(("", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 2)
    assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) == 3
    listener.listen(8)
    begun = time.monotonic()
    order("connect %d" % listener.getsockname()[1])
    stream, _ = listener.accept()
    # The peer has sent no data.
    assert time.monotonic() - begun > 1
    echoed(stream, b"in vain")

def msg_fastopen_connects_and_sends():
    MSG_FASTOPEN = 0x2000_0000
    ours = socket.socket()
    assert ours.sendto(b"first", MSG_FASTOPEN, (PEER, 7000)) == 5
    assert is_kernels(ours.getsockname()[1]) != IN_STACK
    assert exactly(ours, 5) == b"first"
    fails(errno.EISCONN, ours.sendto, b"again", MSG_FASTOPEN, (PEER, 7000))
    fails(errno.EISCONN, ours.sendmsg, [b"again"], [], MSG_FASTOPEN, (PEER, 7000))
    echoed(ours, b"as ever")

def a_stream_has_time_stamps():
    stream = pair()
    stream.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
    # Packets that arrive before the kernel has enabled its time stamps have none.
    for _ in range(2):
        time.sleep(0.05)
        stream.sendall(b"when?")
        data, told, _, _ = stream.recvmsg(100, 100)
    (level, kind, at), = told
    assert (data, level, kind) == (b"when?", socket.SOL_SOCKET, 35)
    seconds, nanos = struct.unpack("ll", at)
    assert 0 <= time.time() - (seconds + nanos / 1e9) < 60, at

def a_v6only_socket_does_not_reach_ipv4():
    mapped = ("::ffff:" + PEER, 7000)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        ours = socket.socket(socket.AF_INET6, kind)
        ours.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        fails(errno.ENETUNREACH, ours.connect, mapped)
    ours = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    ours.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    ours.bind(("::", 0))
    ours.setblocking(False)
    fails(errno.EAGAIN, ours.recv, 1)
    fails(errno.ENETUNREACH, ours.sendto, b"x", mapped)
    # -1 sets the default (RFC 3542).
    ours.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 9)
    ours.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, -1)
    assert ours.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) == 0

def a_datagram_to_af_unspec_is_ipv4():
    import ctypes
    ours, _ = datagrams()
    ours.sendto(b"x", (PEER, 7000))
    assert ours.recv(10) == b"x"
    address = struct.pack("=H", socket.AF_UNSPEC) + struct.pack("!H4s8x", 7000, socket.inet_aton(PEER))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.sendto(ours.fileno(), b"y", 1, 0, address, len(address)) == 1, ctypes.get_errno()
    assert ours.recv(10) == b"y"

def connect_returns_the_reason_of_a_failure():
    for _ in range(2):
        ours = socket.socket()
        for _ in range(2):
            fails(errno.ECONNREFUSED, ours.connect, (PEER, 9))
        ours.connect((PEER, 7000))
        fails(errno.EISCONN, ours.connect, (PEER, 7000))
        echoed(ours, b"at last")
    bound = socket.socket()
    bound.bind(("", 0))
    port = bound.getsockname()[1]
    bound.connect((PEER, 7000))
    assert bound.getsockname() == (HERE, port)
    echoed(bound, b"from a port of its own")
    ours = socket.socket()
    ours.setblocking(False)
    assert ours.connect_ex((PEER, 7000)) == errno.EINPROGRESS
    while ours.connect_ex((PEER, 7000)) == errno.EALREADY:
        pass
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    ours.setblocking(True)
    echoed(ours, b"in its own time")

def options_are_read_as_they_were_set():
    stream = pair()
    assert stream.getsockopt(socket.IPPROTO_IP, 14) == 1500  # IP_MTU
    for level, name, value in [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 7),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12_345),
        (socket.IPPROTO_IP, socket.IP_TOS, 16),
        (socket.SOL_SOCKET, 46, 77),  # SO_BUSY_POLL
        (socket.SOL_SOCKET, socket.SO_MARK, 5),
    ]:
        stream.setsockopt(level, name, value)
        assert stream.getsockopt(level, name) == value, (level, name)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50_000)
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100_000
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET
    linger = struct.pack("ii", 1, 3)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == linger
    name = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert name.split(b"\0")[0] in (b"cubic", b"reno", b"bbr"), name
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    assert info[0] == 1 and struct.unpack_from("I", info, 8 + 4 * 2)[0] > 500, info
    fails(errno.ENOPROTOOPT, stream.setsockopt, socket.IPPROTO_TCP, 9_999, 1)
    fails(errno.EINVAL, stream.setsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1_000)
    limit = struct.pack("ll", 0, 200_000)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == limit
    fails(errno.EAGAIN, stream.recv, 1)
    # The newer number of SO_RCVTIMEO; and a negative time.
    stream.setsockopt(socket.SOL_SOCKET, 66, struct.pack("ll", 0, 100_000))
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == struct.pack("ll", 0, 100_000)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", -1, 0))
    fails(errno.EAGAIN, stream.recv, 1)

def sendfile_and_splice_transfer_data():
    stream = pair()
    data = os.urandom(300_000)
    with open("/tmp/busypoll-calls-%d" % os.getpid(), "wb+") as file:
        os.unlink(file.name)
        file.write(data)
        file.flush()
        def send():
            sent = 0
            while sent < len(data):
                sent += os.sendfile(stream.fileno(), file.fileno(), sent, len(data) - sent)
        sender = threading.Thread(target=send)
        sender.start()
        assert exactly(stream, len(data)) == data
        sender.join()
        fails(errno.ESPIPE, os.sendfile, file.fileno(), stream.fileno(), 0, 10)
    if hasattr(os, "splice"):
        out, into = os.pipe()
        stream.sendall(b"through a pipe")
        assert os.splice(stream.fileno(), into, 100) > 0
        os.write(into, b" and back")
        assert os.splice(out, stream.fileno(), 100) > 0
        assert stream.recv(10)

def a_write_after_shutdown_raises_sigpipe():
    seen = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: seen.append(number))
    stream = pair()
    stream.shutdown(socket.SHUT_WR)
    fails(errno.EPIPE, stream.send, b"x", socket.MSG_NOSIGNAL)
    assert not seen
    fails(errno.EPIPE, os.write, stream.fileno(), b"x")
    # The interpreter runs the handler a moment later.
    while not seen:
        pass
    assert seen == [signal.SIGPIPE], seen
    signal.signal(signal.SIGPIPE, before)

def numbers_are_the_lowest_and_the_library_s_are_not_closed():
    first = socket.socket()
    number = first.fileno()
    first.close()
    again = socket.socket()
    assert again.fileno() == number, (again.fileno(), number)
    assert number < 64
    import stat
    assert stat.S_ISSOCK(os.fstat(number).st_mode)
    stream = pair()
    keep = {stream.fileno(), ORDERS.fileno(), 0, 1, 2}
    for low, high in zip(sorted(keep), sorted(keep)[1:] + [5_000]):
        os.closerange(low + 1, high)
    again.detach()
    echoed(stream, b"still here")
    echoed(pair(), b"and so is the rest")

def several_threads_accept_from_one_listener():
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(64)
    done = []
    def serve():
        while True:
            stream, _ = listener.accept()
            with stream:
                echoed(stream, b"from a thread")
                done.append(1)
                if len(done) >= 40:
                    return
    threads = [threading.Thread(target=serve, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(43):
        order("connect %d" % listener.getsockname()[1])
    for thread in threads:
        thread.join()

def ended_threads_leave_no_descriptor_behind():
    quiet, _ = datagrams()
    quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 10_000))
    def descriptors_after(threads):
        for _ in range(threads):
            thread = threading.Thread(target=fails, args=(errno.EAGAIN, quiet.recv, 1))
            thread.start()
            thread.join()
        return len(os.listdir("/proc/self/fd"))
    few = descriptors_after(2)
    assert descriptors_after(30) <= few + 2

def system_calls_by_number_do_the_same():
    import ctypes, platform
    call = ctypes.CDLL(None).syscall
    SOCKET, CONNECT, SENDTO, RECVFROM, CLOSE = {
        "x86_64": (41, 42, 44, 45, 3), "aarch64": (198, 203, 206, 207, 57)}[platform.machine()]
    number = call(SOCKET, socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 7000, socket.inet_aton(PEER))
    assert call(CONNECT, number, address, len(address)) == 0
    assert call(SENDTO, number, b"by number", 9, 0, None, 0) == 9
    came = ctypes.create_string_buffer(9)
    assert call(RECVFROM, number, came, 9, socket.MSG_WAITALL, None, None) == 9
    assert came.raw == b"by number"
    stream = socket.socket(fileno=os.dup(number))
    assert call(CLOSE, number) == 0
    assert is_kernels(stream.getsockname()[1]) != IN_STACK
    echoed(stream, b"by its other number")

# Whether our stack runs the sockets.
IN_STACK = "BUSYPOLL_RUN" in os.environ
ORDERS = socket.create_connection((PEER, 6999))
CASES = [case for name, case in list(globals().items())
         if callable(case) and getattr(case, "__module__", "") == "__main__"
         and name not in ("fails", "pair", "order", "exactly", "echoed", "datagrams", "is_kernels",
                          "comes_to_stack")]
wanted = sys.argv[3:]
for case in CASES:
    if not wanted or case.__name__ in wanted:
        case()
        print(case.__name__, flush=True)
