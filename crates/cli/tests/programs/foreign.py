"""Sockets that a program under busypoll has not made.

foreign.py HOW PORT COMMAND...   outside: makes a socket, and runs COMMAND, the program under busypoll, with it
foreign.py use HOW FD            inside: uses it: serves as a name of HOW says
foreign.py mptcp PORT            a listener of MPTCP
foreign.py mptcp-connect ADDRESS PORT
"""
import array, os, socket, sys

def plain(how):
    kind = socket.SOCK_DGRAM if how.endswith("udp") else socket.SOCK_STREAM
    one = socket.socket(socket.AF_INET, kind)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("", int(sys.argv[2])))
    if kind == socket.SOCK_STREAM:
        one.listen(8)
    if how.endswith("connection"):
        print("ready", flush=True)
        return one.accept()[0]
    return one

def outside(how):
    one = plain(how)
    if how.startswith("received"):
        ours, theirs = socket.socketpair()
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
        one.close()
        passed = theirs
    elif how == "inetd":
        print("ready", flush=True)
        passed, _ = one.accept()
        os.dup2(passed.fileno(), 0)
        os.dup2(passed.fileno(), 1)
        os.dup2(passed.fileno(), 2)
    else:
        passed = one
    os.set_inheritable(passed.fileno(), True)
    os.execvp(sys.argv[3], sys.argv[3:] + ["use", how, str(passed.fileno())])

def received(channel):
    _, brought, _, _ = socket.socket(fileno=channel).recvmsg(1, socket.CMSG_SPACE(4))
    return array.array("i", brought[0][2])[0]

def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)

def serve(listener):
    print("ready", flush=True)
    while True:
        with listener.accept()[0] as stream:
            echo(stream)

def inside(how, fd):
    if how.startswith("unused"):
        print("over")
    elif how == "inetd":
        # This would be reported.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setsockopt(socket.IPPROTO_UDP, 103, 1200)  # UDP_SEGMENT
            one.bind(("", 0))
            one.setblocking(False)
            try:
                one.recv(1)
            except BlockingIOError:
                pass
        while data := os.read(0, 65536):
            os.write(1, data)
    elif how.endswith("udp"):
        one = socket.socket(fileno=received(fd) if how.startswith("received") else fd)
        print("ready", flush=True)
        while True:
            data, peer = one.recvfrom(2048)
            one.sendto(data, peer)
    elif how.endswith("connection"):
        echo(socket.socket(fileno=received(fd) if how.startswith("received") else fd))
    else:
        serve(socket.socket(fileno=received(fd) if how.startswith("received") else fd))

if sys.argv[1] == "use":
    inside(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "mptcp":
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("", int(sys.argv[2])))
    one.listen(8)
    serve(one)
elif sys.argv[1] == "mptcp-connect":
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as one:
        one.connect((sys.argv[2], int(sys.argv[3])))
        one.sendall(b"hello")
        print(one.recv(5))
elif sys.argv[1] == "socket-activate":
    serve(socket.socket(fileno=3))
else:
    outside(sys.argv[1])
