/* What poll, select and epoll report of sockets, pipes, timers, eventfds and nested sets: one line for each call, to
 * be compared word by word between planes.
 *
 *   mixed PEER [CASE]
 *
 * PEER echoes datagrams and bytes on port 7. On a TCP connection a first byte of 'q' makes it close, 'r' reset, 'h'
 * shut down its sending half; "cPORT\n" makes it connect to that port of ours. Without CASE all cases run. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in peer;
static const char *now_in = "?";

static void say(const char *what, int result)
{
    int code = errno;
    printf("%s: %s = %d", now_in, what, result);
    if (result < 0)
        printf(" (%s)", strerrorname_np(code));
    printf("\n");
}

static const char *names(unsigned events)
{
    static char text[8][128];
    static int next;
    static const struct { unsigned bit; const char *name; } all[] = {
        {EPOLLIN, "IN"}, {EPOLLPRI, "PRI"}, {EPOLLOUT, "OUT"}, {EPOLLERR, "ERR"}, {EPOLLHUP, "HUP"},
        {POLLNVAL, "NVAL"}, {EPOLLRDNORM, "RDNORM"}, {EPOLLRDBAND, "RDBAND"}, {EPOLLWRNORM, "WRNORM"},
        {EPOLLWRBAND, "WRBAND"}, {EPOLLRDHUP, "RDHUP"},
    };
    char *out = text[next = (next + 1) % 8];
    *out = 0;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (events & all[i].bit)
            strcat(strcat(out, *out ? "|" : ""), all[i].name);
    return *out ? out : "-";
}

static int by_data(const void *a, const void *b)
{
    unsigned long long x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;
    return x < y ? -1 : x > y;
}

static int look_at(int epoll, int most, int timeout)
{
    struct epoll_event events[64];
    int n = epoll_wait(epoll, events, most, timeout);
    say("epoll_wait", n);
    if (n > 0)
        qsort(events, n, sizeof *events, by_data);
    for (int i = 0; i < n; i++)
        printf("%s:   %llu %s\n", now_in, (unsigned long long)events[i].data.u64, names(events[i].events));
    return n;
}

static void look(int epoll) { look_at(epoll, 64, 0); }

static int control(int epoll, int operation, int fd, unsigned events, unsigned long long data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, operation, fd, &event);
}

static void add(int epoll, int fd, unsigned events, unsigned long long data)
{
    say("add", control(epoll, EPOLL_CTL_ADD, fd, events, data));
}

static void change(int epoll, int fd, unsigned events, unsigned long long data)
{
    say("mod", control(epoll, EPOLL_CTL_MOD, fd, events, data));
}

static void drop(int epoll, int fd) { say("del", epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL)); }

static int udp(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
        perror("connect"), exit(1);
    return fd;
}

static int tcp(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
        perror("connect"), exit(1);
    return fd;
}

/* Makes the peer send something and waits until it has arrived. */
static void echo(int fd, const char *text)
{
    char byte;
    if (send(fd, text, strlen(text), 0) < 0)
        perror("send"), exit(1);
    if (recv(fd, &byte, 1, MSG_PEEK) < 0)
        say("peek", -1);
}

static void eat(int fd)
{
    char data[64];
    say("recv", recv(fd, data, sizeof data, MSG_DONTWAIT));
}

/* Waits until so many bytes have arrived. */
static void have(int fd, int wanted)
{
    int here = 0;
    for (int i = 0; i < 5000 && !ioctl(fd, FIONREAD, &here) && here < wanted; i++)
        usleep(1000);
    if (here != wanted)
        printf("%s: %d bytes came\n", now_in, here);
}

/* Waits until `fd` has one of `events`, by poll, which has cases of its own. */
static void until(int fd, short events)
{
    struct pollfd one = {.fd = fd, .events = events};
    if (poll(&one, 1, 5000) != 1)
        printf("%s: nothing came\n", now_in);
}

static void level(void)
{
    int e = epoll_create1(0), s = udp();
    add(e, s, EPOLLIN, 1);
    look(e);
    echo(s, "a");
    look(e);
    look(e);
    eat(s);
    look(e);
    change(e, s, EPOLLIN | EPOLLOUT, 2);
    look(e);
    echo(s, "b");
    look(e);
    change(e, s, EPOLLRDNORM | EPOLLWRNORM | EPOLLPRI, 3);
    look(e);
    change(e, s, 0, 4);
    look(e);
    close(s), close(e);
}

