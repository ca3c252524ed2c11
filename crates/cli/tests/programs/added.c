/* A thread waits in an epoll instance; then a listener is made and added to it. Echoes at PORT; prints "ready" when it
 * listens.
 *   added PORT listened|added [poll|select]    the listener is added after listen, or before; the thread waits for the
 *                                              instance by that call */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static int epoll, listener;
static const char *by = "";

static void wait_for_instance(void)
{
    struct pollfd one = {.fd = epoll, .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(epoll, &set);
    if (!strcmp(by, "poll"))
        poll(&one, 1, -1);
    if (!strcmp(by, "select"))
        select(epoll + 1, &set, NULL, NULL, NULL);
}

static void add(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        exit(3);
}

static volatile int waiter;

static int is_asleep(void)
{
    char path[64], state = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", waiter);
    file = fopen(path, "r");
    if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
        state = 0;
    if (file)
        fclose(file);
    return state == 'S';
}

static void *serve(void *unused)
{
    waiter = gettid();
    for (;;) {
        struct epoll_event event;
        char bytes[4096];
        ssize_t came;
        wait_for_instance();
        if (epoll_wait(epoll, &event, 1, *by ? 0 : -1) != 1)
            continue;
        if (event.data.fd == listener && !(event.events & EPOLLIN)) {
            /* It does not listen yet: accept might block. */
            usleep(1000);
            continue;
        }
        if (event.data.fd == listener) {
            int accepted = accept(listener, NULL, NULL);
            if (accepted >= 0)
                add(accepted);
            continue;
        }
        came = read(event.data.fd, bytes, sizeof bytes);
        if (came <= 0 || write(event.data.fd, bytes, came) != came)
            close(event.data.fd);
    }
    return unused;
}

int main(int argc, char **argv)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int before = !strcmp(argv[2], "added"), on = 1;
    pthread_t thread;
    if (argc > 3)
        by = argv[3];
    epoll = epoll_create1(0);
    pthread_create(&thread, NULL, serve, NULL);
    while (!is_asleep())
        usleep(1000);
    /* It may have slept for another reason. */
    usleep(200 * 1000);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&here, sizeof here))
        return 4;
    if (before)
        add(listener);
    if (listen(listener, 9))
        return 5;
    if (!before)
        add(listener);
    puts("ready");
    fflush(stdout);
    pthread_join(thread, NULL);
}
