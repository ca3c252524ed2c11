/* Socket options and ioctls. */
#include "conformance.h"

static void set_and_get(int s, const char *name, int level, int option, int value)
{
    int got = -1;
    socklen_t len = sizeof got;
    char what[99];

    snprintf(what, sizeof what, "set %s to %d", name, value);
    errno = 0;
    int set = setsockopt(s, level, option, &value, sizeof value);
    outcome(what, set, errno);
    errno = 0;
    int asked = getsockopt(s, level, option, &got, &len);
    snprintf(what, sizeof what, "get %s, %d bytes, value %d", name, (int)len, got);
    outcome(what, asked, errno);
}

#define OPTION(s, level, option, value) set_and_get(s, #option, level, option, value)

static void of_any_socket(int type)
{
    struct timeval time = { 1, 500000 }, wrong = { 0, 2000000 };
    struct linger linger = { 1, 7 };
    socklen_t len;
    int s = socket(family, type, 0), value = 1;

    begin(type == SOCK_STREAM ? "options of a stream" : "options of a datagram socket");
    OPTION(s, SOL_SOCKET, SO_REUSEADDR, 1);
    OPTION(s, SOL_SOCKET, SO_REUSEADDR, 5);
    OPTION(s, SOL_SOCKET, SO_REUSEPORT, 1);
    OPTION(s, SOL_SOCKET, SO_KEEPALIVE, 1);
    OPTION(s, SOL_SOCKET, SO_BROADCAST, 1);
    OPTION(s, SOL_SOCKET, SO_OOBINLINE, 1);
    OPTION(s, SOL_SOCKET, SO_DONTROUTE, 0);
    OPTION(s, SOL_SOCKET, SO_RCVBUF, 8192);
    OPTION(s, SOL_SOCKET, SO_RCVBUF, 1);
    OPTION(s, SOL_SOCKET, SO_SNDBUF, 16384);
    OPTION(s, SOL_SOCKET, SO_SNDBUF, 1);
    OPTION(s, SOL_SOCKET, SO_RCVLOWAT, 3);
    OPTION(s, SOL_SOCKET, SO_PRIORITY, 3);
    OPTION(s, SOL_SOCKET, SO_TIMESTAMP, 1);
    OPTION(s, SOL_SOCKET, SO_TYPE, 1);
    OPTION(s, SOL_SOCKET, SO_ERROR, 1);
    OPTION(s, SOL_SOCKET, SO_ACCEPTCONN, 1);
    OPTION(s, SOL_SOCKET, 9999, 1);
    OPTION(s, 9999, 1, 1);
    DO(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &value, 1));
    DO(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, NULL, sizeof value));
    len = 1;
    DO(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, &value, &len));
    SAY(len);
    len = -1;
    DO(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, &value, &len));
    DO(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, &value, NULL));
    DO(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    DO(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof wrong));
    DO(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, 4));
    len = sizeof time;
    memset(&time, 0, sizeof time);
    DO(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, &len));
    SAY(time.tv_sec * 1000 + time.tv_usec / 1000);
    DO(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    DO(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger.l_onoff));
    len = sizeof linger;
    memset(&linger, 0, sizeof linger);
    DO(getsockopt(s, SOL_SOCKET, SO_LINGER, &linger, &len));
    SAY(linger.l_onoff * 100 + linger.l_linger);
    if (family == AF_INET) {
        OPTION(s, IPPROTO_IP, IP_TTL, 33);
        OPTION(s, IPPROTO_IP, IP_TTL, 0);
        OPTION(s, IPPROTO_IP, IP_TTL, 256);
        OPTION(s, IPPROTO_IP, IP_TOS, 0x10);
        OPTION(s, IPPROTO_IP, 9999, 1);
    } else {
        OPTION(s, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        OPTION(s, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33);
        OPTION(s, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 256);
        OPTION(s, IPPROTO_IPV6, 9999, 1);
    }
    close(s);
    DO(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value));
    DO(getsockopt(STDERR_FILENO, SOL_SOCKET, SO_REUSEADDR, &value, &len));
}

