/* poll and select. */
#include "conformance.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

static void events_of(const char *what, int fd)
{
    struct pollfd p = { fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP | POLLRDNORM | POLLWRNORM, 0 };

    poll(&p, 1, 0);
    say_events(what, p.revents);
}

static void states(void)
{
    struct address at;
    int s, l, c, a;

    begin("poll in each state of a socket");
    s = tcp();
    events_of("a new stream", s);
    close(s);
    events_of("a closed descriptor", s);
    s = bound(SOCK_STREAM);
    events_of("a bound stream", s);
    close(s);
    s = udp();
    events_of("a new datagram socket", s);
    connect(s, SA(peer), peer.len);
    events_of("connected", s);
    send(s, "x", 1, 0);
    await(s, POLLIN);
    events_of("with a datagram", s);
    shutdown(s, SHUT_RD);
    events_of("not reading any more", s);
    close(s);
    l = listening(&at);
    events_of("a listener", l);
    c = called('b', &at);
    await(l, POLLIN);
    events_of("a listener with a connection", l);
    a = accept(l, NULL, NULL);
    events_of("a listener without it again", l);
    await(a, POLLIN);
    events_of("an accepted connection with data", a);
    close(a);
    close(c);
    c = called('R', &at);
    await(l, POLLIN);
    a = FD(accept(l, NULL, NULL));
    await(a, POLLERR);
    events_of("an accepted connection that was reset", a);
    close(a);
    close(c);
    close(l);
    s = connected('e');
    events_of("a connection", s);
    write(s, "x", 1);
    await(s, POLLIN);
    events_of("with data", s);
    drain(s, 1);
    events_of("with none again", s);
    shutdown(s, SHUT_RD);
    events_of("not reading any more", s);
    close(s);
    s = connected('h');
    drain(s, 3);
    await(s, POLLRDHUP);
    events_of("the peer has ended its half", s);
    shutdown(s, SHUT_WR);
    await(s, POLLHUP);
    events_of("both have", s);
    close(s);
    s = connected('r');
    await(s, POLLERR);
    events_of("reset", s);
    read(s, &a, 1);
    events_of("reset, and told", s);
    close(s);
}

static void sets(void)
{
    int s = connected('e'), u = bound(SOCK_DGRAM), pipes[2], event = eventfd(0, 0);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), file = open("/proc/self/exe", O_RDONLY);
    struct itimerspec soon = { .it_value = { .tv_nsec = 20000000 } };
    struct pollfd p[7];
    struct timespec little = { 0, 10000000 };

    if (pipe(pipes))
        return;
    begin("poll on sockets, pipes, timers, events and files");
    p[0] = (struct pollfd){ s, POLLIN, 0 };
    p[1] = (struct pollfd){ u, POLLIN, 0 };
    p[2] = (struct pollfd){ pipes[0], POLLIN, 0 };
    p[3] = (struct pollfd){ timer, POLLIN, 0 };
    p[4] = (struct pollfd){ event, POLLIN, 0 };
    p[5] = (struct pollfd){ -1, POLLIN, 0 };
    p[6] = (struct pollfd){ file, POLLIN, 0 };
    DO(poll(p, 6, 0));
    DO(poll(p, 6, 10));
    DO(ppoll(p, 6, &little, NULL));
    DO(poll(p, 7, -1));
    say_events("the file", p[6].revents);
    write(pipes[1], "x", 1);
    DO(poll(p, 6, -1));
    say_events("the pipe", p[2].revents);
    say_events("the socket", p[0].revents);
    read(pipes[0], &(char){ 0 }, 1);
    timerfd_settime(timer, 0, &soon, NULL);
    DO(poll(p, 6, -1));
    say_events("the timer", p[3].revents);
    read(timer, &soon, 8);
    write(s, "x", 1);
    DO(poll(p, 6, -1));
    say_events("the socket", p[0].revents);
    write(event, &(long){ 1 }, 8);
    DO(poll(p, 6, -1));
    say_events("the event", p[4].revents);
    p[5].fd = 99999;
    DO(poll(p, 6, 0));
    say_events("a number of nothing", p[5].revents);
    DO(poll(NULL, 0, 10));
    DO(poll(NULL, 1, 0));
    DO(poll(p, 1u << 30, 0));
    close(s);
    DO(poll(p, 1, 0));
    say_events("the closed socket", p[0].revents);
    p[0].fd = u;
    p[0].events = 0;
    DO(poll(p, 1, 10));

    begin("select");
    fd_set in, out, other;
    struct timeval no = { 0 }, wrong = { -1, 0 };
    s = connected('e');
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&other);
    FD_SET(s, &in);
    FD_SET(s, &out);
    FD_SET(s, &other);
    DO(select(s + 1, &in, &out, &other, &no));
    SAY(FD_ISSET(s, &in));
    SAY(!!FD_ISSET(s, &out));
    SAY(FD_ISSET(s, &other));
    FD_SET(s, &in);
    write(s, "x", 1);
    DO(select(s + 1, &in, NULL, NULL, NULL));
    SAY(!!FD_ISSET(s, &in));
    drain(s, 1);
    FD_ZERO(&in);
    FD_SET(pipes[0], &in);
    FD_SET(s, &in);
    write(pipes[1], "x", 1);
    DO(select(FD_SETSIZE, &in, NULL, NULL, NULL));
    SAY(!!FD_ISSET(s, &in));
    SAY(!!FD_ISSET(pipes[0], &in));
    DO(select(-1, &in, NULL, NULL, &no));
    DO(select(s + 1, &in, NULL, NULL, &wrong));
    FD_ZERO(&in);
    FD_SET(s, &in);
    DO(pselect(s + 1, &in, NULL, NULL, &little, NULL));
    SAY(FD_ISSET(s, &in));
    FD_SET(s, &in);
    close(s);
    DO(select(s + 1, &in, NULL, NULL, &no));
    close(u);
    close(pipes[0]);
    close(pipes[1]);
    close(event);
    close(timer);
    close(file);
}

/* Programs may pass as many descriptors as the limit allows, with sets as large as their descriptor table. */
static void beyond(void)
{
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fd_set *in = (fd_set *)(pages + page - sizeof *in);
    int s = connected('e');

    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE))
        return;
    begin("select with a count beyond all descriptors");
    FD_SET(s, in);
    write(s, "x", 1);
    DO(select(1 << 20, in, NULL, NULL, NULL));
    SAY(!!FD_ISSET(s, in));
    DO(pselect(1 << 20, in, NULL, in, NULL, NULL));
    drain(s, 1);
    FD_ZERO(in);
    DO(select(1 << 20, in, in, in, &(struct timeval){ 0 }));
    close(s);
    munmap(pages, 2 * page);
}

void cases_wait(void)
{
    CASE(states());
    CASE(sets());
    CASE(beyond());
}
