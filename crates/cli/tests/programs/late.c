/* Threads that wait before the socket they wait for comes to life.
 *
 *   late PEER called_out|unnamed|unnamed_polled
 *
 * PEER echoes datagrams and bytes on port 7, as for `mixed.c`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in peer;
static int watched;

/* Seconds after which a thread that should have been woken has not been. */
enum { LONG = 20 };

static void *wait_in_epoll(void *unused)
{
    struct epoll_event event;
    int n = epoll_wait(watched, &event, 1, LONG * 1000);
    return (void *)(long)(n == 1 ? (int)event.data.u32 : -1);
}

/* Threads wait for an epoll instance without a socket that lives; then it is given one, which becomes readable. */
static void called_out(void)
{
    pthread_t threads[3];
    watched = epoll_create1(0);
    int nothing = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1};
    epoll_ctl(watched, EPOLL_CTL_ADD, nothing, &event);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, wait_in_epoll, NULL);
    /* However long it takes them: what they must not do is sleep on. */
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

/* A thread waits in recv on a socket that has no port yet; another sends by it. */
static void unnamed(void)
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

/* As unnamed, but it waits in poll or select; the socket does not block. */
static void unnamed_polled(void)
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

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7)};
    inet_pton(AF_INET, argv[1], &peer.sin_addr);
    if (!strcmp(argv[2], "called_out"))
        called_out();
    else if (!strcmp(argv[2], "unnamed"))
        unnamed();
    else
        unnamed_polled();
    return 0;
}
