"""Serves connections beside other processes of the port. A request is a letter and a length of six digits: `e`, that
many bytes follow and are echoed; `f`, a child serves the connection from now on; `h`, one that has a Host, and so takes
the connection over from the kernel; `x`, a program that a child executes; `l`, such a program accepts from the listener
beside this process. Each answer begins with the number of the process."""
import os
import socket
import sys
import threading


def exactly(stream, count):
    data = b""
    while len(data) < count:
        part = stream.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def make_host(local):
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind((local, 0))
    own.setblocking(False)
    try:
        own.recv(1)
    except BlockingIOError:
        pass


def execute(what, number):
    os.set_inheritable(number, True)
    os.execvp("python3", ["python3", __file__, what, str(number)])


def serve(stream, in_child=False):
    peer = None
    try:
        peer = stream.getpeername()
        while True:
            request = exactly(stream, 7)
            data = exactly(stream, int(request[1:]))
            if request[:1] == b"l" and not in_child and os.fork() == 0:
                execute("listener", listener.fileno())
            if request[:1] in b"fhx":
                if os.fork() > 0:
                    return stream.close()
                # Connections of its parent's would stay open when that one is killed.
                os.closerange(3, stream.fileno())
                os.closerange(stream.fileno() + 1, 100)
                in_child = True
                if request[:1] == b"h":
                    make_host(stream.getsockname()[0])
                if request[:1] == b"x":
                    execute("connection", stream.fileno())
            stream.sendall(b"%07d" % os.getpid() + data)
    except EOFError:
        print(f"{os.getpid()}: {peer} has ended", file=sys.stderr, flush=True)
        stream.close()
    except ConnectionResetError:
        # The client has closed it with an answer under way.
        stream.close()
    except OSError as error:
        print(f"{os.getpid()}: {error}", file=sys.stderr, flush=True)
        stream.close()
    except ValueError as error:
        print(f"{os.getpid()}: {peer}: {error}", file=sys.stderr, flush=True)
        stream.close()
    finally:
        if in_child:
            os._exit(0)


if sys.argv[1] == "connection":
    stream = socket.socket(fileno=int(sys.argv[2]))
    stream.sendall(b"%07d" % os.getpid())
    serve(stream, True)
if sys.argv[1] == "listener":
    listener = socket.socket(fileno=int(sys.argv[2]))
else:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("", int(sys.argv[1])))
    listener.listen(100)
    print("ready", flush=True)
while True:
    stream, _ = listener.accept()
    threading.Thread(target=serve, args=(stream,), daemon=True).start()
