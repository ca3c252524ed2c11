// Ports: chosen by the kernel, given, closed and opened again; and the backlog of a listener. `peer` runs on the other
// host; all other words run the program under test, which prints the results.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ECHO = 7000, CALLS = 7001, SECOND = 7002 };

static struct sockaddr_in at(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    return address;
}

static int fails(const char *what)
{
    printf("%s: %s\n", what, strerrorname_np(errno));
    return -1;
}

static int tcp(int limit)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval time = {.tv_sec = limit};
    if (fd < 0)
        return fails("socket");
    if (limit) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    }
    return fd;
}

static int name(int fd, const char *host, int port, int reuse)
{
    struct sockaddr_in address = at(host, port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
    return bind(fd, (void *)&address, sizeof address) ? fails("bind") : 0;
}

static int to(int fd, const char *host, int port)
{
    struct sockaddr_in address = at(host, port);
    return connect(fd, (void *)&address, sizeof address) ? fails("connect") : 0;
}

static int port_of(int fd)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    getsockname(fd, (void *)&address, &len);
    return ntohs(address.sin_port);
}

static int listener(const char *host, int port, int backlog)
{
    int fd = tcp(0);
    if (name(fd, host, port, 1) || listen(fd, backlog))
        exit(9);
    return fd;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// Echoes one byte and lets the other side close first.
static void *echoes(void *listens)
{
    for (;;) {
        char byte;
        int fd = accept(*(int *)listens, 0, 0);
        if (recv(fd, &byte, 1, 0) == 1) {
            send(fd, &byte, 1, MSG_NOSIGNAL);
            recv(fd, &byte, 1, 0);
        }
        close(fd);
    }
    return 0;
}

// Echoes one byte and closes first.
static void *ends(void *listens)
{
    for (;;) {
        char byte;
        int fd = accept(*(int *)listens, 0, 0);
        if (recv(fd, &byte, 1, 0) == 1)
            send(fd, &byte, 1, MSG_NOSIGNAL);
        close(fd);
    }
    return 0;
}

// Connects to each port that it reads, and reports the result. A negative number: so many connects at the same time to
// the port that follows; it reports how many were answered.
static void *calls(void *listens)
{
    for (;;) {
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        int control = accept(*(int *)listens, (void *)&from, &len), port;
        while (recv(control, &port, sizeof port, MSG_WAITALL) == sizeof port) {
            int many = port < 0 ? -port : 1, fds[64], good = 0;
            if (port < 0)
                recv(control, &port, sizeof port, MSG_WAITALL);
            from.sin_port = htons(port);
            for (int i = 0; i < many; i++) {
                fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
                connect(fds[i], (void *)&from, sizeof from);
            }
            for (int i = 0; i < many; i++) {
                struct pollfd out = {fds[i], POLLOUT}, in = {fds[i], POLLIN};
                char byte = 'x';
                if (poll(&out, 1, 10000) == 1 && send(fds[i], &byte, 1, MSG_NOSIGNAL) == 1
                    && poll(&in, 1, 10000) == 1)
                    good += recv(fds[i], &byte, 1, 0) == 1;
            }
            for (int i = 0; i < many; i++)
                close(fds[i]);
            send(control, &good, sizeof good, MSG_NOSIGNAL);
        }
        close(control);
    }
    return 0;
}

static int peer(void)
{
    static int echo, call, second;
    pthread_t thread;
    echo = listener("0.0.0.0", ECHO, 1000);
    second = listener("0.0.0.0", SECOND, 1000);
    call = listener("0.0.0.0", CALLS, 10);
    for (int i = 0; i < 4; i++) {
        pthread_create(&thread, 0, echoes, &echo);
        pthread_create(&thread, 0, ends, &second);
    }
    puts("ready");
    fflush(stdout);
    calls(&call);
    return 0;
}

static int control(const char *peer)
{
    int fd = tcp(20);
    return to(fd, peer, CALLS) ? (exit(8), -1) : fd;
}

// Answers one connection; the program under test decides which end closes first.
static int serves(int fd)
{
    char byte;
    int got = accept(fd, 0, 0);
    if (got < 0)
        return fails("accept");
    int good = recv(got, &byte, 1, 0) == 1 && send(got, &byte, 1, MSG_NOSIGNAL) == 1;
    close(got);
    return good ? 0 : -1;
}

static int asks(int fd)
{
    char byte = 'z';
    return send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && recv(fd, &byte, 1, 0) == 1 ? 0 : fails("answer");
}

// Round after round, a listener on port 0 that serves one connection, and a connect: each leaves a TIME_WAIT here.
static void zero(const char *own, const char *far, int rounds)
{
    int told = control(far), served = 0, called = 0, connected = 0;
    for (int round = 0; round < rounds; round++) {
        int fd = tcp(5), good = 0;
        if (name(fd, own, 0, 0) == 0 && listen(fd, 5) == 0) {
            int port = port_of(fd);
            send(told, &port, sizeof port, 0);
            served += serves(fd) == 0;
            recv(told, &good, sizeof good, MSG_WAITALL);
            called += good;
        }
        close(fd);
        fd = tcp(5);
        connected += to(fd, far, ECHO) == 0 && asks(fd) == 0;
        close(fd);
    }
    printf("%d served, %d called, %d connected of %d\n", served, called, connected, rounds);
}

// Connections one after the other, each bound to a port of its own if `first`. One more is made before them all, so
// that one-time setup is done.
static void connects(const char *own, const char *far, int first, int rounds)
{
    int good = 0;
    double begun = 0;
    for (int round = -1; round < rounds; round++) {
        int fd = tcp(0);
        if (round == 0)
            begun = now();
        if (!first || name(fd, own, first + 1 + round, 1) == 0)
            good += to(fd, far, ECHO) == 0 && asks(fd) == 0;
        close(fd);
    }
    printf("%d of %d\n", good - 1, rounds);
    fprintf(stderr, "%.1f us each\n", (now() - begun) * 1e6 / rounds);
}

// Listeners one after the other, each waited for, with SO_REUSEADDR or without.
static void listens(const char *own, const char *far, int reuse, int rounds)
{
    int good = 0, set = epoll_create1(0);
    double begun = 0;
    // So that one-time setup is done.
    close(control(far));
    for (int round = -1; round < rounds; round++) {
        int fd = tcp(5);
        struct epoll_event event = {.events = EPOLLIN};
        if (round == 0)
            begun = now();
        if (name(fd, own, 0, reuse) == 0 && listen(fd, 5) == 0) {
            epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
            good += epoll_wait(set, &event, 1, 0) == 0;
        }
        close(fd);
    }
    printf("%d of %d\n", good - 1, rounds);
    fprintf(stderr, "%.1f us each\n", (now() - begun) * 1e6 / rounds);
}

// The first wait of the process is for a listener, from which it then accepts. Then other threads have time to do what it
// leaves to them.
static void first(const char *own, int port)
{
    int set = epoll_create1(0), fd = tcp(0), good;
    struct epoll_event event = {.events = EPOLLIN};
    good = name(fd, own, port, 1) == 0 && listen(fd, 5) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
    double begun = now();
    good = good && epoll_wait(set, &event, 1, 0) == 0;
    fprintf(stderr, "%.1f us\n", (now() - begun) * 1e6);
    good = good && fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && accept(fd, NULL, NULL) < 0;
    sleep(1);
    printf("%d of 1\n", good);
}

// Connects from a given port and closes first; with HOLD in the environment it does not close.
static void from(const char *own, const char *far, int port)
{
    int fd = tcp(5);
    if (name(fd, own, port, 1) == 0 && to(fd, far, ECHO) == 0 && asks(fd) == 0)
        puts("answered");
    fflush(stdout);
    if (getenv("HOLD"))
        pause();
    close(fd);
}

// Connects to the peer that another process is connected to from the same port.
static void twice(const char *own, const char *far, int port)
{
    int fd = tcp(5);
    if (name(fd, own, port, 1) == 0 && to(fd, far, ECHO) == 0)
        puts("connected");
    // And to another port.
    if (to(fd, far, SECOND) == 0 && asks(fd) == 0)
        puts("answered");
    close(fd);
}

// Connections wait while their listener does not accept; then all are answered.
static void backlog(const char *own, const char *far, int backlog)
{
    int many = -50, good = 0, told = control(far), fd = listener(own, 0, backlog), port = port_of(fd), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    printf("%d\n", epoll_wait(set, &event, 1, 50));
    send(told, &many, sizeof many, 0);
    send(told, &port, sizeof port, 0);
    usleep(300000);
    for (int i = 0; i < 50; i++)
        good += serves(fd) == 0;
    printf("%d answered\n", good);
    recv(told, &good, sizeof good, MSG_WAITALL);
    printf("%d have the answer\n", good);
}

// A listener closes and keeps a connection; from then on another process has the kernel socket of its port.
static void leaves(const char *own, const char *far, int port)
{
    int told = control(far), fd = listener(own, port, 5), good;
    char byte;
    send(told, &port, sizeof port, 0);
    int got = accept(fd, 0, 0);
    recv(got, &byte, 1, 0);
    close(fd);
    puts("closed");
    fflush(stdout);
    // The other process has the port by now.
    read(0, &byte, 1);
    send(got, &byte, 1, MSG_NOSIGNAL);
    recv(told, &good, sizeof good, MSG_WAITALL);
    printf("%d kept\n", good);
    send(told, &port, sizeof port, 0);
    recv(told, &good, sizeof good, MSG_WAITALL);
    printf("%d served by the other\n", good);
}

// The port of an ended connection that the peer has closed first is free, once the peer has acknowledged our FIN.
static void again(const char *own, const char *far)
{
    char byte;
    int fd = tcp(5), bound = -1;
    if (to(fd, far, SECOND) || asks(fd) || recv(fd, &byte, 1, 0) != 0)
        return;
    int port = port_of(fd);
    close(fd);
    struct sockaddr_in address = at(own, port);
    for (int i = 0; i < 200 && bound; i++) {
        usleep(10000);
        fd = tcp(5);
        bound = bind(fd, (void *)&address, sizeof address);
        if (bound)
            close(fd);
    }
    puts(bound == 0 && listen(fd, 5) == 0 ? "free" : "taken");
}

// Binds a port, listens, and waits for its input alone, not for the socket.
static void bound(const char *address, int port)
{
    char byte;
    listener(address, port, 5);
    puts("ready");
    fflush(stdout);
    read(0, &byte, 1);
}

// Serves a port, one connection after the other.
static void serve(const char *own, int port)
{
    int fd = listener(own, port, 5);
    puts("ready");
    fflush(stdout);
    while (serves(fd) == 0) {
    }
}

int main(int count, char **words)
{
    signal(SIGPIPE, SIG_IGN);
    if (count < 2 || !strcmp(words[1], "peer"))
        return peer();
    const char *own = words[2], *far = words[3], *what = words[1];
    int a = count > 4 ? atoi(words[4]) : 0, b = count > 5 ? atoi(words[5]) : 0;
    if (!strcmp(what, "zero"))
        zero(own, far, a);
    else if (!strcmp(what, "connects"))
        connects(own, far, a, b);
    else if (!strcmp(what, "listens"))
        listens(own, far, a, b);
    else if (!strcmp(what, "first"))
        first(own, a);
    else if (!strcmp(what, "from"))
        from(own, far, a);
    else if (!strcmp(what, "twice"))
        twice(own, far, a);
    else if (!strcmp(what, "backlog"))
        backlog(own, far, a);
    else if (!strcmp(what, "again"))
        again(own, far);
    else if (!strcmp(what, "bound"))
        bound(b ? "127.0.0.1" : own, a);
    else if (!strcmp(what, "leaves"))
        leaves(own, far, a);
    else
        serve(own, a);
    return 0;
}
