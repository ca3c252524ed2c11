"""A connection goes to another process while its peer is stopped: stopped.py pass|fork|exec.

The peer, which echoes, is stopped for two seconds. Meanwhile the connection is passed by SCM_RIGHTS, or a child that has
inherited it uses it, or a program that the process executes has it. There a line goes to the peer and comes back.
"""
import os
import signal
import socket
import sys
import time

way = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))
ECHOES = """
import socket, sys
stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while part := stream.recv(1000):
    stream.sendall(part)
"""


def exchange(stream, line):
    stream.sendall(line)
    came = b""
    while len(came) < len(line):
        came += stream.recv(1000)
    assert came == line


def use(stream):
    exchange(stream, b"from another process\n" * 10)
    print("echoed", flush=True)


if way == "executed":
    use(socket.socket(fileno=int(sys.argv[2])))
    sys.exit()
peer = os.spawnvp(os.P_NOWAIT, "python3", ["python3", "-c", ECHOES, str(listener.getsockname()[1])])
stream, _ = listener.accept()
for at in range(200):
    exchange(stream, b"x")
os.kill(peer, signal.SIGSTOP)
# It goes on after two seconds, whatever this process does.
if os.fork() == 0:
    time.sleep(2)
    os.kill(peer, signal.SIGCONT)
    os._exit(0)
if way == "pass":
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        stream.close()
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        use(socket.socket(fileno=fds[0]))
        os._exit(0)
    socket.send_fds(ours, [b"!"], [stream.fileno()])
elif way == "fork":
    child = os.fork()
    if child == 0:
        use(stream)
        os._exit(0)
else:
    child = os.fork()
    if child == 0:
        os.set_inheritable(stream.fileno(), True)
        os.execvp("python3", ["python3", __file__, "executed", str(stream.fileno())])
stream.close()
_, status = os.waitpid(child, 0)
os.kill(peer, signal.SIGKILL)
print(status)
