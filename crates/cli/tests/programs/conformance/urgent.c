/* Urgent data (MSG_OOB), buffer sizes and time stamps, as used by FTP servers, telnet and others. */
#include "conformance.h"

#include <linux/net_tstamp.h>
#include <linux/sockios.h>

static volatile int urgents;

static void on_urgent(int signal)
{
    (void)signal;
    urgents++;
}

static void say_state(int s)
{
    struct pollfd p = { s, POLLIN | POLLPRI | POLLRDBAND, 0 };
    int mark = -1, count = -1;
    fd_set except;
    struct timeval no_time = { 0, 0 };

    poll(&p, 1, 0);
    say_events("poll", p.revents);
    FD_ZERO(&except);
    FD_SET(s, &except);
    DO(select(s + 1, NULL, NULL, &except, &no_time));
    DO(ioctl(s, SIOCATMARK, &mark));
    SAY(mark);
    DO(sockatmark(s));
    DO(ioctl(s, FIONREAD, &count));
    SAY(count);
}

/* Waits until all bytes of the burst have arrived, including the urgent one, the last before "after". */
static void settle(void)
{
    usleep(50000);
}

/* On request the peer sends "xyZ" with Z urgent, and then "after". */
static void apart(int line)
{
    int s = connected('o'), on = 1, ep = epoll_create1(0);
    struct epoll_event watch = { .events = EPOLLPRI | EPOLLET }, found;
    struct msghdr message = { 0 };
    char data[64] = { 0 };
    struct iovec room = { data, sizeof data };

    begin(line ? "urgent data in line" : "urgent data out of band");
    DO(recv(s, data, 1, MSG_OOB));
    if (line)
        DO(setsockopt(s, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    signal(SIGURG, on_urgent);
    urgents = 0;
    DO(fcntl(s, F_SETOWN, getpid()));
    SAY(fcntl(s, F_GETOWN) == getpid());
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &watch);
    DO(epoll_wait(ep, &found, 1, 0));
    DO(write(s, "1", 1));
    await(s, POLLPRI);
    settle();
    SAY(urgents);
    DO(epoll_wait(ep, &found, 1, 1000));
    say_events("epoll", found.events);
    DO(epoll_wait(ep, &found, 1, 0));
    say_state(s);
    DO(recv(s, data, sizeof data, MSG_WAITALL | MSG_DONTWAIT));
    SAY(!memcmp(data, "xy", 2));
    say_state(s);
    DO(recv(s, data, sizeof data, MSG_PEEK));
    SAY(data[0]);
    DO(recv(s, data, 1, MSG_OOB | MSG_PEEK));
    DO(recv(s, data, 0, MSG_OOB | MSG_PEEK));
    message.msg_iov = &room;
    message.msg_iovlen = 1;
    DO(recvmsg(s, &message, MSG_OOB));
    SAY(data[0]);
    SAY(message.msg_flags);
    DO(recv(s, data, 1, MSG_OOB));
    say_state(s);
    DO(recv(s, data, sizeof data, 0));
    SAY(data[0]);
    say_state(s);
    DO(recv(s, data, 1, MSG_OOB));
    /* An urgent byte alone, which is skipped; then one after another. */
    DO(write(s, "2", 1));
    await(s, POLLPRI);
    settle();
    SAY(urgents);
    say_state(s);
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    say_state(s);
    DO(write(s, "3", 1));
    await(s, POLLPRI);
    settle();
    say_state(s);
    DO(recv(s, data, 1, MSG_OOB));
    SAY(data[0]);
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    SAY(urgents);
    close(ep);
    close(s);
}

/* The peer reports what it finds: the number of bytes before the urgent one, that byte, and the number after it. */
static void sending(void)
{
    int s = connected('O');
    char data[64] = { 0 };

    begin("urgent data sent");
    DO(send(s, "abC", 3, MSG_OOB));
    settle();
    DO(send(s, "de", 2, 0));
    DO(shutdown(s, SHUT_WR));
    DO(drain(s, 0));
    DO(recv(s, data, sizeof data, MSG_WAITALL));
    SAY(!strcmp(data, "2C2"));
    DO(send(s, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    close(s);
    s = tcp();
    DO(recv(s, data, 1, MSG_OOB));
    DO(send(s, "x", 1, MSG_OOB | MSG_NOSIGNAL));
    DO(sockatmark(s));
    DO(sockatmark(STDERR_FILENO) < 1);
    close(s);
}

/* The default send buffer depends on the congestion control. */
static void say_buffers(const char *when, int s, int exactly)
{
    int receive = 0, send = 0;
    socklen_t len = sizeof send;

    DO(getsockopt(s, SOL_SOCKET, SO_RCVBUF, &receive, &len));
    DO(getsockopt(s, SOL_SOCKET, SO_SNDBUF, &send, &len));
    printf("    %s", when);
    SAY(receive);
    if (exactly)
        SAY(send);
    else
        SAY(send > 40000);
}

static void buffers(void)
{
    struct address at;
    int s, l, size = 50000;
    static char zeros[200000];

    begin("buffer sizes");
    s = connected('n');
    say_buffers("connected", s, 0);
    DO(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    DO(setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    say_buffers("set", s, 1);
    close(s);
    s = tcp();
    DO(setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    say_buffers("set before", s, 1);
    close(s);
    l = listening(&at);
    DO(poll(&(struct pollfd){ l, POLLIN, 0 }, 1, 1));
    say_buffers("listener", l, 1);
    s = called('b', &at);
    await(l, POLLIN);
    int accepted = accept(l, NULL, NULL);
    say_buffers("accepted", accepted, 0);
    close(accepted);
    close(s);
    close(l);
    s = bound(SOCK_DGRAM);
    DO(poll(&(struct pollfd){ s, POLLIN, 0 }, 1, 1));
    say_buffers("datagrams", s, 1);
    DO(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    say_buffers("datagrams, set", s, 1);
    close(s);
    /* The reported buffer size is available. */
    s = connected('n');
    size = 100000;
    setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    SAY(send(s, zeros, sizeof zeros, MSG_DONTWAIT) > 150000);
    close(s);
}

/* A listener that is shut down while a thread waits for it. */
static void *shuts(void *fd)
{
    usleep(100000);
    shutdown((int)(long)fd, SHUT_RD);
    return NULL;
}

static void shut_while_waited(void)
{
    struct address at;
    struct epoll_event watch = { .events = EPOLLIN }, found;
    struct pollfd p;
    int l, ep;

    begin("a listener that is shut down while a thread waits for it");
    for (int i = 0; i < 2; i++) {
        pthread_t thread;

        l = listening(&at);
        p = (struct pollfd){ l, POLLIN, 0 };
        poll(&p, 1, 1);
        ep = epoll_create1(0);
        if (i)
            epoll_ctl(ep, EPOLL_CTL_ADD, l, &watch);
        pthread_create(&thread, NULL, shuts, (void *)(long)l);
        if (i) {
            found.events = 0;
            DO(epoll_wait(ep, &found, 1, 3000));
            say_events("epoll", found.events);
        } else {
            DO(poll(&p, 1, 3000));
            say_events("poll", p.revents);
        }
        pthread_join(thread, NULL);
        DO(poll(&p, 1, 0));
        say_events("poll again", p.revents);
        DO(accept(l, NULL, NULL));
        close(ep);
        close(l);
    }
}

/* Receive time stamps, numbered; transmit time stamps are a documented difference. */
static void times(void)
{
    int s = connected('e'), asked = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_OPT_ID;
    socklen_t len = sizeof asked;

    begin("time stamps of a connection");
    DO(setsockopt(s, SOL_SOCKET, SO_TIMESTAMPING, &asked, sizeof asked));
    asked = 0;
    DO(getsockopt(s, SOL_SOCKET, SO_TIMESTAMPING, &asked, &len));
    SAY(asked);
    asked = 1 << 30;
    DO(setsockopt(s, SOL_SOCKET, SO_TIMESTAMPING, &asked, sizeof asked));
    close(s);
}

/* MSG_EOR and MSG_MORE are accepted; the peer sees one stream. */
static void records(void)
{
    int s = connected('e');
    char data[64];

    begin("records");
    DO(send(s, "one", 3, MSG_EOR));
    DO(send(s, "two", 3, MSG_EOR | MSG_MORE));
    DO(send(s, "three", 5, 0));
    DO(recv(s, data, 11, MSG_WAITALL));
    SAY(!memcmp(data, "onetwothree", 11));
    close(s);
}

void cases_urgent(void)
{
    CASE(apart(0));
    CASE(apart(1));
    CASE(sending());
    CASE(buffers());
    CASE(shut_while_waited());
    CASE(times());
    CASE(records());
}
