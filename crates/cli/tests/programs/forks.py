"""Connections that a child of fork uses: forks.py serve PORT HOW, or forks.py connect PEER PORT HOW.

A server answers each line with it, and the end with "end". A client sends lines and prints what is echoed."""
import ctypes, os, signal, socket, sys, time

libc = ctypes.CDLL(None)

def fork_as(how):
    if how == "_Fork":
        return libc._Fork()
    if how == "clone":
        return libc.syscall(ctypes.c_long(56), ctypes.c_ulong(signal.SIGCHLD), None, None, None, None)
    if how == "clone3":
        arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, signal.SIGCHLD)
        return libc.syscall(ctypes.c_long(435), arguments, ctypes.c_size_t(64))
    return os.fork()

def echo(stream):
    with stream.makefile("rwb", buffering=0) as lines:
        while line := lines.readline():
            lines.write(line)
        lines.write(b"end\n")

def serve(port, how):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(64)
    print("ready", flush=True)
    while True:
        stream, _ = listener.accept()
        if how == "read_before":
            # The parent reads the first line, the child the rest.
            first = b""
            while not first.endswith(b"\n"):
                first += stream.recv(1)
            stream.sendall(first)
        if how == "late":
            # The peer has sent all its data, and shut down its sending half.
            time.sleep(0.2)
        child = fork_as(how)
        if child == 0:
            listener.close()
            if how.startswith("clone"):
                # The C library asks each thread it knows of to do the same.
                os.setgroups([])
            if how == "becomes":
                os.dup2(stream.fileno(), 0)
                os.dup2(stream.fileno(), 1)
                stream.close()
                os.execvp("sh", ["sh", "-c", "cat; echo end"])
            if how == "grandchild" and os.fork() != 0:
                os._exit(0)
            if how == "waits":
                import select
                poll = select.epoll()
                poll.register(stream, select.EPOLLIN)
                assert poll.poll(20)
            echo(stream)
            stream.close()
            os._exit(0)
        stream.close()
        status = os.waitpid(child, 0)[1]
        if status:
            print("status", os.waitstatus_to_exitcode(status), flush=True)

def exchange(stream, lines, text):
    for count in range(3):
        line = b"%s %d\n" % (text, count)
        stream.sendall(line)
        assert lines.readline() == line

def connect(peer, port, how):
    stream = socket.create_connection((peer, port), 20)
    lines = stream.makefile("rb", buffering=0)
    exchange(stream, lines, b"before")
    if how == "daemon":
        assert libc.daemon(1, 1) == 0
        time.sleep(0.3)
        exchange(stream, lines, b"child")
        child = 0
    else:
        child = os.fork()
    if how == "parent_ends":
        if child:
            os._exit(0)
        # As a daemon does, after its parent has ended.
        time.sleep(0.3)
        exchange(stream, lines, b"child")
    elif how == "both":
        # Each process uses one direction, as rsync does.
        if child == 0:
            stream.sendall(b"from the child\n")
            time.sleep(0.3)
            os._exit(0)
        assert lines.readline() == b"from the child\n"
        os.waitpid(child, 0)
        exchange(stream, lines, b"parent")
    elif how == "unused":
        if child == 0:
            time.sleep(0.3)
            os._exit(0)
        exchange(stream, lines, b"parent")
        os.waitpid(child, 0)
        exchange(stream, lines, b"parent")
    stream.shutdown(socket.SHUT_WR)
    assert lines.readline() == b"end\n"
    print("over", flush=True)

what, *rest = sys.argv[1:]
if what == "serve":
    serve(int(rest[0]), rest[1])
else:
    connect(rest[0], int(rest[1]), rest[2])
