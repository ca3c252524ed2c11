/* Threads and child processes that wait for a socket before it is activated.
 *
 *   late PEER woken_when_activated|recv_before_bind|poll_before_bind|removed_while_activated|inherited|
 *             reserved_number|blocking_in_a_child|passed_over_exec|inherited_after_wait|shared_by_three|
 *             connected_in_a_child|cancelled_in_epoll|reported_once|reported_to_all|another_kind_added|
 *             listener_shut_down
 *
 * PEER echoes datagrams and bytes on port 7, as for `mixed.c`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in peer;
static int watched;

/* Seconds after which a thread should have been woken. */
enum { LONG = 20 };

static void *wait_in_epoll(void *unused)
{
    struct epoll_event event;
    int n = epoll_wait(watched, &event, 1, LONG * 1000);
    return (void *)(long)(n == 1 ? (int)event.data.u32 : -1);
}

/* Threads wait for an epoll instance without an activated socket; then one is added, and becomes readable. */
static void woken_when_activated(void)
{
    pthread_t threads[3];
    watched = epoll_create1(0);
    int nothing = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1};
    epoll_ctl(watched, EPOLL_CTL_ADD, nothing, &event);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, wait_in_epoll, NULL);
    /* Most likely all threads wait by now; in any case they must not sleep on. */
    usleep(100000);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
        perror("connect");
    event.data.u32 = 2;
    epoll_ctl(watched, EPOLL_CTL_ADD, fd, &event);
    send(fd, "x", 1, 0);
    for (int i = 0; i < 3; i++) {
        void *got;
        pthread_join(threads[i], &got);
        printf("epoll: %ld\n", (long)got);
    }
}

static void *wait_in_recv(void *socket)
{
    char text[16];
    struct timeval limit = {.tv_sec = LONG};
    setsockopt(*(int *)socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return (void *)recv(*(int *)socket, text, sizeof text, 0);
}

/* A thread waits in recv on a socket that has no port yet; another sends through it. */
static void recv_before_bind(void)
{
    pthread_t thread;
    void *got;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    pthread_create(&thread, NULL, wait_in_recv, &fd);
    usleep(100000);
    sendto(fd, "hello", 5, 0, (struct sockaddr *)&peer, sizeof peer);
    pthread_join(thread, &got);
    printf("recv: %ld\n", (long)got);
}

static void *wait_in_poll(void *socket)
{
    struct pollfd fd = {.fd = *(int *)socket, .events = POLLIN};
    return (void *)(long)(poll(&fd, 1, LONG * 1000) == 1 ? fd.revents : -1);
}

static void *wait_in_select(void *socket)
{
    fd_set set;
    struct timeval limit = {.tv_sec = LONG};
    FD_ZERO(&set);
    FD_SET(*(int *)socket, &set);
    return (void *)(long)select(*(int *)socket + 1, &set, NULL, NULL, &limit);
}

/* The same in poll or select, on a non-blocking socket. */
static void poll_before_bind(void)
{
    void *(*ways[])(void *) = {wait_in_poll, wait_in_select};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        void *got;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        pthread_create(&thread, NULL, ways[i], &fd);
        usleep(100000);
        sendto(fd, "hello", 5, 0, (struct sockaddr *)&peer, sizeof peer);
        pthread_join(thread, &got);
        printf("%s: %ld\n", i ? "select" : "poll", (long)got);
    }
}

static int bound(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (bind(fd, (struct sockaddr *)&any, sizeof any))
        perror("bind");
    return fd;
}

static int control(int set, int operation, int fd, int data)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = data};
    return epoll_ctl(set, operation, fd, &event) ? errno : 0;
}

static void *send_one(void *socket)
{
    sendto(*(int *)socket, "hello", 5, 0, (struct sockaddr *)&peer, sizeof peer);
    return NULL;
}

/* Sends through a socket and waits for the echo. */
static void have_echo(int fd)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    send_one(&fd);
    poll(&readable, 1, LONG * 1000);
}

