/* Connections: made, refused, accepted, closed. */
#include "conformance.h"

#include <pthread.h>

/* A socket of one family that connects to an address of the other. */
static void other_family(void)
{
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(7) };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(7) };
    union {
        struct sockaddr_in address;
        char room[sizeof(struct sockaddr_in6)];
    } long_four = { .address = four };
    int s = tcp();

    if (family == AF_INET) {
        DO(connect(s, (void *)&six, sizeof six));
    } else {
        DO(connect(s, (void *)&four, sizeof four));
        DO(connect(s, (void *)&long_four, sizeof long_four));
    }
    close(s);
}

static void connecting(void)
{
    struct address nowhere = with_port(peer, 9), at, name;
    struct sockaddr_storage nothing = { .ss_family = AF_UNSPEC }, wrong = { .ss_family = AF_UNIX };
    struct sockaddr_storage other = { 0 };
    int s, l, error;
    socklen_t len = sizeof error;

    begin("connect");
    s = tcp();
    DO(connect(s, SA(peer), 3));
    DO(connect(s, NULL, peer.len));
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(getpeername(s, SA(at), (at.len = sizeof at.at, &at.len)));
    /* The same socket may try again. */
    DO(connect(s, SA(peer), peer.len));
    DO(connect(s, SA(peer), peer.len));
    /* Which is checked first: whether the socket is connected, or the address. */
    for (int i = 0; i < 4; i++)
        DO(connect(s, SA(peer), i));
    DO(connect(s, SA(peer), 1000));
    DO(connect(s, (struct sockaddr *)&wrong, sizeof wrong));
    DO(bind(s, SA(own), own.len));
    DO(bind(s, SA(own), 3));
    DO(bind(s, SA(nowhere), nowhere.len));
    other.ss_family = family == AF_INET ? AF_INET6 : AF_INET;
    DO(bind(s, (struct sockaddr *)&other, sizeof(struct sockaddr_in)));
    DO(bind(s, (struct sockaddr *)&other, sizeof(struct sockaddr_in6)));
    DO(bind(s, (struct sockaddr *)&wrong, sizeof wrong));
    DO(sendmmsg(s, NULL, 1, 0));
    DO(recvmmsg(s, NULL, 1, 0, NULL));
    DO(listen(s, 1));
    name = name_of(s);
    SAY(port_of(&name) > 0);
    DO(connect(s, (struct sockaddr *)&nothing, sizeof nothing));
    DO(getpeername(s, SA(at), (at.len = sizeof at.at, &at.len)));
    close(s);
    DO(connect(s, SA(peer), peer.len));
    DO(connect(STDERR_FILENO, SA(peer), peer.len));

    begin("connect a listener");
    l = listening(&at);
    DO(connect(l, SA(peer), peer.len));
    close(l);

    begin("a non-blocking connect");
    s = tcp();
    fcntl(s, F_SETFL, O_NONBLOCK);
    DO(connect(s, SA(peer), peer.len));
    await(s, POLLOUT);
    DO(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len));
    SAY(error);
    DO(connect(s, SA(peer), peer.len));
    DO(connect(s, SA(peer), peer.len));
    close(s);
    s = tcp();
    fcntl(s, F_SETFL, O_NONBLOCK);
    DO(connect(s, SA(nowhere), nowhere.len));
    await(s, POLLIN);
    DO(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len));
    SAY(error == ECONNREFUSED);
    DO(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len));
    SAY(error);
    close(s);

    begin("connect from a bound port");
    s = bound(SOCK_STREAM);
    name = name_of(s);
    DO(connect(s, SA(peer), peer.len));
    at = name_of(s);
    say_same("the port stays", &at, &name);
    close(s);
}

