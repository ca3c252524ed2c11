"""Accepts one connection, sends a byte, and reads only after a line has come on its own input: late_reader.py ADDRESS.

Prints "ready PORT" and then how many bytes it has read, and whether their end was orderly.
"""
import socket
import sys

listener = socket.create_server((sys.argv[1], 0))
print("ready", listener.getsockname()[1], flush=True)
stream, _ = listener.accept()
stream.sendall(b"!")
sys.stdin.readline()
count, end = 0, "end"
try:
    while part := stream.recv(65536):
        count += len(part)
except ConnectionResetError:
    end = "reset"
print(count, end)