static double micros(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

/* A socket is removed from sets, or modified there, while it is activated. With many sets this takes long; activation
 * begins with the first set. */
static void removed_while_activated(void)
{
    enum { ROUNDS = 30, SETS = 200, APART = 20 };
    int failed = 0, told = 0, wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int sets[SETS], fd = socket(AF_INET, SOCK_DGRAM, 0), changes = round % 2;
        pthread_t thread;
        struct epoll_event event;
        for (int i = 0; i < SETS; i++) {
            sets[i] = epoll_create1(0);
            control(sets[i], EPOLL_CTL_ADD, fd, 1);
        }
        pthread_create(&thread, NULL, send_one, &fd);
        double begun = micros();
        for (int i = SETS - 1; i >= 0; i--) {
            while (micros() - begun < (SETS - i) * APART)
                ;
            failed += control(sets[i], changes ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, fd, 2) != 0;
        }
        pthread_join(thread, NULL);
        have_echo(fd);
        for (int i = 0; i < SETS; i++) {
            int n = epoll_wait(sets[i], &event, 1, 0);
            told += n != changes;
            wrong += n == 1 && event.data.u32 != 2;
            close(sets[i]);
        }
        close(fd);
    }
    printf("failed %d, told otherwise %d, of the old %d\n", failed, told, wrong);
}

/* A child modifies and removes inherited members, before it waits for them. */
static void inherited(void)
{
    for (int lives = 0; lives < 2; lives++) {
        int fd = bound(), other = bound(), set = epoll_create1(0), status = 0;
        control(set, EPOLL_CTL_ADD, fd, 1);
        control(set, EPOLL_CTL_ADD, other, 1);
        fflush(stdout);
        if (!fork()) {
            struct epoll_event events[2];
            if (lives) {
                have_echo(fd);
                have_echo(other);
            }
            printf("add %d, ", control(set, EPOLL_CTL_ADD, fd, 2));
            printf("mod %d, ", control(set, EPOLL_CTL_MOD, fd, 2));
            printf("del %d, ", control(set, EPOLL_CTL_DEL, other, 2));
            printf("again %d, ", control(set, EPOLL_CTL_DEL, other, 2));
            have_echo(fd);
            have_echo(other);
            int n = epoll_wait(set, events, 2, 0);
            printf("events %d, data %d\n", n, n > 0 ? (int)events[0].data.u32 : 0);
            fflush(stdout);
            _exit(0);
        }
        wait(&status);
        printf("parent: status %d, del %d, %d\n", status, control(set, EPOLL_CTL_DEL, fd, 0),
               control(set, EPOLL_CTL_DEL, other, 0));
    }
}

static void *wait_in_accept(void *listener)
{
    return (void *)(long)accept(*(int *)listener, NULL, NULL);
}

static pthread_barrier_t turn;
static int state_of_acceptor;

/* Opens a file about itself, and later waits in accept. */
static void *wait_in_accept_later(void *listener)
{
    state_of_acceptor = open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    return wait_in_accept(listener);
}

/* Until that thread sleeps in accept. For a moment it may sleep before; if it polls for ever, not for long. */
static void until_it_accepts(void)
{
    double begun = micros();
    for (int asleep = 0; asleep < 20 && micros() - begun < 2e6; usleep(10000)) {
        char text[512] = "", state = 0;
        pread(state_of_acceptor, text, sizeof text - 1, 0);
        sscanf(text, "%*d %*s %c", &state);
        asleep = state == 'S' ? asleep + 1 : 0;
    }
}

