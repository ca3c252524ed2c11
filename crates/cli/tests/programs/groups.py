"""Sockets in multicast groups at one port, controlled by standard input; prints what each receives, and its sender.

Arguments: the interface's address and number, and a port.
"""

import select
import socket
import struct
import sys

address, index, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def v4(text):
    return socket.inet_aton(text)


def storage(text):
    return struct.pack("=HH4s120x", socket.AF_INET, 0, v4(text))


def udp(bound, family=socket.AF_INET):
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_IP, 49, 0)  # IP_MULTICAST_ALL
    made.bind((bound, port))
    return made


# Each joins its group by another option.
by_address = udp("")
by_address.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, v4("239.7.0.1") + v4(address))
at_the_group = udp("239.7.0.2")
at_the_group.setsockopt(
    socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, v4("239.7.0.2") + v4("0.0.0.0") + struct.pack("=i", index)
)
one_source = udp("")
one_source.setsockopt(socket.IPPROTO_IP, 39, v4("239.7.0.3") + v4(address) + v4(sys.argv[4]))
by_request = udp("")
by_request.setsockopt(socket.IPPROTO_IP, 42, struct.pack("=II", index, 0) + storage("239.7.0.1"))
stranger = udp("")
stranger.setsockopt(socket.IPPROTO_IP, 46, struct.pack("=II", index, 0) + storage("239.7.0.3") + storage("192.0.2.9"))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
six.bind(("::", port))
six.setsockopt(
    socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, "ff12::7") + struct.pack("=I", index)
)

names = {
    by_address: "by_address",
    at_the_group: "at_the_group",
    one_source: "one_source",
    by_request: "by_request",
    stranger: "stranger",
    six: "six",
}
poll = select.epoll()
for member in names:
    member.setblocking(False)
    poll.register(member, select.EPOLLIN)
poll.register(sys.stdin, select.EPOLLIN)
by_number = {member.fileno(): member for member in names}
print("ready", flush=True)
while True:
    for number, _ in poll.poll():
        if number == sys.stdin.fileno():
            word = sys.stdin.readline().strip()
            if not word:
                sys.exit()
            if word == "leave":
                by_request.setsockopt(socket.IPPROTO_IP, 45, struct.pack("=II", index, 0) + storage("239.7.0.1"))
            print("done", word, flush=True)
        else:
            data, _ = by_number[number].recvfrom(100)
            print(names[by_number[number]], data.decode(), flush=True)
