/* Creating sockets, binding them, and their names. */
#include "conformance.h"

static void making(void)
{
    int s, value;
    socklen_t len = sizeof value;

    begin("socket");
    FD(socket(-1, SOCK_STREAM, 0));
    FD(socket(family, 77, 0));
    FD(socket(family, SOCK_STREAM, IPPROTO_UDP));
    FD(socket(family, SOCK_DGRAM, IPPROTO_TCP));
    FD(socket(family, SOCK_STREAM, 9999));
    s = FD(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    SAY(fcntl(s, F_GETFL) & O_ACCMODE);
    SAY(fcntl(s, F_GETFD));
    DO(getsockopt(s, SOL_SOCKET, SO_TYPE, &value, &len));
    SAY(value == SOCK_STREAM);
    DO(getsockopt(s, SOL_SOCKET, SO_DOMAIN, &value, &len));
    SAY(value == family);
    DO(getsockopt(s, SOL_SOCKET, SO_PROTOCOL, &value, &len));
    SAY(value);
    close(s);
    s = FD(socket(family, SOCK_DGRAM, 0));
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    SAY(fcntl(s, F_GETFD));
    DO(getsockopt(s, SOL_SOCKET, SO_PROTOCOL, &value, &len));
    SAY(value);
    close(s);
}

static void binding(int type)
{
    struct address name, other = own;
    struct sockaddr_storage wrong = { .ss_family = AF_UNIX };
    int s = socket(family, type, 0), second = socket(family, type, 0);

    begin(type == SOCK_STREAM ? "bind a stream" : "bind a datagram socket");
    name = name_of(s);
    SAY(port_of(&name));
    SAY(name.len);
    DO(bind(s, SA(own), 3));
    DO(bind(s, NULL, own.len));
    DO(bind(s, (struct sockaddr *)&wrong, own.len));
    /* An address of the other host. */
    other = with_port(peer, 0);
    DO(bind(s, SA(other), other.len));
    DO(bind(s, SA(own), own.len));
    name = name_of(s);
    SAY(port_of(&name) > 0);
    DO(bind(s, SA(own), own.len));
    DO(bind(second, SA(name), name.len));
    DO(close(s));
    DO(bind(second, SA(name), name.len));
    DO(close(second));
    DO(bind(second, SA(name), name.len));
    DO(bind(STDERR_FILENO, SA(name), name.len));
}

static void sharing_ports(void)
{
    struct address name, at;
    int on = 1, one, two;

    begin("ports shared by SO_REUSEADDR and SO_REUSEPORT");
    one = listening(&at);
    two = tcp();
    DO(setsockopt(two, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    DO(bind(two, SA(at), at.len));
    close(one);
    close(two);
    one = udp();
    two = udp();
    DO(setsockopt(one, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    DO(bind(one, SA(own), own.len));
    name = name_of(one);
    DO(bind(two, SA(name), name.len));
    DO(setsockopt(two, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
    DO(bind(two, SA(name), name.len));
    close(one);
    close(two);
    /* A TCP and a UDP socket never conflict. */
    one = bound(SOCK_STREAM);
    two = udp();
    name = name_of(one);
    DO(bind(two, SA(name), name.len));
    close(one);
    close(two);
}

static void asking(void)
{
    struct address name = { .len = sizeof name.at }, back;
    socklen_t len;
    int s = connected('e');

    begin("getsockname and getpeername");
    DO(getpeername(s, SA(name), &name.len));
    SAY(name.len);
    say_same("the peer's name", &name, &peer);
    back = name_of(s);
    name = with_port(back, 0);
    say_same("our name", &name, &own);
    SAY(port_of(&back) > 0);
    len = 2;
    memset(&name, 0x55, sizeof name);
    DO(getpeername(s, SA(name), &len));
    SAY(len);
    SAY(name.at.ss_family == family);
    SAY(((unsigned char *)&name.at)[2]);
    len = -1;
    DO(getpeername(s, SA(name), &len));
    len = sizeof name.at;
    DO(getpeername(s, NULL, &len));
    DO(getsockname(s, SA(name), NULL));
    close(s);
    DO(getsockname(s, SA(name), &len));
    DO(getsockname(STDERR_FILENO, SA(name), &len));
    s = tcp();
    DO(getpeername(s, SA(name), &len));
    close(s);
    s = bound(SOCK_DGRAM);
    DO(getpeername(s, SA(name), &len));
    close(s);
}

void cases_names(void)
{
    CASE(making());
    CASE(binding(SOCK_STREAM));
    CASE(binding(SOCK_DGRAM));
    CASE(sharing_ports());
    CASE(asking());
}