/* While accept waits, the descriptor number that it will return is free neither in the program nor in a child. */
static void reserved_number(void)
{
    static const char list[] = "ls -l /proc/self/fd | grep -c socket:";
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(7778)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 8))
        perror("listen");
    /* This activates the listener, which may take longer than the thread below is given. */
    struct pollfd no_connection = {.fd = listener, .events = POLLIN};
    poll(&no_connection, 1, 1);
    pthread_barrier_init(&turn, NULL, 2);
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        void *got;
        pthread_create(&thread, NULL, wait_in_accept_later, &listener);
        pthread_barrier_wait(&turn);
        int number = dup(0), status;
        close(number);
        /* It is over after all that is done while accept waits. */
        struct timeval limit = {.tv_sec = round ? 0 : 6};
        setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        /* In round 2 the connection comes over loopback, so it is the kernel's. */
        int asker = round ? socket(AF_INET, SOCK_STREAM, 0) : -1;
        struct sockaddr_in to = here;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        number += round > 0;
        if (round == 1 && connect(asker, (struct sockaddr *)&peer, sizeof peer))
            perror("connect");
        pthread_barrier_wait(&turn);
        until_it_accepts();
        printf("dup2: %d, ", dup2(0, number) < 0 ? errno : 0);
        fflush(stdout);
        if (!fork()) {
            int flags = fcntl(number, F_GETFD);
            _exit(flags < 0 ? errno : 0);
        }
        wait(&status);
        printf("in a child: %d, over exec: ", WEXITSTATUS(status));
        fflush(stdout);
        system(list);
        if (round == 1)
            send(asker, "c7778\n", 6, 0);
        if (round == 2)
            connect(asker, (struct sockaddr *)&to, sizeof to);
        pthread_join(thread, &got);
        printf("accepted: %s, ", (long)got == number ? "its number" : "nothing");
        printf("flags %d, over exec: ", (long)got < 0 ? 0 : fcntl((long)got, F_GETFD));
        fflush(stdout);
        system(list);
        if ((long)got >= 0)
            printf("closed: %d\n", close((long)got));
        else
            printf("free: %d\n", dup2(0, number) == number && !close(number));
        close(asker);
        close(state_of_acceptor);
    }
}

/* A child in which the parent's listener is not activated makes it blocking, and another program takes a connection
 * that was reported to the parent. The parent still accepts later connections. */
static void blocking_in_a_child(const char *program)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(7779)}, to = here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, off = 0, go[2], status;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 8) || pipe(go))
        perror("listen");
    struct pollfd heard = {.fd = listener, .events = POLLIN};
    printf("no connection: %d\n", poll(&heard, 1, 1));
    fflush(stdout);
    if (!fork()) {
        char byte, fd[12];
        fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) & ~O_NONBLOCK);
        ioctl(listener, FIONBIO, &off);
        read(go[0], &byte, 1);
        printf("does not block: %d\n", !!(fcntl(listener, F_GETFL) & O_NONBLOCK));
        fflush(stdout);
        snprintf(fd, sizeof fd, "%d", listener);
        execl(program, program, fd, "accepts", NULL);
        _exit(9);
    }
    int asker = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
    usleep(200000);
    if (connect(other, (struct sockaddr *)&to, sizeof to))
        perror("connect");
    printf("heard: %d\n", poll(&heard, 1, LONG * 1000));
    fflush(stdout);
    write(go[1], "!", 1);
    wait(&status);
    pthread_t thread;
    void *got;
    pthread_create(&thread, NULL, wait_in_accept, &listener);
    usleep(200000);
    alarm(LONG);
    if (connect(asker, (struct sockaddr *)&peer, sizeof peer))
        perror("connect");
    send(asker, "c7779\n", 6, 0);
    pthread_join(thread, &got);
    printf("the parent's: %d\n", (long)got >= 0);
}

/* Another program inherits a listener that was activated here: whether it blocks there is as it was set here. */
static void passed_over_exec(const char *program)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(7780)}, to = here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, status;
    char fd[12];
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 8))
        perror("listen");
    struct pollfd heard = {.fd = listener, .events = POLLIN};
    printf("no connection: %d\n", poll(&heard, 1, 1));
    snprintf(fd, sizeof fd, "%d", listener);
    for (int blocks = 1; blocks >= 0; blocks--) {
        fcntl(listener, F_SETFL, blocks ? 0 : O_NONBLOCK);
        printf("blocks: %d\n", !(fcntl(listener, F_GETFL) & O_NONBLOCK));
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            /* Also in the other program. */
            alarm(LONG);
            execl(program, program, fd, "accepts", NULL);
            _exit(9);
        }
        int asker = -1;
        if (blocks) {
            /* Most likely it waits by now, if it does. */
            usleep(300000);
            asker = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(asker, (struct sockaddr *)&to, sizeof to))
                perror("connect");
        }
        waitpid(child, &status, 0);
        close(asker);
    }
}

