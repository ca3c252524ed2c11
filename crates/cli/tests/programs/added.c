/* A thread waits in an epoll instance; then a listener is made and added to it. Echoes at PORT; prints "ready" when it
 * listens.
 *   added PORT listened|added    the listener is added after listen, or before */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int epoll, listener;

static void add(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        exit(3);
}

static void *serve(void *unused)
{
    for (;;) {
        struct epoll_event event;
        char bytes[4096];
        ssize_t came;
        if (epoll_wait(epoll, &event, 1, -1) != 1)
            continue;
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
    epoll = epoll_create1(0);
    pthread_create(&thread, NULL, serve, NULL);
    /* Time for the thread to begin to wait. */
    usleep(300 * 1000);
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
    (void)argc;
}
