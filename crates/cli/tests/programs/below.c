/* Sockets used by other means than the C library's socket functions: by stdio, by system call numbers, in threads that
 * are cancelled, in calls that a handler leaves by longjmp.
 *
 *   below PEER streams|numbers|cancelled|jumped
 *
 * PEER does on port 7 what it does for `mixed.c`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in peer;

/* A connection to the peer. An answer that takes longer than this timeout will not come. */
static int connected(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
        perror("connect");
    return fd;
}

static int echoes(int fd)
{
    char c = 'e';
    return send(fd, &c, 1, 0) == 1 && recv(fd, &c, 1, 0) == 1 && c == 'e';
}

/* A connection from the peer, with the lowest number. The peer reads further `orders` only when this connection
 * ends. */
static int called(int orders)
{
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&own, &len);
    char text[16];
    send(orders, text, snprintf(text, sizeof text, "c%d\n", ntohs(own.sin_port)), 0);
    int fd = accept(listener, NULL, NULL);
    dup2(fd, listener);
    close(fd);
    printf("hello: %zd\n", recv(listener, text, 5, MSG_WAITALL));
    return listener;
}

/* fclose closes the stream's connection, and the next file gets the number. */
static void streams(void)
{
    int orders = connected(), fd = called(orders);
    printf("fclose: %d\n", fclose(fdopen(fd, "r+")));
    printf("the peer sees the end: %d\n", echoes(orders));
    int file = open("/dev/zero", O_RDWR);
    char c = 1;
    printf("same number: %d\n", file == fd);
    printf("its own bytes: %zd %d\n", read(file, &c, 1), c);
    printf("written: %zd, closed: %d\n", write(file, &c, 1), close(file));

    fd = called(orders);
    FILE *stream = freopen("/dev/zero", "r", fdopen(fd, "r+"));
    printf("freopen: %d, same number: %d\n", fgetc(stream), fileno(stream) == fd);
    printf("the peer sees the end: %d\n", echoes(orders));
    printf("a read: %zd, fclose: %d\n", read(fd, &c, 1), fclose(stream));
}

/* The calls that have different forms in the kernel and in the C library. */
static void waits(const char *when, int fd, int set)
{
    unsigned long mask[2] = {0, ~0ul};
    struct { void *mask; size_t size; } sized = {mask, 8};
    struct timespec limit = {0, 1000000};
    struct pollfd polled = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set in;

    printf("%s\n", when);
    mask[0] = 1ul << (SIGUSR1 - 1);
    printf("ppoll: %ld", syscall(SYS_ppoll, &polled, 1, &limit, mask, 8));
    printf(" %d\n", polled.revents);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    limit = (struct timespec){0, 1000000};
    printf("pselect6: %ld", syscall(SYS_pselect6, fd + 1, &in, NULL, NULL, &limit, &sized));
    printf(" %d\n", FD_ISSET(fd, &in) != 0);
#ifdef SYS_select
    struct timeval time = {0, 1000};
    FD_ZERO(&in);
    FD_SET(fd, &in);
    printf("select: %ld", syscall(SYS_select, fd + 1, &in, NULL, NULL, &time));
    printf(" %d\n", FD_ISSET(fd, &in) != 0);
#endif
    printf("epoll_pwait: %ld\n", syscall(SYS_epoll_pwait, set, &event, 1, 1, mask, 8));
    limit = (struct timespec){0, 1000000};
    printf("epoll_pwait2: %ld\n", syscall(SYS_epoll_pwait2, set, &event, 1, &limit, NULL, 0));
    printf("a mask of another size: %ld\n", syscall(SYS_ppoll, &polled, 1, NULL, mask, 4));
}

static void numbers(void)
{
    char text[3] = "xyz";
    struct iovec piece = {text, 3};
    int fd = connected(), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    /* What the library opens for itself takes no number of the program's. */
    int outer = epoll_create1(0);
    epoll_ctl(outer, EPOLL_CTL_ADD, set, &event);
    int next = dup(0);
    printf("the numbers: %d %d %d\n", set, outer, next);
    close(next);
    close(outer);
    waits("nothing is there", fd, set);
    printf("pwritev2: %ld\n", syscall(SYS_pwritev2, fd, &piece, 1, -1L, -1L, 0));
    for (int there = 0; there < 3; usleep(1000))
        ioctl(fd, FIONREAD, &there);
    waits("something is there", fd, set);
    memset(text, 0, 3);
    printf("preadv2: %ld", syscall(SYS_preadv2, fd, &piece, 1, -1L, -1L, 0));
    printf(" %.3s\n", text);
    printf("at a place: %ld\n", syscall(SYS_preadv2, fd, &piece, 1, 0L, 0L, 0));
}

static int shared;
static int cleaned;

static void clean(void *unused)
{
    cleaned++;
}

