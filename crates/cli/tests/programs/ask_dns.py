# Asks a DNS server for an address of a name, ten times over TCP and ten times over UDP.
#   ask_dns.py ADDRESS PORT NAME
import socket
import struct
import sys

address, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
labels = b"".join(struct.pack("B", len(label)) + label.encode() for label in name.split("."))


def question(number):
    return struct.pack("!6H", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)


def exactly(connection, count):
    came = b""
    while len(came) < count:
        more = connection.recv(count - len(came))
        assert more, "it closed"
        came += more
    return came


for number in range(10):
    with socket.create_connection((address, port), 20) as connection:
        asked = question(number)
        connection.sendall(struct.pack("!H", len(asked)) + asked)
        answer = exactly(connection, struct.unpack("!H", exactly(connection, 2))[0])
        print("tcp", socket.inet_ntoa(answer[-4:]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
    asks.settimeout(20)
    asks.connect((address, port))
    for number in range(10):
        asks.send(question(number))
        print("udp", socket.inet_ntoa(asks.recv(512)[-4:]))
