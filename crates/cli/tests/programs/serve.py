"""A TCP server on the given port: echoes, or sends without end to a client whose first byte is "t".

Further words: "nobody": it gives up its rights first; "worker": a child serves, and another one when that has ended;
"daemon": a daemon serves; "last HOW": it sends much data to its first client and ends as HOW says. Each server prints
its process number.
"""
import ctypes
import os
import socket
import sys
import threading

LAST = bytes(range(256)) * 2000

# The number of the system call exit_group.
EXIT_GROUP = {"x86_64": 231, "aarch64": 94}


def serve(client):
    data = client.recv(4096)
    while data[:1] == b"t":
        client.sendall(bytes(65536))
    while data:
        client.sendall(data)
        data = client.recv(4096)
    client.close()


def accept(listener):
    print("ready", os.getpid(), flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


def send_and_end(listener, how):
    print("ready", os.getpid(), flush=True)
    client, _ = listener.accept()
    client.sendall(LAST)
    libc = ctypes.CDLL(None)
    ends = {
        "exit": lambda: sys.exit(7),
        "_exit": lambda: os._exit(7),
        "quick_exit": lambda: libc.quick_exit(7),
        "exit_group": lambda: libc.syscall(EXIT_GROUP[os.uname().machine], 7),
    }
    ends[how]()


port, words = int(sys.argv[1]), sys.argv[2:]
listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
if words == ["nobody"]:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    accept(listener)
elif words == ["worker"]:
    while True:
        if os.fork() == 0:
            accept(listener)
        os.wait()
elif words == ["daemon"]:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            accept(listener)
    os._exit(0)
elif words[:1] == ["last"]:
    send_and_end(listener, words[1])
else:
    accept(listener)