static void edge(void)
{
    int e = epoll_create1(0), s = tcp();
    add(e, s, EPOLLIN | EPOLLET, 1);
    look(e);
    for (int i = 0; i < 3; i++) {
        echo(s, "x");
        have(s, i + 1);
        look(e);
        look(e);
    }
    change(e, s, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    look(e);
    look(e);
    close(s), close(e);
}

static void one_shot(void)
{
    int e = epoll_create1(0), s = udp(), p[2];
    pipe(p);
    add(e, s, EPOLLIN | EPOLLONESHOT, 1);
    add(e, p[0], EPOLLIN | EPOLLONESHOT, 2);
    echo(s, "a");
    write(p[1], "a", 1);
    look(e);
    look(e);
    echo(s, "b");
    look(e);
    change(e, s, EPOLLIN | EPOLLONESHOT, 3);
    change(e, p[0], EPOLLIN | EPOLLONESHOT, 4);
    look(e);
    look(e);
    close(s), close(e), close(p[0]), close(p[1]);
}

static void errors(void)
{
    int e = epoll_create1(0), s = udp(), other = udp(), p[2];
    struct epoll_event event = {.events = EPOLLIN};
    pipe(p);
    add(e, s, EPOLLIN, 1);
    echo(s, "a");
    look(e);
    add(e, s, EPOLLIN, 1);
    change(e, other, EPOLLIN, 1);
    drop(e, other);
    drop(e, s);
    drop(e, s);
    change(e, s, EPOLLIN, 1);
    add(e, e, EPOLLIN, 1);
    add(e, 987, EPOLLIN, 1);
    add(987, s, EPOLLIN, 1);
    add(p[0], s, EPOLLIN, 1);
    say("odd operation", epoll_ctl(e, 17, s, &event));
    say("no room", epoll_wait(e, &event, 0, 0));
    say("less than none", epoll_wait(e, &event, -1, 0));
    say("no set", epoll_wait(s, &event, 1, 0));
    say("no descriptor", epoll_wait(987, &event, 1, 0));
    struct timespec bad = {.tv_nsec = 1000000000};
    say("no time", epoll_pwait2(e, &event, 1, &bad, NULL));
    int regular = open("/proc/self/exe", O_RDONLY);
    add(e, regular, EPOLLIN, 1);
    close(regular), close(s), close(other), close(e), close(p[0]), close(p[1]);
}

static void exclusive(void)
{
    int e = epoll_create1(0), f = epoll_create1(0), s = udp();
    echo(s, "a");
    add(e, s, EPOLLIN | EPOLLEXCLUSIVE, 1);
    look(e);
    change(e, s, EPOLLIN, 1);
    drop(e, s);
    add(e, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1);
    add(e, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1);
    add(e, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 1);
    look(e);
    add(e, f, EPOLLIN | EPOLLEXCLUSIVE, 1);
    drop(e, s);
    add(e, s, EPOLLIN, 1);
    change(e, s, EPOLLIN | EPOLLEXCLUSIVE, 1);
    close(s), close(e), close(f);
}

static void fresh(void)
{
    int e = epoll_create1(0), s = socket(AF_INET, SOCK_STREAM, 0), u = socket(AF_INET, SOCK_DGRAM, 0);
    struct pollfd both[2] = {{.fd = s, .events = POLLIN | POLLOUT}, {.fd = u, .events = POLLIN | POLLOUT}};
    add(e, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    add(e, u, EPOLLIN | EPOLLOUT, 2);
    look(e);
    say("poll", poll(both, 2, 0));
    printf("%s: %s %s\n", now_in, names(both[0].revents), names(both[1].revents));
    say("connect", connect(s, (struct sockaddr *)&peer, sizeof peer));
    look(e);
    echo(s, "x");
    look(e);
    eat(s);
    look(e);
    drop(e, s);
    drop(e, s);
    look(e);
    close(s), close(u), close(e);
}

static void endings(void)
{
    static const char *how[] = {"q", "r", "h"};
    for (int i = 0; i < 3; i++) {
        int e = epoll_create1(0), s = tcp();
        struct pollfd one = {.fd = s, .events = POLLIN | POLLOUT | POLLRDHUP};
        add(e, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
        look(e);
        send(s, how[i], 1, 0);
        until(s, POLLIN | POLLRDHUP);
        usleep(20000);
        look(e);
        look(e);
        say("poll", poll(&one, 1, 0));
        printf("%s: %s\n", now_in, names(one.revents));
        eat(s);
        say("shutdown", shutdown(s, SHUT_WR));
        usleep(20000);
        say("poll", poll(&one, 1, 0));
        printf("%s: %s\n", now_in, names(one.revents));
        look(e);
        close(s), close(e);
    }
    int e = epoll_create1(0), s = udp();
    add(e, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 2);
    say("shutdown", shutdown(s, SHUT_RD));
    look(e);
    say("shutdown", shutdown(s, SHUT_RDWR));
    look(e);
    close(s), close(e);
}

static void connecting(void)
{
    int e = epoll_create1(0), s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), code;
    socklen_t len = sizeof code;
    say("connect", connect(s, (struct sockaddr *)&peer, sizeof peer));
    add(e, s, EPOLLIN | EPOLLOUT, 1);
    look_at(e, 8, 5000);
    getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &len);
    printf("%s: error %d\n", now_in, code);
    close(s);
    look(e);
    struct sockaddr_in unreachable = peer;
    unreachable.sin_port = htons(9);
    s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    say("connect", connect(s, (struct sockaddr *)&unreachable, sizeof unreachable));
    add(e, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 2);
    look_at(e, 8, 5000);
    getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &len);
    printf("%s: error %d\n", now_in, code);
    close(s), close(e);
}