/* As inherited, but the parent has waited for the socket, so it is no longer in the kernel's instance. */
static void inherited_after_wait(void)
{
    int fd = bound(), set = epoll_create1(0), status;
    struct epoll_event event, odd = {.events = EPOLLIN | EPOLLPRI | EPOLLEXCLUSIVE};
    control(set, EPOLL_CTL_ADD, fd, 1);
    have_echo(fd);
    printf("events %d\n", epoll_wait(set, &event, 1, LONG * 1000));
    fflush(stdout);
    if (!fork()) {
        printf("add %d, ", control(set, EPOLL_CTL_ADD, fd, 2));
        printf("add %d, ", epoll_ctl(set, EPOLL_CTL_ADD, fd, &odd) ? errno : 0);
        printf("mod %d, ", control(set, EPOLL_CTL_MOD, fd, 2));
        printf("del %d, ", control(set, EPOLL_CTL_DEL, fd, 2));
        printf("again %d, ", control(set, EPOLL_CTL_DEL, fd, 2));
        printf("add %d, ", control(set, EPOLL_CTL_ADD, fd, 2));
        printf("add %d\n", control(set, EPOLL_CTL_ADD, fd, 2));
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    printf("parent: status %d, del %d\n", status, control(set, EPOLL_CTL_DEL, fd, 0));
}

/* A companion is in an instance of a parent, its child and its grandchild: each can modify and remove it. */
static void shared_by_three(void)
{
    int fd = bound(), set = epoll_create1(0), go[2], status;
    char byte;
    struct epoll_event event;
    pipe(go);
    control(set, EPOLL_CTL_ADD, fd, 1);
    fflush(stdout);
    if (!fork()) {
        have_echo(fd);
        if (!fork()) {
            printf("mod %d, ", control(set, EPOLL_CTL_MOD, fd, 2));
            printf("del %d\n", control(set, EPOLL_CTL_DEL, fd, 2));
            fflush(stdout);
            _exit(0);
        }
        wait(&status);
        _exit(0);
    }
    wait(&status);
    printf("status %d, parent: del %d\n", status, control(set, EPOLL_CTL_DEL, fd, 0));

    /* Here the parent activates it. */
    control(set, EPOLL_CTL_ADD, fd, 1);
    fflush(stdout);
    if (!fork()) {
        read(go[0], &byte, 1);
        printf("child: mod %d, ", control(set, EPOLL_CTL_MOD, fd, 2));
        printf("del %d\n", control(set, EPOLL_CTL_DEL, fd, 2));
        fflush(stdout);
        _exit(0);
    }
    have_echo(fd);
    write(go[1], "!", 1);
    wait(&status);
}

/* A socket that a child connects is one member of its set, reported as a connection only. */
static void connected_in_a_child(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), status;
    struct epoll_event event;
    control(set, EPOLL_CTL_ADD, fd, 1);
    fflush(stdout);
    if (!fork()) {
        if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
            perror("connect");
        printf("events %d, ", epoll_wait(set, &event, 1, 50));
        send(fd, "x", 1, 0);
        int n = epoll_wait(set, &event, 1, LONG * 1000);
        printf("events %d: %x, ", n, n == 1 ? event.events : 0);
        printf("mod %d, ", control(set, EPOLL_CTL_MOD, fd, 2));
        printf("del %d\n", control(set, EPOLL_CTL_DEL, fd, 2));
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    printf("status %d\n", status);
}

/* A non-blocking listener, on this port of all addresses. */
static int listening(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&here, sizeof here) || listen(fd, 8))
        perror("listen");
    return fd;
}

/* A connection to it over loopback, or from the peer. */
static void request_connection(int port, int loopback)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int asker = socket(AF_INET, SOCK_STREAM, 0);
    char order[12];
    if (connect(asker, (struct sockaddr *)(loopback ? &to : &peer), sizeof to))
        perror("connect");
    if (!loopback)
        send(asker, order, snprintf(order, sizeof order, "c%d\n", port), 0);
}

