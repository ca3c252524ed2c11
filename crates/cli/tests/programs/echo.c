/* A server that waits in receive calls: echoes TCP, a thread per connection, on the given port.
 *
 *   echo PORT [nodump] [fork] [more N]
 *
 * nodump: not dumpable. fork: a child serves, for at most 20 s; a line on standard input ends the parent.
 * more N: opens N UDP sockets, prints "ready" and ends after 20 ms. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void *echo(void *connection)
{
    int fd = (int)(long)connection, on = 1;
    char data[4096];
    ssize_t n;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while ((n = recv(fd, data, sizeof data, 0)) > 0)
        if (send(fd, data, n, MSG_NOSIGNAL) != n)
            break;
    close(fd);
    return NULL;
}

static void serve(int listener)
{
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;

        if (fd < 0 || pthread_create(&thread, NULL, echo, (void *)(long)fd))
            exit(1);
        pthread_detach(thread);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = INADDR_ANY };
    int on = 1, forks = 0, listener = socket(AF_INET, SOCK_STREAM, 0);

    if (argc < 2)
        return 2;
    address.sin_port = htons(atoi(argv[1]));
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "nodump"))
            prctl(PR_SET_DUMPABLE, 0);
        if (!strcmp(argv[i], "fork"))
            forks = 1;
        if (!strcmp(argv[i], "more")) {
            for (int n = atoi(argv[i + 1]); n > 0; n--)
                socket(AF_INET, SOCK_DGRAM, 0);
            puts("ready");
            fflush(stdout);
            usleep(20000);
            return 0;
        }
    }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 16)) {
        perror("listen");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    if (forks && fork() != 0) {
        getchar();
        return 0;
    }
    if (forks)
        alarm(20);
    serve(listener);
}