static void listening(void)
{
    int e = epoll_create1(0), l = socket(AF_INET, SOCK_STREAM, 0), asker = tcp(), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7777)};
    char line[32];
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    add(e, l, EPOLLIN, 1);
    look(e);
    say("bind", bind(l, (struct sockaddr *)&at, sizeof at));
    say("listen", listen(l, 8));
    look(e);
    snprintf(line, sizeof line, "c7777\n");
    send(asker, line, strlen(line), 0);
    look_at(e, 8, 5000);
    look(e);
    int c = accept(l, NULL, NULL);
    say("accepted", c >= 0 ? 0 : -1);
    look(e);
    add(e, c, EPOLLIN, 2);
    look_at(e, 8, 5000);
    eat(c);
    /* Also over loopback. */
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_port = htons(7777), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int k = socket(AF_INET, SOCK_STREAM, 0);
    say("connect to ourselves", connect(k, (struct sockaddr *)&self, sizeof self));
    look_at(e, 8, 5000);
    int d = accept(l, NULL, NULL);
    say("accepted", d >= 0 ? 0 : -1);
    add(e, d, EPOLLIN, 3);
    send(k, "x", 1, 0);
    look_at(e, 8, 5000);
    close(k), close(d), close(c), close(l), close(asker);
    look(e);
    close(e);
}

static void duplicates(void)
{
    int e = epoll_create1(0), s = udp(), d = dup(s);
    add(e, s, EPOLLIN, 1);
    add(e, d, EPOLLIN, 2);
    echo(s, "a");
    look(e);
    close(s);
    look(e);
    drop(e, s);
    drop(e, d);
    look(e);
    eat(d);
    close(d);
    look(e);
    s = udp();
    add(e, s, EPOLLIN, 3);
    echo(s, "b");
    look(e);
    close(s);
    look(e);
    int e2 = dup(e);
    s = udp();
    add(e2, s, EPOLLIN, 4);
    echo(s, "c");
    look(e);
    close(e);
    look(e2);
    close(s), close(e2);
}

static void mixed(void)
{
    int e = epoll_create1(0), s = udp(), p[2], v = eventfd(0, 0), t = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec soon = {.it_value.tv_nsec = 20000000};
    uint64_t one = 1;
    pipe(p);
    add(e, p[0], EPOLLIN, 1);
    add(e, v, EPOLLIN | EPOLLET, 2);
    add(e, t, EPOLLIN, 3);
    look(e);
    add(e, s, EPOLLIN, 4);
    look(e);
    write(p[1], "x", 1);
    echo(s, "a");
    look(e);
    write(v, &one, 8);
    look(e);
    look(e);
    eat(s);
    read(p[0], &one, 1);
    look(e);
    timerfd_settime(t, 0, &soon, NULL);
    look_at(e, 8, 5000);
    read(t, &one, 8);
    echo(s, "b");
    write(p[1], "x", 1);
    /* Each call has room for one event: the two are reported in turn. */
    int seen[5] = {0};
    for (int i = 0; i < 4; i++) {
        struct epoll_event event;
        if (epoll_wait(e, &event, 1, 0) == 1)
            seen[event.data.u64]++;
    }
    printf("%s: neither starves: %d\n", now_in, seen[1] > 0 && seen[4] > 0);
    close(p[1]);
    look(e);
    close(s), close(e), close(p[0]), close(v), close(t);
}

