"""Accepts a connection, and passes its listener to a program that accepts from then on: passes_listener.py PORT HOW
[ADDRESS]. Each line on standard input has this process accept one more. Both answer a connection with a word and close it."""
import os
import signal
import socket
import sys

port, how = int(sys.argv[1]), sys.argv[2]
program = f"""
import os, select, socket, sys
number = int(sys.argv[1])
if number < 0:
    _, (number, *_), _, _ = socket.recv_fds(socket.socket(fileno=-number), 1, 1)
listener = socket.socket(fileno=number)
select.select([listener], [], [], 0)
print('accepts', flush=True)
while True:
    stream, _ = listener.accept()
    stream.sendall(b'program')
    stream.close()
"""


def execute(number):
    os.execvp("python3", ["python3", "-c", program, str(number)])


# The program does not end by itself.
signal.signal(signal.SIGCHLD, lambda *_: os._exit(1))
listener = socket.create_server((sys.argv[3] if len(sys.argv) > 3 else "", port))
print("ready", flush=True)
if how == "received":
    # Forked before there is anything to inherit.
    ours, theirs = socket.socketpair()
first, _ = listener.accept()
if how == "inherited":
    # Nothing in the child tells that it is for the program.
    listener.set_inheritable(True)
if how == "spawned":
    actions = [(os.POSIX_SPAWN_DUP2, listener.fileno(), 9)]
    child = os.posix_spawnp("python3", ["python3", "-c", program, "9"], os.environ, file_actions=actions)
elif (child := os.fork()) == 0:
    if how == "received":
        os.dup2(theirs.fileno(), 8)
        execute(-8)
    elif how == "duplicated":
        os.dup2(listener.fileno(), 9)
        execute(9)
    execute(listener.fileno())
if how == "received":
    socket.send_fds(ours, [b"x"], [listener.fileno()])
for line in sys.stdin:
    if line == "end\n":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue
    stream, _ = listener.accept()
    stream.sendall(b"parent")
    stream.close()
