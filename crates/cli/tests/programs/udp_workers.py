"""Answers each datagram with the number of its process, beside other processes with sockets of the port. Arguments: the
port; how many sockets it has, of both families; then the user it becomes, if any."""
import os
import select
import socket
import sys


def answer(s):
    data, peer = s.recvfrom(4096)
    s.sendto(b"%d" % os.getpid(), peer)


def priority(s):
    return s.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)


port, count = int(sys.argv[1]), int(sys.argv[2])
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
sockets = []
for _ in range(count):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("", port))
    # It is the stack's from here on.
    s.settimeout(0.01)
    try:
        answer(s)
    except TimeoutError:
        pass
    s.settimeout(None)
    assert priority(s) == 0, priority(s)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 16)
    assert priority(s) == 6, priority(s)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 3)
    assert priority(s) == 3, priority(s)
    sockets.append(s)
print("ready", flush=True)
while True:
    for s in select.select(sockets, [], [])[0]:
        answer(s)
