/* Signals that come while a call waits: EINTR, or SA_RESTART where the kernel restarts. */
#include "conformance.h"

#include <pthread.h>

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
    SAY(alarms > 0);
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
    /* With a timeout on the socket a call is never restarted (signal(7)). */
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
    setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
    setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
    alarm_soon(restart);
    DO(recv(s, data, 1, 0));
    SAY(alarms > 0);
    alarm_soon(restart);
    DO(accept(l, NULL, NULL));
    alarm_soon(restart);
    DO(recv(u, data, 1, 0));
    SAY(alarms > 0);
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
        SAY(alarms > 0);
    }
    no_alarm();
    close(s);
    close(l);
    close(u);
    close(e);
}

static void wait_for(int pipe, char what)
{
    char said;

    while (read(pipe, &said, 1) == 1 && said != what)
        ;
}

/* The restarted call receives data that arrives after the signal. */
static void restarted(void)
{
    struct address at;
    char data[4];
    int l = listening(&at), s, c, status, told[2];
    pid_t child;

    if (pipe(told))
        return;
    begin("a restarted accept and receive");
    fflush(stdout);
    alarms_to = told[1];
    alarms_say = 'a';
    /* Requests a connection from the peer only after an alarm, and its end after another alarm. */
    child = child_process();
    if (child == 0) {
        wait_for(told[0], 'a');
        usleep(20000);
        c = called('b', &at);
        wait_for(told[0], 'b');
        _exit(0);
    }
    alarm_soon(1);
    s = FD(accept(l, NULL, NULL));
    SAY(alarms > 0);
    DO(recv(s, data, 2, MSG_WAITALL));
    alarms_say = 'b';
    alarm_soon(1);
    DO(recv(s, data, 1, 0));
    SAY(alarms > 0);
    no_alarm();
    alarms_to = -1;
    waitpid(child, &status, 0);
    close(s);
    /* Received data is returned. */
    s = connected('e');
    DO(write(s, "x", 1));
    alarm_soon(1);
    DO(recv(s, data, 2, MSG_WAITALL));
    no_alarm();
    close(s);
    close(l);
    close(told[0]);
    close(told[1]);
}

/* The same in a child, with a listener that its parent waits on too. */
static void restarted_in_a_child(void)
{
    struct address at;
    int l = listening(&at), s, status, told[2];
    pid_t child;

    if (pipe(told))
        return;
    begin("a restarted accept of a child");
    fcntl(l, F_SETFL, O_NONBLOCK);
    DO(accept(l, NULL, NULL));
    fcntl(l, F_SETFL, 0);
    fflush(stdout);
    child = child_process();
    if (child == 0) {
        alarms_to = told[1];
        alarms_say = 'a';
        alarm_soon(1);
        s = FD(accept(l, NULL, NULL));
        SAY(alarms > 0);
        no_alarm();
        fflush(stdout);
        _exit(5);
    }
    wait_for(told[0], 'a');
    usleep(20000);
    s = tcp();
    connect(s, SA(at), at.len);
    waitpid(child, &status, 0);
    SAY(WEXITSTATUS(status));
    close(s);
    close(l);
    close(told[0]);
    close(told[1]);
}

static int answered, asked;

/* The handler may use sockets, whatever it interrupts. */
static void on_usr(int signal)
{
    struct pollfd p = { asked, POLLOUT, 0 };
    int fresh = udp();

    if (poll(&p, 1, 0) == 1 && send(asked, "h", 1, MSG_DONTWAIT) == 1)
        answered++;
    sendto(fresh, "x", 1, 0, SA(peer), peer.len);
    close(fresh);
}

