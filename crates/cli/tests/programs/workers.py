"""Answers each request with the number of the process that serves it. Argument: the port; then how many workers inherit
the listener, or `reuseport` for a listener of its own beside others."""
import os
import socket
import sys
import threading


def serve(stream):
    with stream:
        while request := stream.recv(4096):
            stream.sendall(b"%07d %s" % (os.getpid(), request))


def accept(listener):
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=serve, args=(stream,), daemon=True).start()


listener = socket.socket()
how = sys.argv[2]
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, how == "reuseport")
listener.bind(("", int(sys.argv[1])))
listener.listen(100)
if how != "reuseport":
    for _ in range(int(how)):
        if os.fork() == 0:
            accept(listener)
print("ready", flush=True)
if how == "reuseport":
    accept(listener)
while True:
    os.wait()
