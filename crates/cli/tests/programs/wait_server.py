"""A server whose parent waits for connections to the given port and leaves accept to programs that it executes, as inetd
does with "wait": each serves one connection, on standard input, and echoes.
"""
import os
import select
import socket
import sys

SERVER = "import socket\nlistener = socket.socket(fileno=0)\nclient, _ = listener.accept()\nwhile data := client.recv(4096): client.sendall(data)"

listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    select.select([listener], [], [])
    child = os.fork()
    if child == 0:
        os.dup2(listener.fileno(), 0)
        os.execvp("python3", ["python3", "-c", SERVER])
    os.waitpid(child, 0)
