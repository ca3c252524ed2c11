/* The other end: an ordinary program on another host. The first byte of a connection selects what it does there:
 *
 *   e  echoes until the end
 *   c  closes            r  resets
 *   h  sends "bye", shuts down its sending half, and reads until the end
 *   s  sends 100000 bytes and closes
 *   d  reads slowly and sends nothing
 *   n  does nothing until it is reset
 *   b  connects to the port in the next two bytes, sends "hi" there, and closes when either connection ends
 *   R  the same, and resets at once
 *   o  for each byte received: '1' sends "xyZ" with Z urgent and then "after", another sends one urgent byte
 *   O  reads until the end, and sends how many bytes were before the urgent one, that byte, and how many after it
 *   u  sends the datagram "dgram" to that port
 *
 * Datagrams are echoed, with a type of service. */
#include "conformance.h"

#include <pthread.h>

static void reset(int fd)
{
    struct linger now = { 1, 0 };

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static void until_either_ends(int one, int other)
{
    struct pollfd p[2] = { { one, POLLIN, 0 }, { other, POLLIN, 0 } };
    char data[64];

    while (poll(p, 2, -1) > 0)
        for (int i = 0; i < 2; i++)
            if (p[i].revents && read(p[i].fd, data, sizeof data) <= 0)
                return;
}

static void call_back(int fd, char command)
{
    unsigned char port[2];
    struct address to = { .len = sizeof to.at };
    int back;

    if (recv(fd, port, 2, MSG_WAITALL) != 2 || getpeername(fd, SA(to), &to.len))
        return;
    to = with_port(to, port[0] << 8 | port[1]);
    back = socket(to.at.ss_family, command == 'u' ? SOCK_DGRAM : SOCK_STREAM, 0);
    if (connect(back, SA(to), to.len) == 0) {
        if (command == 'R') {
            reset(back);
            back = -1;
        } else if (command == 'u') {
            send(back, "dgram", 5, 0);
        } else if (write(back, "hi", 2) == 2) {
            until_either_ends(fd, back);
        }
    }
    if (back >= 0)
        close(back);
    if (command != 'b')
        drain(fd, 1L << 40);
}

/* Reads data with one urgent byte; sends the counts as digits. */
static void tell_urgent(int fd)
{
    char data[64], urgent = '?', told[3];
    long before = 0, after = 0, *count = &before;
    struct pollfd p = { fd, POLLIN | POLLPRI, 0 };
    ssize_t n;

    while (poll(&p, 1, -1) > 0) {
        if (p.revents & POLLPRI)
            recv(fd, &urgent, 1, MSG_OOB);
        if (!(p.revents & POLLIN))
            continue;
        if (sockatmark(fd) == 1)
            count = &after;
        if ((n = read(fd, data, sizeof data)) <= 0)
            break;
        *count += n;
    }
    told[0] = '0' + before;
    told[1] = urgent;
    told[2] = '0' + after;
    send(fd, told, 3, MSG_NOSIGNAL);
}

static void *serve(void *connection)
{
    int fd = (int)(long)connection, on = 1;
    static const char zeros[100000];
    char command = 0, data[65536];
    ssize_t n;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (read(fd, &command, 1) != 1)
        command = 'c';
    switch (command) {
    case 'e':
        while ((n = read(fd, data, sizeof data)) > 0)
            for (ssize_t sent = 0, m; sent < n; sent += m)
                if ((m = send(fd, data + sent, n - sent, MSG_NOSIGNAL)) <= 0)
                    break;
        break;
    case 'r':
        reset(fd);
        return NULL;
    case 'w': /* Sends a little, and resets after a while. */
        send(fd, "bye", 3, MSG_NOSIGNAL);
        usleep(30000);
        reset(fd);
        return NULL;
    case 'h':
        send(fd, "bye", 3, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        drain(fd, 1L << 40);
        break;
    case 's':
        send(fd, zeros, sizeof zeros, MSG_NOSIGNAL);
        break;
    case 'd': /* Reads slowly: its sender must wait for room. */
        while (read(fd, data, sizeof data) > 0)
            usleep(5000);
        break;
    case 'n':
        poll(&(struct pollfd){ fd, 0, 0 }, 1, -1);
        break;
    case 'o':
        while (read(fd, data, 1) == 1) {
            if (data[0] == '1') {
                send(fd, "xyZ", 3, MSG_OOB | MSG_NOSIGNAL);
                send(fd, "after", 5, MSG_NOSIGNAL);
            } else {
                send(fd, "Q", 1, MSG_OOB | MSG_NOSIGNAL);
            }
        }
        break;
    case 'O':
        tell_urgent(fd);
        break;
    case 'b':
    case 'R':
    case 'u':
        call_back(fd, command);
        break;
    }
    close(fd);
    return NULL;
}

static void *datagrams(void *socket)
{
    int fd = (int)(long)socket;
    char data[65536];

    for (;;) {
        struct address from = { .len = sizeof from.at };
        ssize_t n = recvfrom(fd, data, sizeof data, 0, SA(from), &from.len);

        if (n >= 0)
            sendto(fd, data, n, 0, SA(from), from.len);
    }
    return NULL;
}

static void start(void *(*work)(void *), int fd)
{
    pthread_t thread;

    if (fd < 0 || pthread_create(&thread, NULL, work, (void *)(long)fd))
        exit(1);
    pthread_detach(thread);
}

int serve_peer(int port)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    int tcp = socket(AF_INET6, SOCK_STREAM, 0), udp = socket(AF_INET6, SOCK_DGRAM, 0), on = 1, tos = 0x10;

    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(udp, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
    setsockopt(udp, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
    if (bind(tcp, (void *)&any, sizeof any) || listen(tcp, 64) || bind(udp, (void *)&any, sizeof any)) {
        perror("peer");
        return 1;
    }
    start(datagrams, udp);
    puts("ready");
    fflush(stdout);
    for (;;)
        start(serve, accept(tcp, NULL, NULL));
}