static void nested(void)
{
    int inner = epoll_create1(0), outer = epoll_create1(0), s = udp(), p[2];
    struct pollfd one = {.fd = inner, .events = POLLIN};
    pipe(p);
    add(outer, inner, EPOLLIN, 1);
    look(outer);
    add(inner, s, EPOLLIN, 2);
    add(inner, p[0], EPOLLIN, 3);
    look(outer);
    echo(s, "a");
    look(outer);
    look(inner);
    say("poll", poll(&one, 1, 0));
    eat(s);
    look(outer);
    write(p[1], "x", 1);
    look(outer);
    look(inner);
    say("poll", poll(&one, 1, 0));
    read(p[0], &one.revents, 1);
    look(outer);
    say("poll", poll(&one, 1, 0));
    add(inner, outer, EPOLLIN, 4);
    add(inner, inner, EPOLLIN, 4);
    int chain[7] = {inner};
    for (int i = 1; i < 7; i++) {
        chain[i] = epoll_create1(0);
        add(chain[i], chain[i - 1], EPOLLIN, i);
    }
    echo(s, "b");
    for (int i = 1; i < 5; i++)
        look(chain[i]);
    change(outer, inner, EPOLLIN | EPOLLET, 5);
    look(outer);
    look(outer);
    echo(s, "c");
    usleep(20000);
    look(outer);
    drop(outer, inner);
    look(outer);
    for (int i = 0; i < 7; i++)
        close(chain[i]);
    close(outer), close(s), close(p[0]), close(p[1]);
}

static void polls(void)
{
    int s = udp(), t = tcp(), p[2], regular = open("/proc/self/exe", O_RDONLY);
    pipe(p);
    struct pollfd fds[] = {
        {.fd = s, .events = POLLIN}, {.fd = t, .events = POLLIN | POLLOUT}, {.fd = p[0], .events = POLLIN},
        {.fd = p[1], .events = POLLOUT}, {.fd = regular, .events = POLLIN}, {.fd = 987, .events = POLLIN},
        {.fd = -1, .events = POLLIN}, {.fd = s, .events = POLLOUT}, {.fd = t, .events = 0},
    };
    int count = sizeof fds / sizeof *fds;
    for (int round = 0; round < 3; round++) {
        say("poll", poll(fds, count, 0));
        for (int i = 0; i < count; i++)
            printf("%s:   %d %s\n", now_in, i, names((unsigned short)fds[i].revents));
        if (round == 0)
            echo(s, "a");
        else
            close(p[1]), fds[3].fd = -1, eat(s);
    }
    struct pollfd two[] = {{.fd = s, .events = POLLIN}, {.fd = t, .events = POLLIN}};
    struct timespec brief = {.tv_nsec = 20000000}, bad = {.tv_sec = -1};
    say("poll in vain", poll(two, 2, 20));
    say("ppoll in vain", ppoll(two, 2, &brief, NULL));
    say("ppoll, no time", ppoll(two, 2, &bad, NULL));
    send(t, "x", 1, 0);
    say("poll", poll(two, 2, 5000));
    printf("%s: %s %s\n", now_in, names(two[0].revents), names(two[1].revents));
    close(s), close(t), close(p[0]), close(regular);
}

static int sets(int count, const int *fds, fd_set *sets)
{
    for (int i = 0; i < 3; i++) {
        FD_ZERO(&sets[i]);
        for (int j = 0; j < count; j++)
            FD_SET(fds[j], &sets[i]);
    }
    int most = 0;
    for (int j = 0; j < count; j++)
        most = fds[j] > most ? fds[j] : most;
    return most + 1;
}

