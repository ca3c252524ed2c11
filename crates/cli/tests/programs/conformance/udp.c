/* Datagrams. */
#include "conformance.h"

#include <linux/sockios.h>
#include <pthread.h>

static void connected_or_not(void)
{
    struct address from = { .len = sizeof from.at }, name;
    struct sockaddr_storage nothing = { .ss_family = AF_UNSPEC };
    char data[64];
    int s = udp();

    begin("datagrams to an address");
    /* poll binds no port. */
    struct pollfd fd = { .fd = s, .events = POLLIN };
    DO(poll(&fd, 1, 0));
    name = name_of(s);
    SAY(port_of(&name));
    DO(send(s, "x", 1, 0));
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(sendto(s, "hello", 5, 0, SA(peer), 3));
    DO(sendto(s, "hello", 5, 0, SA(peer), peer.len));
    name = name_of(s);
    SAY(port_of(&name) > 0);
    DO(recvfrom(s, data, sizeof data, 0, SA(from), &from.len));
    SAY(from.len);
    say_same("it came from the peer", &from, &peer);
    DO(sendto(s, "", 0, 0, SA(peer), peer.len));
    DO(recv(s, data, sizeof data, 0));
    DO(sendto(s, "hello", 5, 0, NULL, 0));
    from = with_port(peer, 0);
    DO(sendto(s, "hello", 5, 0, SA(from), from.len));
    DO(shutdown(s, SHUT_RD));
    close(s);

    begin("connected datagram socket");
    s = udp();
    DO(connect(s, SA(peer), peer.len));
    name = name_of(s);
    name = with_port(name, 0);
    say_same("its name", &name, &own);
    name.len = sizeof name.at;
    DO(getpeername(s, SA(name), &name.len));
    say_same("its peer", &name, &peer);
    DO(send(s, "hello", 5, 0));
    from.len = sizeof from.at;
    DO(recvfrom(s, data, sizeof data, 0, SA(from), &from.len));
    DO(sendto(s, "again", 5, 0, SA(peer), peer.len));
    DO(read(s, data, sizeof data));
    DO(write(s, "more", 4));
    DO(recv(s, data, sizeof data, MSG_OOB));
    DO(ioctl(s, SIOCOUTQNSD, &(int){ 0 }));
    DO(connect(s, (struct sockaddr *)&nothing, sizeof nothing));
    DO(getpeername(s, SA(name), &name.len));
    DO(send(s, "hello", 5, 0));
    DO(connect(s, SA(peer), peer.len));
    DO(shutdown(s, SHUT_RD));
    DO(recv(s, data, sizeof data, 0));
    DO(shutdown(s, SHUT_WR));
    DO(send(s, "x", 1, 0));
    SAY(sigpipes);
    DO(accept(s, NULL, NULL));
    close(s);
}

static void in_parts_of_one(void)
{
    char data[64];
    int s = udp(), on = 1, off = 0;

    begin("a datagram in parts");
    DO(connect(s, SA(peer), peer.len));
    DO(send(s, "whole", 5, 0));
    DO(recv(s, data, sizeof data, 0));
    DO(send(s, "ab", 2, MSG_MORE));
    DO(send(s, "cde", 3, MSG_MORE));
    DO(send(s, "f", 1, 0));
    DO(recv(s, data, sizeof data, 0));
    SAY(data[5] - 'a');
    close(s);
    s = udp();
    DO(connect(s, SA(peer), peer.len));
    DO(send(s, "whole", 5, 0));
    DO(recv(s, data, sizeof data, 0));
    DO(setsockopt(s, IPPROTO_UDP, UDP_CORK, &on, sizeof on));
    DO(send(s, "ab", 2, 0));
    DO(send(s, "cde", 3, 0));
    DO(setsockopt(s, IPPROTO_UDP, UDP_CORK, &off, sizeof off));
    DO(recv(s, data, sizeof data, 0));
    close(s);
}

/* What poll, select and epoll report when port unreachable has arrived. */
static void say_refused(int s)
{
    struct pollfd p = { s, POLLIN | POLLOUT | POLLRDHUP | POLLRDNORM | POLLPRI, 0 };
    struct epoll_event event = { EPOLLIN | EPOLLET, { 0 } };
    struct timeval no = { 0 };
    int e = epoll_create1(0);
    fd_set in, out;

    await(s, POLLERR);
    poll(&p, 1, 0);
    say_events("refused", p.revents);
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(s, &in);
    FD_SET(s, &out);
    DO(select(s + 1, &in, &out, NULL, &no));
    epoll_ctl(e, EPOLL_CTL_ADD, s, &event);
    DO(epoll_wait(e, &event, 1, 0));
    say_events("in a set", event.events);
    close(e);
}

