"""Sockets of child processes on our stack, against peer.py."""
import errno, os, socket, subprocess, sys, time

HERE, PEER = sys.argv[1], sys.argv[2]

def order(port):
    with socket.create_connection((PEER, 6999)) as orders:
        orders.sendall(b"connect %d\n" % port)
        # The peer closes the connection when it has read the order.
        time.sleep(0.1)

def echoed(stream, data):
    stream.sendall(data)
    got = b""
    while len(got) < len(data):
        more = stream.recv(len(data))
        assert more
        got += more
    assert got == data

def is_kernels(port):
    with open("/proc/self/net/tcp") as table:
        rows = [row.split() for row in table]
    return any(row[1].endswith(":%04X" % port) and row[3] == "01" for row in rows)

def listener():
    one = socket.socket()
    one.bind(("", 0))
    one.listen(8)
    return one, one.getsockname()[1]

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            __import__("traceback").print_exc()
        os._exit(1)
    return child

def ended(child):
    assert os.waitpid(child, 0)[1] == 0

def a_listener_moves_to_the_child_that_accepts():
    one, port = listener()
    def accept():
        kept = []
        for count in range(3):
            os.write(told, b"x")
            stream, _ = one.accept()
            echoed(stream, b"in the child")
            kept.append(stream)
            # The first connection may have been made before the child listened.
            assert count == 0 or not is_kernels(port) or kept[0]
        kept[0].close()
        until = time.monotonic() + 20
        while is_kernels(port):
            assert time.monotonic() < until
            time.sleep(0.001)
    tell, told = os.pipe()
    child = in_child(accept)
    for _ in range(3):
        os.read(tell, 1)
        # From another process: this one must not activate a socket.
        os.spawnlp(os.P_WAIT, "env", "env", "-u", "LD_PRELOAD", sys.executable, __file__, HERE, PEER, "order", str(port))
    ended(child)

def a_child_s_calls_do_not_affect_its_parent():
    one, port = listener()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("", 0))
    udp.sendto(b"mine", (PEER, 7000))
    assert udp.recv(10) == b"mine"
    stream = socket.create_connection((PEER, 7000))
    echoed(stream, b"before")
    def child():
        numbers = [int(number) for number in os.listdir("/proc/self/fd")]
        # The library has at most one descriptor: its channel to the parent, if there are connections.
        assert len([number for number in numbers if number >= 1000]) <= 1, numbers
        # A connection is handed to the kernel when it is used here.
        echoed(stream, b"the child's")
        assert is_kernels(stream.getsockname()[1])
        stream.close()
        # A datagram socket sends through the kernel; the parent receives.
        udp.sendto(b"the child's", (PEER, 7000))
        # New sockets are the kernel's: the parent has the queues.
        new = socket.create_connection((PEER, 7000))
        echoed(new, b"new")
        # So are connections over loopback to an inherited listener.
        near = socket.create_connection(("127.0.0.1", port))
        far, _ = one.accept()
        near.sendall(b"next door")
        assert far.recv(10) == b"next door"
    for _ in range(3):
        ended(in_child(child))
        assert udp.recv(20) == b"the child's"
        echoed(stream, b"after")
    # No process had waited for the listener when the children were made: the first that waits activates it.
    one.settimeout(0.05)
    try:
        one.accept()
        raise AssertionError
    except TimeoutError:
        one.settimeout(None)
    # What comes before the first accept is the kernel's, as children have used a connection.
    order(port)
    first, _ = one.accept()
    echoed(first, b"the kernel's")
    first.close()
    order(port)
    other, _ = one.accept()
    echoed(other, b"ours")
    assert not is_kernels(port)

def a_daemon_activates_the_listener_it_inherits():
    one, port = listener()
    tell, told = os.pipe()
    def daemon():
        os.setsid()
        if os.fork():
            os._exit(0)
        os.write(told, b"x")
        stream, _ = one.accept()
        echoed(stream, b"far from home")
        os.write(told, b"y")
    ended(in_child(daemon))
    os.read(tell, 1)
    os.spawnlp(os.P_WAIT, "env", "env", "-u", "LD_PRELOAD", sys.executable, __file__, HERE, PEER, "order", str(port))
    assert os.read(tell, 1) == b"y"

def a_listener_inherited_over_exec_is_the_kernel_s():
    one, port = listener()
    os.set_inheritable(one.fileno(), True)
    order(port)
    first, _ = one.accept()
    echoed(first, b"ours")
    child = os.spawnl(os.P_NOWAIT, sys.executable, sys.executable, __file__, HERE, PEER, "accept", str(one.fileno()))
    near = socket.create_connection(("127.0.0.1", port))
    near.sendall(b"who")
    assert near.recv(10) == b"who"
    ended(child)
    echoed(first, b"still ours")

def a_spawned_child_does_not_affect_its_parent():
    stream = socket.create_connection((PEER, 7000))
    echoed(stream, b"before")
    assert not is_kernels(stream.getsockname()[1])
    os.set_inheritable(stream.fileno(), True)
    words = [sys.executable, __file__, HERE, PEER, "inherited", str(stream.fileno())]
    # A child that the library does not see changes nothing.
    ended(os.posix_spawn(sys.executable, words + ["nothing"], os.environ))
    assert not is_kernels(stream.getsockname()[1])
    # By vfork: the program has the connections that the child prepares for it.
    os.set_inheritable(stream.fileno(), False)
    assert subprocess.run(words + ["connection"], pass_fds=[stream.fileno()]).returncode == 0
    echoed(stream, b"after")

def inherited(number, what):
    stream = socket.socket(fileno=number)
    if what == "connection":
        echoed(stream, b"inherited")
    else:
        try:
            stream.recv(1)
            raise AssertionError
        except OSError as error:
            assert error.errno == errno.ENOTCONN, error
    echoed(socket.create_connection((PEER, 7000)), b"new")

what = sys.argv[3]
if what == "order":
    order(int(sys.argv[4]))
elif what == "inherited":
    inherited(int(sys.argv[4]), sys.argv[5])
elif what == "accept":
    stream, _ = socket.socket(fileno=int(sys.argv[4])).accept()
    stream.sendall(stream.recv(10))
else:
    globals()[what]()
    print(what, flush=True)