static void selects(void)
{
    int s = udp(), t = tcp(), p[2], fds[4];
    fd_set three[3];
    pipe(p);
    fds[0] = s, fds[1] = t, fds[2] = p[0], fds[3] = p[1];
    for (int round = 0; round < 4; round++) {
        struct timeval none = {0};
        int most = sets(4, fds, three);
        say("select", select(most, &three[0], &three[1], &three[2], &none));
        for (int i = 0; i < 4; i++)
            printf("%s:   %d %d%d%d\n", now_in, i, !!FD_ISSET(fds[i], &three[0]), !!FD_ISSET(fds[i], &three[1]),
                   !!FD_ISSET(fds[i], &three[2]));
        if (round == 0)
            echo(s, "a"), write(p[1], "x", 1);
        else if (round == 1)
            eat(s), send(t, "q", 1, 0), until(t, POLLIN), usleep(20000);
        else
            close(p[0]), fds[2] = p[1];
    }
    struct timeval brief = {.tv_usec = 20000};
    FD_ZERO(&three[0]);
    FD_SET(s, &three[0]);
    say("in vain", select(s + 1, &three[0], NULL, NULL, &brief));
    printf("%s: set %d, left %ld.%06ld\n", now_in, !!FD_ISSET(s, &three[0]), (long)brief.tv_sec, (long)brief.tv_usec);
    brief.tv_sec = 5;
    send(s, "b", 1, 0);
    FD_SET(s, &three[0]);
    say("select", select(s + 1, &three[0], NULL, NULL, &brief));
    printf("%s: time left %d\n", now_in, brief.tv_sec >= 3);
    int gone = dup(s);
    close(gone);
    FD_SET(gone, &three[0]);
    say("bad descriptor", select(gone + 1, &three[0], NULL, NULL, &brief));
    say("less than none", select(-1, &three[0], NULL, NULL, &brief));
    brief.tv_sec = -1;
    FD_ZERO(&three[0]);
    FD_SET(s, &three[0]);
    say("no time", select(s + 1, &three[0], NULL, NULL, &brief));
    struct timespec zero = {0};
    FD_SET(s, &three[0]);
    say("pselect", pselect(s + 1, &three[0], NULL, NULL, &zero, NULL));
    close(s), close(t), close(p[1]);
}

static volatile sig_atomic_t handled;
static int in_handler = -1;

static void on_signal(int number)
{
    int code = errno;
    handled++;
    (void)number;
    if (in_handler >= 0) {
        struct pollfd one = {.fd = in_handler, .events = POLLOUT};
        char byte;
        poll(&one, 1, 0);
        recv(in_handler, &byte, 1, MSG_DONTWAIT);
        send(in_handler, "s", 1, MSG_DONTWAIT);
    }
    errno = code;
}

static void alarm_in(int micros, int every)
{
    struct itimerval in = {.it_value.tv_usec = micros, .it_interval.tv_usec = every};
    setitimer(ITIMER_REAL, &in, NULL);
}

/* Ends a repeated alarm; returns the result that it is given. */
static int without_alarm(int result)
{
    alarm_in(0, 0);
    return result;
}