static void in_a_handler(void)
{
    struct sigaction action = { .sa_handler = on_usr, .sa_flags = SA_RESTART };
    struct pollfd p;
    char data[4];
    pid_t child, self = getpid();

    begin("a handler that calls socket functions");
    asked = connected('e');
    p = (struct pollfd){ asked, POLLIN, 0 };
    handle(SIGUSR1, action);
    raise(SIGUSR1);
    SAY(answered);
    DO(recv(asked, data, 1, 0));
    fflush(stdout);
    child = child_process();
    if (child == 0) {
        do
            usleep(20000);
        while (kill(self, SIGUSR1) == 0);
        _exit(0);
    }
    /* The echo of what the handler sends ends the interrupted call. */
    DO(recv(asked, data, 1, 0));
    SAY(data[0] == 'h');
    while (poll(&p, 1, -1) < 0 && errno == EINTR)
        ;
    say_events("while polling", p.revents);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    signal(SIGUSR1, SIG_DFL);
    close(asked);
}

static volatile int during;

static void opens_and_closes(int signal)
{
    close(socket(family, SOCK_DGRAM, 0));
    during++;
}

/* Signals that come during fork, which the kernel delivers right after it; a handler may use sockets there too. */
static void while_forking(void)
{
    struct sigaction action = { .sa_handler = opens_and_closes, .sa_flags = SA_RESTART };
    struct itimerval often = { { .tv_usec = 1000 }, { .tv_usec = 1000 } }, never = { 0 };
    int children = 0;

    begin("a handler while the process forks");
    asked = connected('e');
    handle(SIGALRM, action);
    setitimer(ITIMER_REAL, &often, NULL);
    while (children < 50 || during < 50) {
        int status;
        pid_t child = child_process();

        if (child == 0)
            _exit(3);
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3)
            break;
        children++;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    SAY(children >= 50);
    DO(write(asked, "abc", 3));
    SAY(drain(asked, 3));
    close(asked);
}

static void *changes_handlers(void *stop)
{
    struct sigaction action = { .sa_handler = SIG_IGN };

    while (!*(volatile int *)stop)
        sigaction(SIGUSR2, &action, NULL);
    return NULL;
}

static void handlers_in_a_child(void)
{
    struct sigaction action = { .sa_handler = SIG_IGN };
    pthread_t thread;
    int stop = 0, status, children = 0;

    begin("a child changes handlers at the same time as a thread of its parent");
    pthread_create(&thread, NULL, changes_handlers, &stop);
    for (int i = 0; i < 200; i++) {
        pid_t child = child_process();

        if (child == 0)
            _exit(sigaction(SIGUSR2, &action, NULL));
        if (waitpid(child, &status, 0) == child && status == 0)
            children++;
    }
    stop = 1;
    pthread_join(thread, NULL);
    SAY(children);
}

static volatile int came[8], values;

static void notes(int signal, siginfo_t *info, void *context)
{
    if (values < 8)
        came[values++] = info->si_value.sival_int;
}

static void *receives(void *s)
{
    char data[8];

    while (recv(*(int *)s, data, sizeof data, 0) < 0 && errno == EINTR)
        ;
    return NULL;
}

/* Signals of one number are handled in the order in which they were sent, whatever call the thread waits in. */
static void queued(int restart)
{
    struct sigaction action = { .sa_sigaction = notes, .sa_flags = SA_SIGINFO | (restart ? SA_RESTART : 0) };
    pthread_t thread;
    int s, in_order = 0;

    begin(restart ? "queued signals, with SA_RESTART" : "queued signals");
    s = connected('e');
    handle(SIGRTMIN, action);
    pthread_create(&thread, NULL, receives, &s);
    usleep(100000);
    for (int round = 0; round < 20; round++) {
        int right;

        values = 0;
        for (int i = 1; i <= 4; i++)
            pthread_sigqueue(thread, SIGRTMIN, (union sigval){ .sival_int = i });
        for (int i = 0; i < 2000 && values < 4; i++)
            usleep(1000);
        right = values == 4;
        for (int i = 0; i < values; i++)
            right &= came[i] == i + 1;
        in_order += right;
    }
    SAY(in_order);
    DO(write(s, "end", 3));
    pthread_join(thread, NULL);
    close(s);
}

void cases_signals(void)
{
    CASE(queued(0));
    CASE(queued(1));
    CASE(interrupted(0));
    CASE(interrupted(1));
    CASE(restarted());
    CASE(restarted_in_a_child());
    CASE(in_a_handler());
    CASE(while_forking());
    CASE(handlers_in_a_child());
}