/* What the set reports of one connection to its listener, before and after it is accepted. */
static void report(int set, int listener)
{
    struct epoll_event events[2];
    int n = epoll_wait(set, events, 2, LONG * 1000);
    printf("events %d, accepted %d, ", n, accept(listener, NULL, NULL) >= 0);
    printf("events %d\n", epoll_wait(set, events, 2, 50));
    fflush(stdout);
}

/* A child activates the listener: the set that it shares with its parent reports each connection once. */
static void reported_once(void)
{
    for (int edge = 0; edge < 2; edge++) {
        int port = 7781 + edge, listener = listening(port), set = epoll_create1(0), status;
        struct epoll_event event = {.events = EPOLLIN | (edge ? EPOLLET : 0)};
        epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
        if (!fork()) {
            printf("no connection: %d\n", epoll_wait(set, &event, 1, 0));
            for (int round = 0; round < 20; round++) {
                request_connection(port, round % 2);
                report(set, listener);
            }
            _exit(0);
        }
        wait(&status);
        printf("status %d\n", status);
        close(listener);
        close(set);
    }
}

/* The parent activates the listener: connections over loopback are still reported, to a child and to the parent. */
static void reported_to_all(const char *program)
{
    int listener = listening(7783), set = epoll_create1(0), go[2], status;
    struct epoll_event event;
    char fd[12], shared[12], byte;
    control(set, EPOLL_CTL_ADD, listener, 1);
    if (pipe(go))
        perror("pipe");
    if (!fork()) {
        read(go[0], &byte, 1);
        snprintf(fd, sizeof fd, "%d", listener);
        snprintf(shared, sizeof shared, "%d", set);
        execl(program, program, fd, "reports", shared, NULL);
        _exit(9);
    }
    printf("no connection: %d\n", epoll_wait(set, &event, 1, 0));
    fflush(stdout);
    write(go[1], "!", 1);
    request_connection(7783, 1);
    wait(&status);
    printf("status %d\n", status);
    for (int round = 0; round < 20; round++) {
        request_connection(7783, round % 2);
        report(set, listener);
    }
}

static void *wait_and_count(void *unused)
{
    struct epoll_event event;
    struct timespec time;
    int n = epoll_wait(watched, &event, 1, 500);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    printf("events %d, at rest: %d\n", n, time.tv_sec == 0 && time.tv_nsec < 100000000);
    return NULL;
}

/* Threads that wait for a set without an activated socket are cancelled; then one is added, and other threads wait. */
static void cancelled_in_epoll(void)
{
    pthread_t threads[3];
    watched = epoll_create1(0);
    int nothing = eventfd(0, 0);
    control(watched, EPOLL_CTL_ADD, nothing, 1);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, wait_in_epoll, NULL);
    usleep(100000);
    for (int i = 0; i < 3; i++) {
        void *got;
        pthread_cancel(threads[i]);
        pthread_join(threads[i], &got);
        printf("cancelled: %d\n", got == PTHREAD_CANCELED);
    }
    pthread_create(&threads[0], NULL, wait_and_count, NULL);
    usleep(100000);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
        perror("connect");
    control(watched, EPOLL_CTL_ADD, fd, 2);
    pthread_join(threads[0], NULL);
    pthread_create(&threads[0], NULL, wait_and_count, NULL);
    pthread_join(threads[0], NULL);
}

static int added;

static void *add_later(void *unused)
{
    usleep(200000);
    control(watched, EPOLL_CTL_ADD, added, 7);
    return unused;
}

/* While threads wait in an instance with nothing but sockets, a descriptor of another kind is added. */
static void another_kind_added(void)
{
    for (int how = 0; how < 3; how++) {
        struct epoll_event event = {0};
        struct pollfd one = {.events = POLLIN};
        fd_set set;
        pthread_t thread;
        int n = 0, listener = listening(7040 + how);
        one.fd = watched = epoll_create1(0);
        added = eventfd(1, 0);
        control(watched, EPOLL_CTL_ADD, listener, 1);
        /* This activates the listener. */
        epoll_wait(watched, &event, 1, 10);
        pthread_create(&thread, NULL, add_later, NULL);
        FD_ZERO(&set);
        FD_SET(watched, &set);
        if (how == 1)
            poll(&one, 1, LONG * 1000);
        if (how == 2)
            select(watched + 1, &set, NULL, NULL, NULL);
        n = epoll_wait(watched, &event, 1, how ? 0 : LONG * 1000);
        printf("%d event, data %d\n", n, (int)event.data.u64);
        pthread_join(thread, NULL);
    }
}