static void no_listener(void)
{
    struct address nowhere = with_port(peer, 9);
    char data[8];
    int s = udp(), error;
    socklen_t len = sizeof error;

    begin("a port without a socket");
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(send(s, "x", 1, 0));
    say_refused(s);
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(send(s, "x", 1, 0));
    await(s, POLLERR);
    DO(send(s, "x", 1, 0));
    DO(send(s, "x", 1, 0));
    await(s, POLLERR);
    DO(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len));
    SAY(error == ECONNREFUSED);
    close(s);
}

/* The same on a socket with an error queue (IP_RECVERR). */
static void told_of_errors(void)
{
    struct address nowhere = with_port(peer, 9);
    char data[8];
    struct msghdr m = { 0 };
    int s = udp(), on = 1;

    begin("a port without a socket, with IP_RECVERR");
    if (family == AF_INET)
        DO(setsockopt(s, IPPROTO_IP, IP_RECVERR, &on, sizeof on));
    else
        DO(setsockopt(s, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof on));
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(send(s, "x", 1, 0));
    say_refused(s);
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    say_refused(s);
    DO(recvmsg(s, &m, MSG_ERRQUEUE) >= 0);
    DO(recvmsg(s, &m, MSG_ERRQUEUE));
    close(s);
}

static void *sends_once_it_is_taken(void *socket)
{
    int s = (int)(long)socket, left = 1;

    while (left > 0 && ioctl(s, FIONREAD, &left) == 0)
        usleep(1000);
    while (send(s, "x", 1, 0) < 0 && errno == EIO)
        ;
    return NULL;
}

/* An error that ends recvmmsg after the first message is returned by the next call. The peer's kernel sends only a
 * few port unreachables at once, and then one per second (`icmp_ratelimit`); so the test waits a second. */
