/* Signals that come while a call waits: EINTR, or SA_RESTART where the kernel restarts. */
#include "conformance.h"

static void interrupted(int restart)
{
    struct timeval half = { 0, 500000 };
    struct address at;
    struct epoll_event event;
    struct pollfd p;
    char data[4];
    fd_set in;
    int s = connected('e'), l = listening(&at), u = bound(SOCK_DGRAM), e = epoll_create1(0);

    begin(restart ? "signals with SA_RESTART" : "signals without SA_RESTART");
    p = (struct pollfd){ s, POLLIN, 0 };
    alarm_soon(restart);
    DO(poll(&p, 1, 5000));
    SAY(alarms);
    alarm_soon(restart);
    DO(ppoll(&p, 1, NULL, NULL));
    FD_ZERO(&in);
    FD_SET(s, &in);
    alarm_soon(restart);
    DO(select(s + 1, &in, NULL, NULL, NULL));
    alarm_soon(restart);
    DO(epoll_wait(e, &event, 1, 5000));
    event = (struct epoll_event){ EPOLLIN, { 0 } };
    epoll_ctl(e, EPOLL_CTL_ADD, s, &event);
    alarm_soon(restart);
    DO(epoll_wait(e, &event, 1, -1));
    /* With a time limit on the socket a call is never restarted (signal(7)). */
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
    setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
    setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
    alarm_soon(restart);
    DO(recv(s, data, 1, 0));
    SAY(alarms);
    alarm_soon(restart);
    DO(accept(l, NULL, NULL));
    alarm_soon(restart);
    DO(recv(u, data, 1, 0));
    SAY(alarms);
    if (!restart) {
        half.tv_usec = 0;
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
        setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
        setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
        alarm_soon(0);
        DO(recv(s, data, 1, 0));
        alarm_soon(0);
        DO(read(s, data, 1));
        alarm_soon(0);
        DO(accept(l, NULL, NULL));
        alarm_soon(0);
        DO(recv(u, data, 1, 0));
        SAY(alarms);
    }
    no_alarm();
    close(s);
    close(l);
    close(u);
    close(e);
}

/* Data that comes after the signal is received by the restarted call. */
static void restarted(void)
{
    struct address at;
    char data[4];
    int l = listening(&at), s, c, status;
    pid_t child;

    begin("a restarted accept and receive");
    fflush(stdout);
    /* Asks the peer for a connection only after the alarm. */
    child = fork();
    if (child == 0) {
        usleep(200000);
        c = called('b', &at);
        usleep(200000);
        _exit(0);
    }
    alarm_soon(1);
    s = FD(accept(l, NULL, NULL));
    SAY(alarms);
    DO(recv(s, data, 2, MSG_WAITALL));
    alarm_soon(1);
    DO(recv(s, data, 1, 0));
    SAY(alarms);
    waitpid(child, &status, 0);
    close(s);
    close(l);
}

void cases_signals(void)
{
    interrupted(0);
    interrupted(1);
    restarted();
}
