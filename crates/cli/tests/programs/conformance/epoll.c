/* epoll: level, edge and one-shot, nested, and with descriptors that are not sockets. */
#include "conformance.h"

#include <sys/eventfd.h>

static int add(int e, int fd, unsigned events)
{
    struct epoll_event event = { events, { .fd = fd } };

    return epoll_ctl(e, EPOLL_CTL_ADD, fd, &event);
}

static int modify(int e, int fd, unsigned events)
{
    struct epoll_event event = { events, { .fd = fd } };

    return epoll_ctl(e, EPOLL_CTL_MOD, fd, &event);
}

/* The number of events within a timeout, and the first event. */
static void look(const char *what, int e, int ms)
{
    struct epoll_event events[8];
    int n = epoll_wait(e, events, 8, ms);

    outcome(what, n, errno);
    if (n > 0)
        say_events("the first", events[0].events);
}

static void managing(void)
{
    struct epoll_event event = { EPOLLIN, { 0 } };
    int e = FD(epoll_create1(EPOLL_CLOEXEC)), s = connected('e'), file = open("/proc/self/exe", O_RDONLY);

    begin("epoll_ctl");
    FD(epoll_create1(77));
    FD(epoll_create(0));
    SAY(fcntl(e, F_GETFD));
    DO(add(e, s, EPOLLIN));
    DO(add(e, s, EPOLLIN));
    DO(modify(e, s, EPOLLIN | EPOLLOUT));
    DO(epoll_ctl(e, EPOLL_CTL_DEL, s, NULL));
    DO(epoll_ctl(e, EPOLL_CTL_DEL, s, NULL));
    DO(modify(e, s, EPOLLIN));
    DO(add(e, file, EPOLLIN));
    DO(add(e, 99999, EPOLLIN));
    DO(add(e, e, EPOLLIN));
    DO(add(s, e, EPOLLIN));
    DO(add(99999, s, EPOLLIN));
    DO(epoll_ctl(e, 77, s, &event));
    DO(epoll_ctl(e, EPOLL_CTL_ADD, s, NULL));
    DO(epoll_wait(e, &event, 0, 0));
    DO(epoll_wait(e, &event, -1, 0));
    DO(epoll_wait(s, &event, 1, 0));
    DO(epoll_wait(99999, &event, 1, 0));
    DO(epoll_wait(e, &event, 1, 0));
    DO(epoll_pwait(e, &event, 1, 10, NULL));
    DO(epoll_wait(e, NULL, 1, 0));
    DO(add(e, s, EPOLLOUT));
    DO(epoll_wait(e, NULL, 1, 1000));
    DO(epoll_wait(e, &event, 1, 1000));
    DO(epoll_ctl(e, EPOLL_CTL_DEL, s, NULL));
    DO(add(e, s, EPOLLIN | EPOLLEXCLUSIVE));
    DO(modify(e, s, EPOLLIN));
    close(file);
    close(s);
    close(e);
}

static void triggers(void)
{
    int e = epoll_create1(0), s = connected('e');

    begin("level-triggered");
    add(e, s, EPOLLIN | EPOLLRDHUP);
    look("nothing yet", e, 10);
    write(s, "ab", 2);
    look("data", e, 5000);
    drain(s, 1);
    look("still data", e, 0);
    drain(s, 1);
    look("no data", e, 0);
    modify(e, s, EPOLLIN | EPOLLOUT);
    look("room to write", e, 0);

    begin("edge-triggered");
    modify(e, s, EPOLLIN | EPOLLET);
    look("nothing yet", e, 10);
    write(s, "ab", 2);
    look("data", e, 5000);
    look("the same data", e, 10);
    write(s, "c", 1);
    look("more data", e, 5000);
    look("the same again", e, 10);
    modify(e, s, EPOLLIN | EPOLLET);
    look("asked anew", e, 0);
    drain(s, 3);

    begin("one-shot");
    modify(e, s, EPOLLIN | EPOLLONESHOT);
    write(s, "a", 1);
    look("data", e, 5000);
    look("once only", e, 10);
    modify(e, s, EPOLLIN | EPOLLONESHOT);
    look("armed again", e, 0);
    drain(s, 1);

    begin("the peer closes");
    close(s);
    s = connected('c');
    add(e, s, EPOLLIN | EPOLLRDHUP);
    look("the end", e, 5000);
    close(s);
    look("a closed socket is out of the set", e, 10);
    s = connected('r');
    add(e, s, 0);
    look("a reset is reported unasked", e, 5000);
    close(s);
    close(e);
}

static void mixtures(void)
{
    struct address at;
    int outer = epoll_create1(0), e = epoll_create1(0), s = connected('e'), event = eventfd(0, 0);
    int pipes[2], l = listening(&at), c, copy, u = bound(SOCK_DGRAM);
    struct address name = name_of(u);

    if (pipe(pipes))
        return;
    begin("a nested instance, a pipe, an event, a listener");
    DO(add(outer, e, EPOLLIN));
    DO(add(e, outer, EPOLLIN));
    add(e, s, EPOLLIN);
    add(outer, event, EPOLLIN);
    add(outer, pipes[0], EPOLLIN);
    add(outer, l, EPOLLIN);
    add(outer, u, EPOLLIN);
    look("nothing", outer, 10);
    write(s, "x", 1);
    look("through the inner instance", outer, 5000);
    drain(s, 1);
    look("nothing again", outer, 0);
    write(pipes[1], "x", 1);
    look("the pipe", outer, -1);
    read(pipes[0], &c, 1);
    write(event, &(long){ 1 }, 8);
    look("the event", outer, -1);
    read(event, &(long){ 0 }, 8);
    c = called('b', &at);
    look("the listener", outer, 5000);
    close(accept(l, NULL, NULL));
    close(c);
    c = called('u', &name);
    look("the datagram", outer, 5000);
    drain(u, 5);
    close(c);
    look("nothing any more", outer, 0);

    begin("a duplicate remains a member of the set");
    copy = dup(s);
    close(s);
    write(copy, "x", 1);
    look("through the copy", e, 5000);
    drain(copy, 1);
    close(copy);
    look("gone with the last", e, 10);
    close(e);
    close(outer);
    close(l);
    close(u);
    close(event);
    close(pipes[0]);
    close(pipes[1]);
}

void cases_epoll(void)
{
    CASE(managing());
    CASE(triggers());
    CASE(mixtures());
}