/* The state of a socket whose connect has failed. */
static void binding_again(void)
{
    struct address nowhere = with_port(peer, 9), name;
    int s = bound(SOCK_STREAM);

    begin("bind after a failed connect");
    DO(connect(s, SA(nowhere), nowhere.len));
    /* A port that bind chose is released. */
    DO(bind(s, SA(own), own.len));
    DO(bind(s, SA(own), own.len));
    /* More often than the kernel makes connects on the stack plane. */
    for (int i = 0; i < 25; i++)
        DO(connect(s, SA(nowhere), nowhere.len));
    DO(bind(s, SA(own), own.len));
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(connect(s, SA(peer), peer.len));
    name = name_of(s);
    close(s);
    s = tcp();
    name = with_port(name, port_of(&name) ^ 1);
    DO(bind(s, SA(name), name.len));
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(bind(s, SA(name), name.len));
    DO(connect(s, SA(peer), peer.len));
    close(s);
}

/* A socket that connects to an address that no host has. */
static int connecting_to(const struct address *no_host)
{
    int s = tcp();

    fcntl(s, F_SETFL, O_NONBLOCK);
    DO(connect(s, SA(*no_host), no_host->len));
    return s;
}

static void say_all_events(int s)
{
    struct pollfd p = { s, POLLIN | POLLOUT | POLLRDHUP, 0 };

    poll(&p, 1, 0);
    say_events("now", p.revents);
}

static void shutting_while_connecting(void)
{
    struct address no_host = peer, at;
    struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
    unsigned char *last = family == AF_INET ? (void *)&((struct sockaddr_in *)&no_host.at)->sin_addr
                                            : (void *)&((struct sockaddr_in6 *)&no_host.at)->sin6_addr;
    int s, e, error;
    socklen_t len = sizeof error;
    char data[4];

    /* Each address at loopback belongs to this host. */
    at = with_port(own, port_of(&peer));
    if (!memcmp(&at.at, &peer.at, peer.len))
        return;
    last[family == AF_INET ? 3 : 15] += 77;
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++) {
        begin("shutdown while connecting");
        s = connecting_to(&no_host);
        e = epoll_create1(0);
        epoll_ctl(e, EPOLL_CTL_ADD, s, &event);
        say_all_events(s);
        DO(epoll_wait(e, &event, 1, 0));
        DO(shutdown(s, how));
        DO(epoll_wait(e, &event, 1, 0));
        say_events("epoll", event.events);
        say_all_events(s);
        DO(getpeername(s, SA(at), (at.len = sizeof at.at, &at.len)));
        DO(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len));
        SAY(error == ECONNRESET);
        say_all_events(s);
        DO(recv(s, data, sizeof data, 0));
        DO(send(s, data, 1, MSG_NOSIGNAL));
        DO(shutdown(s, how));
        say_all_events(s);
        DO(recv(s, data, sizeof data, 0));
        close(e);
        close(s);

        s = connecting_to(&no_host);
        DO(shutdown(s, how));
        DO(recv(s, data, sizeof data, 0));
        DO(recv(s, data, sizeof data, 0));
        DO(connect(s, SA(no_host), no_host.len));
        DO(connect(s, SA(no_host), no_host.len));
        say_all_events(s);
        DO(shutdown(s, how));
        DO(send(s, data, 1, MSG_NOSIGNAL));
        DO(send(s, data, 1, MSG_NOSIGNAL));
        DO(bind(s, SA(own), own.len));
        DO(connect(s, SA(peer), peer.len));
        await(s, POLLOUT);
        say_all_events(s);
        DO(send(s, "e", 1, 0));
        close(s);

        s = connecting_to(&no_host);
        DO(shutdown(s, how));
        DO(listen(s, 1));
        say_all_events(s);
        close(s);
    }
}

