"""Listeners with SO_REUSEPORT: listeners.py serve NAME ADDRESS PORT answers each connection with its name;
listeners.py call ADDRESS PORT TIMES prints the names that answered, and how many times each, and does so again for each
line on standard input."""
import collections
import os
import socket
import sys


def serve(name, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = family == socket.AF_INET6
    listener = socket.create_server((address, port), family=family, reuse_port=True, dualstack_ipv6=both, backlog=128)
    print("ready %d" % os.getpid(), flush=True)
    while True:
        stream, _ = listener.accept()
        stream.sendall(name.encode())
        stream.recv(1)
        stream.close()


def call(address, port, times):
    names = collections.Counter()
    for _ in range(times):
        with socket.create_connection((address, port)) as stream:
            names[stream.recv(100).decode()] += 1
    print(*["%s=%d" % each for each in sorted(names.items())], "done", flush=True)


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    call(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    for _ in sys.stdin:
        call(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