static void signals(void)
{
    int s = udp(), t = tcp(), e = epoll_create1(0), p[2];
    struct epoll_event event;
    struct pollfd fds[2] = {{.fd = s, .events = POLLIN}, {.events = POLLIN}};
    struct sigaction action = {.sa_handler = on_signal};
    struct timeval limit = {.tv_sec = 5}, none = {0};
    sigset_t blocked, empty;
    fd_set set;
    char byte;
    pipe(p);
    fds[1].fd = p[0];
    add(e, s, EPOLLIN, 1);
    for (int restart = 0; restart < 2; restart++) {
        action.sa_flags = restart ? SA_RESTART : 0;
        sigaction(SIGALRM, &action, NULL);
        /* Repeated, as the first may come before the call that it should interrupt. */
        alarm_in(20000, 20000);
        say("epoll_wait", without_alarm(epoll_wait(e, &event, 1, 5000)));
        alarm_in(20000, 20000);
        say("poll", without_alarm(poll(fds, 2, 5000)));
        FD_ZERO(&set);
        FD_SET(s, &set);
        alarm_in(20000, 20000);
        say("select", without_alarm(select(s + 1, &set, NULL, NULL, NULL)));
        /* A restarted call ends when data arrives, which the handler sends for. */
        int socks[2] = {s, t};
        for (int i = 0; i < 2; i++) {
            if (restart) {
                setsockopt(socks[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
                alarm_in(20000, 20000);
                say("recv with a timeout", without_alarm(recv(socks[i], &byte, 1, 0)));
                setsockopt(socks[i], SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
                in_handler = socks[i];
                /* Once: another could take the byte. Data that comes before the call ends it as well. */
                alarm_in(20000, 0);
                say("recv goes on", recv(socks[i], &byte, 1, 0));
                in_handler = -1;
            } else {
                alarm_in(20000, 20000);
                say("recv", without_alarm(recv(socks[i], &byte, 1, 0)));
            }
        }
    }
    printf("%s: handled %d\n", now_in, handled >= 12);
    /* The signal is pending and blocked: only the wait unblocks it. */
    sigemptyset(&empty), sigemptyset(&blocked), sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    handled = 0;
    raise(SIGALRM);
    struct timespec second = {.tv_sec = 1};
    say("ppoll", ppoll(fds, 2, &second, &empty));
    raise(SIGALRM);
    say("epoll_pwait", epoll_pwait(e, &event, 1, 1000, &empty));
    raise(SIGALRM);
    FD_ZERO(&set);
        FD_SET(s, &set);
    say("pselect", pselect(s + 1, &set, NULL, NULL, &second, &empty));
    printf("%s: handled %d\n", now_in, (int)handled);
    raise(SIGALRM);
    echo(s, "a");
    say("what is there wins", epoll_pwait(e, &event, 1, 1000, &empty));
    printf("%s: handled %d\n", now_in, (int)handled);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    printf("%s: handled %d\n", now_in, (int)handled);
    struct sigaction old;
    sigaction(SIGALRM, NULL, &old);
    printf("%s: as it was: %d %#x\n", now_in, old.sa_handler == on_signal, old.sa_flags & ~0x04000000);
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigaction(SIGUSR1, NULL, &old);
    printf("%s: once: %d\n", now_in, old.sa_handler == SIG_DFL);
    printf("%s: was ours: %d\n", now_in, signal(SIGALRM, SIG_DFL) == on_signal);
    close(s), close(t), close(e), close(p[0]), close(p[1]);
}

/* Signals in quick succession, whose handler uses the same socket as the program. */
static void storm(void)
{
    int s = udp(), t = tcp(), e = epoll_create1(0), odd = 0;
    struct sigaction action = {.sa_handler = on_signal};
    struct timespec begun, now;
    handled = 0;
    add(e, s, EPOLLIN, 1);
    fcntl(s, F_SETFL, O_NONBLOCK);
    sigaction(SIGALRM, &action, NULL);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    in_handler = s;
    alarm_in(50, 50);
    do {
        struct epoll_event event;
        char data[64], want;
        ssize_t n;
        send(s, "x", 1, 0);
        n = epoll_wait(e, &event, 1, 10);
        odd += n < 0 && errno != EINTR;
        while (recv(s, data, sizeof data, 0) >= 0)
            ;
        odd += errno != EAGAIN && errno != EINTR;
        want = 'A' + handled % 26;
        while ((n = send(t, &want, 1, 0)) < 0 && errno == EINTR)
            ;
        do
            n = recv(t, data, 1, 0);
        while (n < 0 && errno == EINTR);
        odd += n != 1 || data[0] != want;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 2);
    alarm_in(0, 0);
    in_handler = -1;
    signal(SIGALRM, SIG_DFL);
    printf("%s: odd %d, many %d\n", now_in, odd, handled > 100);
    close(s), close(t), close(e);
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"level", level}, {"edge", edge}, {"one_shot", one_shot}, {"errors", errors}, {"exclusive", exclusive},
        {"fresh", fresh}, {"endings", endings}, {"connecting", connecting}, {"listening", listening},
        {"duplicates", duplicates}, {"mixed", mixed}, {"nested", nested}, {"polls", polls}, {"selects", selects},
        {"signals", signals}, {"storm", storm},
    };
    if (count < 2)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    peer.sin_family = AF_INET;
    peer.sin_port = htons(7);
    inet_pton(AF_INET, arguments[1], &peer.sin_addr);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (count < 3 || !strcmp(arguments[2], cases[i].name)) {
            now_in = cases[i].name;
            cases[i].run();
        }
    return 0;
}