static void accepting(void)
{
    struct address at, from = { .len = sizeof from.at }, name;
    struct sockaddr_storage nothing = { .ss_family = AF_UNSPEC };
    char data[8];
    int l, s, c, u = bound(SOCK_DGRAM);

    begin("listen and accept");
    s = bound(SOCK_STREAM);
    DO(accept(s, NULL, NULL));
    DO(listen(u, 1));
    DO(accept(u, NULL, NULL));
    DO(listen(STDERR_FILENO, 1));
    close(u);
    DO(listen(u, 1));
    DO(listen(s, 1));
    DO(listen(s, 5));
    close(s);
    l = tcp();
    DO(listen(l, 1));
    name = name_of(l);
    SAY(port_of(&name) > 0);
    close(l);

    l = listening(&at);
    fcntl(l, F_SETFL, O_NONBLOCK);
    DO(accept(l, NULL, NULL));
    c = called('b', &at);
    await(l, POLLIN);
    s = FD(accept(l, SA(from), &from.len));
    SAY(from.len);
    SAY(port_of(&from) > 0);
    name = name_of(s);
    say_same("our name is the listener's", &name, &at);
    getpeername(s, SA(name), &name.len);
    say_same("the peer's name is the one accept told", &name, &from);
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    DO(recv(s, data, sizeof data, 0));
    DO(accept(s, NULL, NULL));
    DO(accept(l, NULL, NULL));
    close(s);
    close(c);

    c = called('b', &at);
    await(l, POLLIN);
    from.len = 2;
    s = FD(accept4(l, SA(from), &from.len, SOCK_NONBLOCK | SOCK_CLOEXEC));
    SAY(from.len);
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    SAY(fcntl(s, F_GETFD));
    close(s);
    close(c);
    DO(accept4(l, NULL, NULL, 0x40000000));
    other_family();
    c = called('b', &at);
    await(l, POLLIN);
    from.len = -1;
    DO(accept(l, SA(from), &from.len));
    close(c);
    DO(recv(l, data, sizeof data, 0));
    DO(send(l, data, sizeof data, 0));
    DO(shutdown(l, SHUT_WR));
    /* A connect to AF_UNSPEC ends listening. */
    DO(connect(l, (struct sockaddr *)&nothing, sizeof nothing));
    DO(accept(l, NULL, NULL));
    close(l);

    begin("a closed listener refuses");
    l = listening(&at);
    close(l);
    DO(accept(l, NULL, NULL));
    /* Its port is free again. */
    s = tcp();
    DO(bind(s, SA(at), at.len));
    close(s);
}

static void *accepts(void *listener)
{
    DO(accept((int)(long)listener, NULL, NULL));
    return NULL;
}

static void shutting_a_listener(void)
{
    struct address at;
    pthread_t thread;
    int l, c;

    begin("a listener that is shut down");
    l = listening(&at);
    c = called('b', &at);
    await(l, POLLIN);
    DO(shutdown(l, SHUT_WR));
    close(FD(accept(l, NULL, NULL)));
    close(c);
    /* A thread in accept returns; it may begin to wait before or after the shutdown. */
    pthread_create(&thread, NULL, accepts, (void *)(long)l);
    usleep(20000);
    if (shutdown(l, SHUT_RD))
        fail("shutdown");
    pthread_join(thread, NULL);
    DO(accept(l, NULL, NULL));
    DO(shutdown(l, SHUT_RD));
    /* It may listen again, on another port, as the first one was chosen by the kernel. */
    DO(listen(l, 1));
    at = name_of(l);
    c = called('b', &at);
    await(l, POLLIN);
    close(FD(accept(l, NULL, NULL)));
    close(c);
    close(l);
}

