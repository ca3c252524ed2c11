/* Sockets used through io_uring.
 *
 *   rings PORT accepts      echoes at PORT: accepts, receives and sends through the ring
 *   rings PORT epoll_ctl    echoes at PORT by epoll, whose members it adds through the ring, as libuv does
 *   rings PORT connects PEER    connects by connect(2), sends and receives through the ring; 0 if it was echoed */
#include <arpa/inet.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static struct io_uring ring;

static int done(struct io_uring_sqe *unused)
{
    struct io_uring_cqe *event;
    int result;
    (void)unused;
    io_uring_submit(&ring);
    io_uring_wait_cqe(&ring, &event);
    result = event->res;
    io_uring_cqe_seen(&ring, event);
    return result;
}

static struct io_uring_sqe *next(void)
{
    return io_uring_get_sqe(&ring);
}

#define DO(how, ...) ({ struct io_uring_sqe *entry = next(); io_uring_prep_##how(entry, __VA_ARGS__); done(entry); })

static char bytes[4096];

static void accepts(int listener)
{
    for (;;) {
        int accepted = DO(accept, listener, NULL, NULL, 0), came;
        while (accepted >= 0 && (came = DO(recv, accepted, bytes, sizeof bytes, 0)) > 0)
            DO(send, accepted, bytes, came, 0);
        close(accepted);
    }
}

static int epoll;

static void add(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (DO(epoll_ctl, epoll, fd, EPOLL_CTL_ADD, &event))
        exit(3);
}

static void epoll_ctl_by_ring(int listener)
{
    epoll = epoll_create1(0);
    add(listener);
    for (;;) {
        struct epoll_event event;
        ssize_t came;
        if (epoll_wait(epoll, &event, 1, -1) != 1)
            continue;
        if (event.data.fd == listener) {
            add(accept(listener, NULL, NULL));
            continue;
        }
        came = read(event.data.fd, bytes, sizeof bytes);
        if (came <= 0 || write(event.data.fd, bytes, came) != came)
            close(event.data.fd);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (argc > 3) {
        if (io_uring_queue_init(8, &ring, 0))
            return 77;
        inet_pton(AF_INET, argv[3], &at.sin_addr);
        if (connect(fd, (void *)&at, sizeof at))
            return 4;
        return DO(send, fd, "hello", 5, 0) != 5 || DO(recv, fd, bytes, sizeof bytes, 0) != 5;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 9))
        return 5;
    if (io_uring_queue_init(8, &ring, 0))
        return 77;
    puts("ready");
    fflush(stdout);
    strcmp(argv[2], "accepts") ? epoll_ctl_by_ring(fd) : accepts(fd);
}