static void refused_later(void)
{
    struct address nowhere = with_port(peer, 9);
    char data[2][8];
    struct iovec parts[2] = { { data[0], 8 }, { data[1], 8 } };
    struct mmsghdr in[2] = { 0 };
    pthread_t thread;
    int s = udp();

    begin("recvmmsg and an error");
    usleep(1100000);
    for (int i = 0; i < 2; i++)
        in[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
    connect(s, SA(peer), peer.len);
    send(s, "x", 1, 0);
    await(s, POLLIN);
    connect(s, SA(nowhere), nowhere.len);
    pthread_create(&thread, NULL, sends_once_it_is_taken, (void *)(long)s);
    DO(recvmmsg(s, in, 2, 0, NULL));
    DO(sendmmsg(s, in, 2, 0));
    DO(recvmmsg(s, in, 2, MSG_DONTWAIT, NULL));
    pthread_join(thread, NULL);
    close(s);
}

static void sizes(void)
{
    static char big[70000], back[70000];
    struct iovec parts[2] = { { back, 3 }, { back + 10, 2 } };
    struct msghdr m = { .msg_iov = parts, .msg_iovlen = 2 };
    int s = udp(), most = family == AF_INET ? 65507 : 65527;

    connect(s, SA(peer), peer.len);
    begin("datagram sizes");
    DO(send(s, big, most + 1, 0));
    DO(send(s, big, 1400, 0));
    DO(recv(s, back, sizeof back, 0));
    DO(send(s, "0123456789", 10, 0));
    DO(recv(s, back, 4, 0));
    DO(recv(s, back, 4, MSG_DONTWAIT));
    DO(send(s, "0123456789", 10, 0));
    DO(recv(s, back, 4, MSG_TRUNC));
    DO(send(s, "0123456789", 10, 0));
    DO(recvmsg(s, &m, MSG_CMSG_CLOEXEC));
    SAY(m.msg_flags == (MSG_TRUNC | MSG_CMSG_CLOEXEC));
    SAY(back[10] - '0');
    DO(send(s, "0123456789", 10, 0));
    DO(recv(s, back, 0, 0));
    DO(recv(s, back, sizeof back, MSG_DONTWAIT));
    DO(send(s, NULL, 5, 0));
    DO(send(s, "abc", 3, 0));
    await(s, POLLIN);
    DO(recv(s, NULL, 5, 0));
    close(s);
}

static void several_at_once(void)
{
    char data[3][8];
    struct iovec parts[3] = { { data[0], 8 }, { data[1], 8 }, { data[2], 8 } };
    struct iovec out[2] = { { "one", 3 }, { "three", 5 } };
    struct mmsghdr in[3] = { 0 }, sent[2] = { 0 };
    struct timespec soon = { 0, 50000000 };
    int s = udp();

    connect(s, SA(peer), peer.len);
    for (int i = 0; i < 3; i++)
        in[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
    for (int i = 0; i < 2; i++)
        sent[i].msg_hdr = (struct msghdr){ .msg_iov = &out[i], .msg_iovlen = 1 };
    begin("sendmmsg and recvmmsg");
    DO(recvmmsg(s, in, 3, MSG_DONTWAIT, NULL));
    DO(sendmmsg(s, sent, 2, 0));
    SAY(sent[1].msg_len);
    DO(recvmmsg(s, in, 2, 0, NULL));
    SAY(in[0].msg_len + in[1].msg_len);
    /* Each message is sent once, whatever the flags: the next one received is the last. */
    DO(sendmmsg(s, sent, 2, MSG_DONTWAIT));
    DO(sendmmsg(s, sent, 2, MSG_NOSIGNAL));
    DO(recvmmsg(s, in, 3, 0, NULL));
    SAY(in[0].msg_len + in[1].msg_len);
    DO(recvmmsg(s, in, 1, 0, NULL));
    DO(send(s, "seventh", 7, 0));
    DO(recv(s, data[0], 8, 0));
    DO(sendmmsg(s, sent, 0, 0));
    DO(sendmmsg(s, NULL, 0, 0));
    DO(sendmmsg(s, NULL, 1, 0));
    DO(recvmmsg(s, NULL, 0, 0, NULL));
    DO(recvmmsg(s, NULL, 1, 0, NULL));
    DO(sendmmsg(s, sent, 1, 0));
    DO(recvmmsg(s, in, 3, MSG_WAITFORONE, NULL));
    SAY(in[0].msg_len);
    /* As many as given: there is no limit like IOV_MAX. */
    static struct mmsghdr many[1030];
    DO(shutdown(s, SHUT_RD));
    DO(recvmmsg(s, many, 1030, 0, NULL));
    (void)soon;
    close(s);
}

/* The control messages of recvmsg, in the kernel's order. */
static void say_told(int s, size_t room)
{
    char data[64];
    union {
        struct cmsghdr header;
        char bytes[256];
    } control;
    struct iovec part = { data, sizeof data };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = room };
    struct cmsghdr *told;

    DO(send(s, "x", 1, 0));
    DO(recvmsg(s, &m, 0));
    SAY(m.msg_flags == MSG_CTRUNC);
    SAY(m.msg_controllen);
    for (told = CMSG_FIRSTHDR(&m); told; told = CMSG_NXTHDR(&m, told)) {
        int value = 0, size = told->cmsg_len - CMSG_LEN(0);

        say_value("level", told->cmsg_level);
        say_value("kind", told->cmsg_type);
        say_value("bytes", size);
        memcpy(&value, CMSG_DATA(told), size < 4 ? size : 4);
        /* The interface index comes first in IP_PKTINFO, and differs from run to run. */
        if (size <= 4)
            say_value("value", value);
        if (size == own.len && told->cmsg_type == (family == AF_INET ? 20 : 74)) {
            struct address to = { .len = own.len }, name = name_of(s);
            memcpy(&to.at, CMSG_DATA(told), size);
            say_same("sent to", &to, &name);
        }
    }
}

static void told_beside(void)
{
    static const struct { int four, six; } options[] = {
        { IP_PKTINFO, IPV6_RECVPKTINFO }, { IP_RECVTTL, IPV6_RECVHOPLIMIT }, { IP_RECVTOS, IPV6_RECVTCLASS },
        { 20 /* IP_RECVORIGDSTADDR */, 74 /* IPV6_RECVORIGDSTADDR */ },
    };
    int s = udp(), level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, on = 1, off = 0;
    socklen_t len = sizeof on;

    connect(s, SA(peer), peer.len);
    begin("control messages of a datagram");
    say_told(s, 256);
    for (int i = 0; i < 4; i++) {
        int name = family == AF_INET ? options[i].four : options[i].six;

        DO(getsockopt(s, level, name, &off, &len));
        SAY(off);
        DO(setsockopt(s, level, name, &on, sizeof on));
        DO(getsockopt(s, level, name, &off, &len));
        SAY(off);
        say_told(s, 256);
        say_told(s, 20);
        say_told(s, 0);
    }
    DO(getsockopt(s, IPPROTO_TCP, 36 /* TCP_INQ */, &off, &len));
    DO(getsockopt(s, IPPROTO_IPV6, IPV6_RECVTCLASS, &off, &len));
    off = 0;
    DO(setsockopt(s, level, family == AF_INET ? IP_RECVTTL : IPV6_RECVHOPLIMIT, &off, sizeof off));
    say_told(s, 256);
    close(s);
}

/* No datagram comes from there, and the kernel does not name such a peer. */
static void port_zero(void)
{
    struct address nowhere = with_port(peer, 0), name;
    socklen_t len = sizeof name.at;
    int s = udp();

    begin("connected to port 0");
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(getpeername(s, (void *)&name.at, &len));
    DO(send(s, "x", 1, 0));
    close(s);
}

void cases_udp(void)
{
    CASE(connected_or_not());
    CASE(in_parts_of_one());
    CASE(no_listener());
    CASE(told_of_errors());
    CASE(refused_later());
    CASE(sizes());
    CASE(several_at_once());
    CASE(told_beside());
    CASE(port_zero());
}