static void of_tcp(void)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    int s = tcp(), u = udp();

    begin("options of TCP");
    OPTION(s, IPPROTO_TCP, TCP_NODELAY, 1);
    OPTION(s, IPPROTO_TCP, TCP_NODELAY, 9);
    OPTION(s, IPPROTO_TCP, TCP_CORK, 1);
    OPTION(s, IPPROTO_TCP, TCP_KEEPIDLE, 70);
    OPTION(s, IPPROTO_TCP, TCP_KEEPIDLE, 0);
    OPTION(s, IPPROTO_TCP, TCP_KEEPINTVL, 7);
    OPTION(s, IPPROTO_TCP, TCP_KEEPCNT, 4);
    OPTION(s, IPPROTO_TCP, TCP_KEEPCNT, 200);
    OPTION(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 1234);
    OPTION(s, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);
    OPTION(s, IPPROTO_TCP, TCP_LINGER2, 9);
    OPTION(s, IPPROTO_TCP, 9999, 1);
    DO(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len));
    SAY(info.tcpi_state);
    OPTION(u, IPPROTO_TCP, TCP_NODELAY, 1);
    close(s);
    close(u);
    s = connected('e');
    len = sizeof info;
    DO(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len));
    SAY(info.tcpi_state);
    SAY(info.tcpi_snd_mss > 500);
    OPTION(s, IPPROTO_TCP, TCP_NODELAY, 1);
    close(s);
}

static void ioctls(void)
{
    int s = connected('e'), u = bound(SOCK_DGRAM), value = 99, on = 1, off = 0;
    struct address name = name_of(u);

    begin("ioctl");
    DO(ioctl(s, FIONREAD, &value));
    SAY(value);
    DO(write(s, "four", 4));
    await(s, POLLIN);
    DO(ioctl(s, FIONREAD, &value));
    SAY(value);
    drain(s, 4);
    DO(ioctl(s, FIONREAD, &value));
    SAY(value);
    DO(ioctl(s, FIONBIO, &on));
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    DO(read(s, &value, 1));
    DO(ioctl(s, FIONBIO, &off));
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    DO(ioctl(s, FIONBIO, NULL));
    DO(ioctl(s, FIOCLEX));
    SAY(fcntl(s, F_GETFD));
    DO(ioctl(s, FIONCLEX));
    SAY(fcntl(s, F_GETFD));
    DO(ioctl(s, 0x12345678, &value));
    close(called('u', &name));
    await(u, POLLIN);
    DO(ioctl(u, FIONREAD, &value));
    SAY(value);
    close(u);
    DO(ioctl(u, FIONREAD, &value));
    close(s);
    s = tcp();
    DO(ioctl(s, FIONREAD, &value));
    close(s);
}

/* Sizes that the kernel limits, set before a socket is used and after. */
static void buffers(void)
{
    static const int sizes[] = { 0, 1, 1024, -1, 1 << 30 }, lengths[] = { 1, 500, 1400 };
    static char data[20000];

    begin("buffer sizes");
    for (int i = 0; i < 10; i++) {
        int u = udp(), s = tcp(), size = sizes[i / 2], used = i % 2;

        connect(u, SA(peer), peer.len);
        if (used) {
            DO(send(u, "x", 1, 0));
            DO(recv(u, data, sizeof data, 0));
            DO(connect(s, SA(peer), peer.len));
        }
        for (int j = 0; j < 2; j++) {
            OPTION(j ? s : u, SOL_SOCKET, SO_SNDBUF, size);
            OPTION(j ? s : u, SOL_SOCKET, SO_RCVBUF, size);
        }
        if (!used)
            DO(connect(s, SA(peer), peer.len));
        for (int j = 0; j < 3; j++) {
            DO(send(u, data, lengths[j], 0));
            await(u, POLLIN);
            DO(recv(u, data, sizeof data, MSG_DONTWAIT));
        }
        DO(write(s, "e", 1));
        DO(write(s, data, sizeof data));
        SAY(drain(s, sizeof data));
        close(u);
        close(s);
    }
}

void cases_options(void)
{
    CASE(of_any_socket(SOCK_STREAM));
    CASE(of_any_socket(SOCK_DGRAM));
    CASE(of_tcp());
    CASE(buffers());
    CASE(ioctls());
}
