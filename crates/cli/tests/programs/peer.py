"""The peer of calls.py and fork.py: echoes datagrams and connections at port 7000. At port 6999 it takes orders: to
connect to a port of the client and echo there, or to send "unsigned" to it from port 0."""
import socket, struct, threading

def echo(stream):
    try:
        while data := stream.recv(65536):
            stream.sendall(data)
    except OSError:
        pass
    stream.close()

def orders(stream, who):
    for line in stream.makefile():
        what, port = line.split()
        port = int(port)
        if what == "unsigned":
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
            raw.sendto(struct.pack("!4H", 0, port, 16, 0) + b"unsigned", (who[0], 0))
            continue
        connection = socket.create_connection((who[0], port))
        threading.Thread(target=echo, args=(connection,), daemon=True).start()

def serve(port, what):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(64)
    while True:
        threading.Thread(target=what, args=listener.accept(), daemon=True).start()

def datagrams(ours):
    while True:
        ours.sendto(*ours.recvfrom(70_000))

udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7000))
threading.Thread(target=datagrams, args=(udp,), daemon=True).start()
threading.Thread(target=serve, args=(7000, lambda stream, _: echo(stream)), daemon=True).start()
threading.Thread(target=serve, args=(6999, orders), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