static void again(void)
{
    struct address nowhere = with_port(peer, 9);
    struct sockaddr_storage nothing = { .ss_family = AF_UNSPEC };
    struct epoll_event event = { EPOLLIN | EPOLLOUT, { 0 } };
    int s = tcp(), copy = dup(s), e = epoll_create1(0);

    begin("a socket with two descriptors in an epoll set connects again");
    epoll_ctl(e, EPOLL_CTL_ADD, s, &event);
    DO(connect(s, SA(nowhere), nowhere.len));
    DO(epoll_wait(e, &event, 1, 0));
    say_events("without a connection", event.events);
    DO(send(copy, "x", 1, MSG_NOSIGNAL));
    for (int i = 0; i < 2; i++) {
        DO(connect(copy, SA(peer), peer.len));
        DO(epoll_wait(e, &event, 1, 0));
        say_events("with one", event.events);
        DO(write(s, "e", 1));
        DO(write(copy, "abc", 3));
        SAY(drain(s, 3));
        DO(connect(s, (struct sockaddr *)&nothing, sizeof nothing));
    }
    close(s);
    DO(connect(copy, SA(peer), peer.len));
    DO(write(copy, "eabc", 4));
    SAY(drain(copy, 3));
    DO(epoll_wait(e, &event, 1, 0));
    close(copy);
    DO(epoll_wait(e, &event, 1, 0));
    close(e);
}

/* Receives a byte; how many bytes recvmsg says are left. */
static void say_left(int s, size_t room)
{
    char data;
    union {
        struct cmsghdr header;
        char bytes[256];
    } control;
    struct iovec part = { &data, 1 };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = room };
    struct cmsghdr *told;

    DO(recvmsg(s, &m, 0));
    SAY(m.msg_flags);
    SAY(m.msg_controllen);
    told = CMSG_FIRSTHDR(&m);
    if (told && told->cmsg_len == CMSG_LEN(sizeof(int)))
        SAY(*(int *)CMSG_DATA(told));
}

/* Waits for the peer's FIN. poll does not report it on a socket that has shut down receiving; only TCP_INFO does. */
static void await_end(int s)
{
    struct tcp_info info = { 0 };
    socklen_t len = sizeof info;

    while (getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len) == 0
           && (info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_FIN_WAIT1 || info.tcpi_state == TCP_FIN_WAIT2))
        usleep(1000);
}