static int shut_how, shut_result;

static void *shut_down_later(void *listener)
{
    usleep(200000);
    shut_result = shutdown((int)(long)listener, shut_how);
    return NULL;
}

/* While a thread waits for a listener, another one shuts it down. */
static void listener_shut_down(void)
{
    for (int how = 0; how < 4; how++) {
        struct pollfd one = {.fd = listening(7060 + how), .events = POLLIN};
        pthread_t thread;
        poll(&one, 1, 10);
        shut_how = how % 2 ? SHUT_RDWR : SHUT_RD;
        pthread_create(&thread, NULL, shut_down_later, (void *)(long)one.fd);
        for (int i = 0; i < 3; i++) {
            int n = poll(&one, 1, i ? 0 : LONG * 1000);
            if (i == 1)
                pthread_join(thread, NULL);
            printf("%d event, %#x\n", n, one.revents);
        }
        printf("shutdown %d\n", shut_result);
        close(one.fd);
    }
    for (int how = 0; how < 6; how++) {
        int listener = listening(7050 + how), flags[] = {0, EPOLLET, EPOLLONESHOT};
        struct epoll_event event = {.events = EPOLLIN | flags[how / 2]};
        pthread_t thread;
        watched = epoll_create1(0);
        epoll_ctl(watched, EPOLL_CTL_ADD, listener, &event);
        epoll_wait(watched, &event, 1, 10);
        shut_how = how % 2 ? SHUT_RDWR : SHUT_RD;
        pthread_create(&thread, NULL, shut_down_later, (void *)(long)listener);
        for (int i = 0; i < 3; i++) {
            event.events = 0;
            int n = epoll_wait(watched, &event, 1, i ? 300 : LONG * 1000);
            if (!i)
                pthread_join(thread, NULL);
            printf("%d event, %#x\n", n, event.events);
        }
        printf("shutdown %d, accept %d\n", shut_result, accept(listener, NULL, NULL));
        /* It may listen again. */
        printf("listen %d\n", listen(listener, 5));
        close(listener);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7)};
    inet_pton(AF_INET, argv[1], &peer.sin_addr);
    if (!strcmp(argv[2], "woken_when_activated"))
        woken_when_activated();
    else if (!strcmp(argv[2], "recv_before_bind"))
        recv_before_bind();
    else if (!strcmp(argv[2], "removed_while_activated"))
        removed_while_activated();
    else if (!strcmp(argv[2], "inherited"))
        inherited();
    else if (!strcmp(argv[2], "reserved_number"))
        reserved_number();
    else if (!strcmp(argv[2], "blocking_in_a_child"))
        blocking_in_a_child(argv[0]);
    else if (!strcmp(argv[2], "inherited_after_wait"))
        inherited_after_wait();
    else if (!strcmp(argv[2], "shared_by_three"))
        shared_by_three();
    else if (!strcmp(argv[2], "passed_over_exec"))
        passed_over_exec(argv[0]);
    else if (!strcmp(argv[2], "cancelled_in_epoll"))
        cancelled_in_epoll();
    else if (!strcmp(argv[2], "connected_in_a_child"))
        connected_in_a_child();
    else if (!strcmp(argv[2], "reported_once"))
        reported_once();
    else if (!strcmp(argv[2], "reported_to_all"))
        reported_to_all(argv[0]);
    else if (!strcmp(argv[2], "another_kind_added"))
        another_kind_added();
    else if (!strcmp(argv[2], "listener_shut_down"))
        listener_shut_down();
    else if (!strcmp(argv[2], "reports"))
        report(atoi(argv[3]), atoi(argv[1]));
    else if (!strcmp(argv[2], "accepts"))
        printf("the child's: %d\n", accept(atoi(argv[1]), NULL, NULL) >= 0);
    else
        poll_before_bind();
    return 0;
}