static void *receive(void *unused)
{
    char c;
    pthread_cleanup_push(clean, NULL);
    recv(shared, &c, 1, 0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *wait_in_poll(void *unused)
{
    struct pollfd polled = {shared, POLLIN, 0};
    poll(&polled, 1, -1);
    return NULL;
}

static void *busy(void *unused)
{
    char c;
    for (;;)
        recv(shared, &c, 1, MSG_DONTWAIT);
    return NULL;
}

static void *unwilling(void *unused)
{
    char c = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    ssize_t n = recv(shared, &c, 1, 0);
    printf("not to be cancelled: %zd %c\n", n, c);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    return NULL;
}

static void *pausing(void *unused)
{
    pause();
    return NULL;
}

static void *receive_one(void *unused)
{
    char c = 0;
    ssize_t n = recv(shared, &c, 1, 0);
    printf("received: %zd %c\n", n, c);
    return NULL;
}

static void cancel(const char *what, void *(*body)(void *), int moment, const char *afterwards)
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, body, NULL);
    usleep(moment);
    pthread_cancel(thread);
    if (afterwards)
        send(shared, afterwards, 1, 0);
    pthread_join(thread, &result);
    printf("%s: %d\n", what, result == PTHREAD_CANCELED);
}

static void cancelled(void)
{
    shared = connected();
    struct timeval none = {0};
    setsockopt(shared, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    cancel("a thread in recv", receive, 100000, NULL);
    cancel("a thread that has just begun", receive, 0, NULL);
    cancel("a thread in poll", wait_in_poll, 100000, NULL);
    cancel("a thread that does not sleep", busy, 10000, NULL);
    cancel("a thread that has disabled it", unwilling, 100000, "u");
    /* Most likely the next thread has the same pthread_t as the last one. */
    cancel("a thread in pause", pausing, 100000, NULL);
    pthread_t next;
    pthread_create(&next, NULL, receive_one, NULL);
    usleep(100000);
    send(shared, "n", 1, 0);
    pthread_join(next, NULL);
    printf("cleaned up: %d, another one receives: %d\n", cleaned > 0, echoes(shared));
}

static sigjmp_buf out;

static void jump(int signal)
{
    siglongjmp(out, 1);
}

static void wait_in_accept(int fd) { accept(fd, NULL, NULL); }
static void wait_in_recv(int fd) { recv(fd, (char[1]){0}, 1, 0); }
static void wait_in_waitall(int fd) { recv(fd, (char[9]){0}, 9, MSG_WAITALL); }
static void wait_in_select(int fd)
{
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    select(fd + 1, &in, NULL, NULL, NULL);
}
static void wait_in_ppoll(int fd)
{
    sigset_t none;
    sigemptyset(&none);
    ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, NULL, &none);
}

/* Waits for `fd`; a handler jumps out of the wait. With SA_RESTART in `flags` the call would otherwise be restarted. */
static void jump_out(void (*wait)(int), int fd, int flags)
{
    struct sigaction action = {.sa_handler = jump, .sa_flags = flags};
    struct itimerval soon = {.it_value.tv_usec = 100000};
    sigaction(SIGALRM, &action, NULL);
    if (!sigsetjmp(out, 1)) {
        setitimer(ITIMER_REAL, &soon, NULL);
        wait(fd);
        puts("not jumped");
    }
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    printf("jumped, blocked: %d; ", sigismember(&now, SIGALRM));
}

/* A call that is left by longjmp releases what it held: the socket can be closed. */
static void jumped(void)
{
    void (*ways[])(int) = {wait_in_recv, wait_in_waitall, wait_in_select, wait_in_ppoll};
    int orders = connected();
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        for (int i = 0; i < 4; i++) {
            int fd = called(orders);
            sigset_t blocked;
            sigemptyset(&blocked);
            sigaddset(&blocked, SIGALRM);
            if (ways[i] == wait_in_ppoll)
                sigprocmask(SIG_BLOCK, &blocked, NULL);
            jump_out(ways[i], fd, flags);
            sigprocmask(SIG_UNBLOCK, &blocked, NULL);
            printf("close %d, ", close(fd));
            int seen = echoes(orders);
            printf("the peer sees the end: %d\n", seen);
            if (!seen)
                return;
        }
        struct sockaddr_in own = {.sin_family = AF_INET};
        socklen_t len = sizeof own;
        int listener = socket(AF_INET, SOCK_STREAM, 0), number = dup(0);
        listen(listener, 1);
        getsockname(listener, (struct sockaddr *)&own, &len);
        close(number);
        jump_out(wait_in_accept, listener, flags);
        printf("its number is free: %d, ", dup2(0, number) == number && !close(number));
        printf("close %d, ", close(listener));
        listener = socket(AF_INET, SOCK_STREAM, 0);
        printf("so is the port: %d\n", !bind(listener, (struct sockaddr *)&own, len) && !listen(listener, 1));
        close(listener);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7)};
    inet_pton(AF_INET, argv[1], &peer.sin_addr);
    if (!strcmp(argv[2], "streams"))
        streams();
    else if (!strcmp(argv[2], "cancelled"))
        cancelled();
    else if (!strcmp(argv[2], "jumped"))
        jumped();
    else
        numbers();
    return 0;
}