static void ending(void)
{
    char data[64];
    socklen_t len = sizeof(int);
    int s, on = 1, left;

    begin("the peer closes");
    s = connected('c');
    DO(recv(s, data, sizeof data, 0));
    DO(recv(s, data, sizeof data, 0));
    DO(read(s, data, 0));
    close(s);

    begin("the peer resets");
    s = connected('r');
    await(s, POLLERR);
    DO(recv(s, data, sizeof data, 0));
    DO(recv(s, data, sizeof data, 0));
    DO(send(s, data, 1, 0));
    SAY(sigpipes);
    DO(send(s, data, 1, MSG_NOSIGNAL));
    SAY(sigpipes);
    DO(shutdown(s, SHUT_WR));
    DO(getpeername(s, NULL, NULL));
    close(s);

    begin("the peer resets while a call waits for more data");
    s = connected('w');
    DO(recv(s, data, sizeof data, MSG_WAITALL));
    DO(recv(s, data, sizeof data, 0));
    DO(recv(s, data, sizeof data, 0));
    close(s);

    begin("the peer shuts down sending");
    s = connected('h');
    DO(recv(s, data, sizeof data, MSG_WAITALL));
    DO(recv(s, data, sizeof data, 0));
    DO(send(s, data, 5, 0));
    close(s);

    begin("we shut down sending");
    s = connected('e');
    DO(send(s, "12345", 5, 0));
    DO(shutdown(s, SHUT_WR));
    DO(send(s, "6", 1, 0));
    SAY(sigpipes);
    DO(write(s, "6", 1));
    SAY(sigpipes);
    SAY(drain(s, 99));
    DO(shutdown(s, SHUT_WR));
    close(s);

    begin("we shut down receiving");
    s = connected('e');
    DO(shutdown(s, SHUT_RD));
    DO(recv(s, data, sizeof data, 0));
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(send(s, "1", 1, 0));
    DO(shutdown(s, 7));
    DO(shutdown(s, SHUT_RDWR));
    close(s);

    begin("control messages of a stream");
    s = connected('e');
    DO(setsockopt(s, IPPROTO_TCP, 36 /* TCP_INQ */, &on, sizeof on));
    DO(getsockopt(s, IPPROTO_TCP, 36, &left, &len));
    SAY(left);
    DO(send(s, "12345", 5, 0));
    while (ioctl(s, FIONREAD, &left) || left < 5)
        usleep(1000);
    say_left(s, 256);
    say_left(s, 18);
    say_left(s, 0);
    DO(shutdown(s, SHUT_WR));
    await(s, POLLRDHUP);
    say_left(s, 256);
    say_left(s, 256);
    say_left(s, 256);
    on = 2;
    DO(setsockopt(s, IPPROTO_TCP, 36, &on, sizeof on));
    on = 0;
    DO(setsockopt(s, IPPROTO_TCP, 36, &on, sizeof on));
    say_left(s, 256);
    close(s);

    begin("control messages of a stream after SHUT_RD");
    on = 1;
    s = connected('e');
    setsockopt(s, IPPROTO_TCP, 36, &on, sizeof on);
    DO(shutdown(s, SHUT_RD));
    say_left(s, 256);
    DO(send(s, "12345", 5, 0));
    while (ioctl(s, FIONREAD, &left) || left < 5)
        usleep(1000);
    say_left(s, 256);
    DO(ioctl(s, FIONREAD, &left));
    SAY(left);
    SAY(drain(s, 4));
    DO(ioctl(s, FIONREAD, &left));
    SAY(left);
    say_left(s, 256);
    DO(shutdown(s, SHUT_WR));
    await_end(s);
    say_left(s, 256);
    DO(ioctl(s, FIONREAD, &left));
    SAY(left);
    close(s);
    s = connected('h');
    setsockopt(s, IPPROTO_TCP, 36, &on, sizeof on);
    DO(shutdown(s, SHUT_RD));
    await_end(s);
    say_left(s, 256);
    SAY(drain(s, 2));
    say_left(s, 256);
    DO(ioctl(s, FIONREAD, &left));
    SAY(left);
    close(s);

    begin("shutdown of an unconnected socket");
    s = tcp();
    DO(shutdown(s, SHUT_RD));
    DO(shutdown(s, SHUT_WR));
    close(s);
    DO(shutdown(s, SHUT_RD));
    DO(shutdown(STDERR_FILENO, SHUT_RD));

    begin("calls on an unconnected socket");
    s = tcp();
    DO(recv(s, data, sizeof data, 0));
    DO(send(s, data, 1, 0));
    SAY(sigpipes);
    DO(sendto(s, data, 1, MSG_NOSIGNAL, SA(peer), peer.len));
    close(s);

    begin("much data");
    s = connected('s');
    SAY(drain(s, 1L << 40));
    close(s);
    s = connected('e');
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    static char big[60000], back[60000];
    for (unsigned i = 0; i < sizeof big; i++)
        big[i] = i * 7;
    left = sizeof big;
    while (left > 0) {
        ssize_t n = write(s, big + sizeof big - left, left);

        if (n <= 0)
            break;
        left -= n;
    }
    SAY(left);
    DO(recv(s, back, sizeof back, MSG_WAITALL));
    SAY(memcmp(big, back, sizeof big));
    close(s);

    begin("a full send buffer");
    s = connected('d');
    fcntl(s, F_SETFL, O_NONBLOCK);
    /* The peer reads slowly, and a socket's buffer does not hold 1 GiB. */
    static char huge[1 << 20];
    for (left = 1024; left > 0 && write(s, huge, sizeof huge) > 0; left--)
        ;
    SAY(left > 0);
    SAY(errno == EAGAIN);
    await(s, POLLOUT);
    close(s);
}

void cases_tcp(void)
{
    CASE(connecting());
    CASE(binding_again());
    CASE(shutting_while_connecting());
    CASE(accepting());
    CASE(shutting_a_listener());
    CASE(again());
    CASE(ending());
}
