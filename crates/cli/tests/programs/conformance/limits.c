/* Exhausted resources: ports, of which this host has few, and room to send. */
#include "conformance.h"

enum { MANY = 64 };
static int kept[MANY];
static int count;

/* Keeps the socket if the call with `result` succeeded; otherwise closes it and returns false. */
static int keeps(int fd, int result)
{
    int error = errno;

    if (result == 0 && count < MANY) {
        kept[count++] = fd;
        return 1;
    }
    close(fd);
    errno = error;
    return 0;
}

/* Closes all at once, connections by a reset, so that no port is left in TIME_WAIT. */
static void let_go(void)
{
    struct linger now = { 1, 0 };

    while (count > 0) {
        setsockopt(kept[--count], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(kept[count]);
    }
}

static void ports_to_bind(int type)
{
    struct address from = { .len = sizeof from.at };
    char data[4];
    int s;

    begin(type == SOCK_STREAM ? "no port left to bind: TCP" : "no port left to bind: UDP");
    do
        s = socket(family, type, 0);
    while (keeps(s, bind(s, SA(own), own.len)));
    /* Connections in TIME_WAIT and other programs may use some of them. */
    SAY(count > 8);
    s = socket(family, type, 0);
    DO(bind(s, SA(own), own.len));
    if (type == SOCK_STREAM) {
        DO(listen(s, 1));
        DO(connect(s, SA(peer), peer.len));
    } else {
        DO(connect(s, SA(peer), peer.len));
        DO(sendto(s, "x", 1, 0, SA(peer), peer.len));
        DO(recvfrom(s, data, sizeof data, MSG_DONTWAIT, SA(from), &from.len));
    }
    /* It succeeds as soon as one port is free again. */
    close(kept[--count]);
    DO(connect(s, SA(peer), peer.len));
    DO(write(s, "e", 1));
    close(s);
    let_go();
}

static void ports_to_connect_from(void)
{
    int s;

    begin("no port left to connect from");
    do
        s = tcp();
    while (keeps(s, connect(s, SA(peer), peer.len)));
    SAY(count > 8);
    s = tcp();
    DO(connect(s, SA(peer), peer.len));
    DO(fcntl(s, F_SETFL, O_NONBLOCK));
    DO(connect(s, SA(peer), peer.len));
    DO(listen(s, 1));
    DO(fcntl(s, F_SETFL, 0));
    let_go();
    DO(connect(s, SA(peer), peer.len));
    close(s);
}

static void buffers(void)
{
    static char data[1 << 16];
    int s = connected('n');
    struct timeval brief = { .tv_usec = 50000 };
    long sent;

    begin("no room to send");
    DO(setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief));
    while ((sent = write(s, data, sizeof data)) > 0)
        ;
    outcome("write", sent, errno);
    keeps(s, 0);
    let_go();
}

void cases_limits(void)
{
    ports_to_bind(SOCK_STREAM);
    ports_to_bind(SOCK_DGRAM);
    buffers();
    /* This case is the last: on the stack plane ports of ended connections stay reserved until new ones use them. */
    ports_to_connect_from();
}
