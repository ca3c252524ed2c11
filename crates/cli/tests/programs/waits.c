/* A server that echoes UDP on the given port and waits in the given way:
 *
 *   waits PORT recv|poll|ppoll|select|pselect|epoll|nested
 *   waits PORT connected-read|connected-recv PEER     from a peer at the port after it
 *
 * `waits transcript` prints what poll and select return in many cases. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* volatile, so that the compiler cannot know the sizes and -D_FORTIFY_SOURCE checks them at run time. */
static volatile size_t room = 2048;
static volatile nfds_t one_of_them = 1;

static void wait_for(const char *how, int fd)
{
    static int instance = -1;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct timespec second = { 1, 0 };
    struct epoll_event event = { .events = EPOLLIN };
    fd_set set;

    if (!strcmp(how, "poll"))
        while (poll(&p, one_of_them, 1000) < 1)
            ;
    else if (!strcmp(how, "ppoll"))
        while (ppoll(&p, one_of_them, &second, NULL) < 1)
            ;
    else if (!strcmp(how, "select") || !strcmp(how, "pselect")) {
        int ready;
        do {
            FD_ZERO(&set);
            FD_SET(fd, &set);
            ready = how[0] == 's' ? select(fd + 1, &set, NULL, NULL, NULL)
                                  : pselect(fd + 1, &set, NULL, NULL, NULL, NULL);
        } while (ready < 1);
    } else if (!strcmp(how, "epoll")) {
        if (instance < 0) {
            instance = epoll_create1(0);
            epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
        }
        while (epoll_wait(instance, &event, 1, 1000) < 1)
            ;
    } else if (!strcmp(how, "nested")) {
        /* It waits for the outer instance, and reads the inner one. */
        static int outer;
        if (instance < 0) {
            instance = epoll_create1(0);
            outer = epoll_create1(0);
            epoll_ctl(outer, EPOLL_CTL_ADD, instance, &event);
            epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
        }
        do
            while (epoll_wait(outer, &event, 1, 1000) < 1)
                ;
        while (epoll_wait(instance, &event, 1, 0) < 1);
    }
}

static int udp(int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    if (bind(fd, (void *)&address, sizeof address)) {
        perror("bind");
        exit(1);
    }
    return fd;
}

static void serve(int port, const char *how, const char *connected)
{
    struct sockaddr_in peer = { .sin_family = AF_INET, .sin_port = htons(port + 1) };
    int fd = udp(port);
    char data[2048];

    if (connected && (!inet_aton(connected, &peer.sin_addr) || connect(fd, (void *)&peer, sizeof peer)))
        exit(1);

    puts("ready");
    fflush(stdout);
    for (;;) {
        socklen_t len = sizeof peer;
        wait_for(how, fd);
        ssize_t n = !strcmp(how, "connected-read") ? read(fd, data, room)
                  : !strcmp(how, "connected-recv") ? recv(fd, data, room, 0)
                                                   : recvfrom(fd, data, room, 0, (void *)&peer, &len);
        if (n >= 0)
            sendto(fd, data, n, 0, (void *)&peer, len);
    }
}

/* The transcript. */

static struct timespec started;

static void start(void) { clock_gettime(CLOCK_MONOTONIC, &started); }

/* Milliseconds: a wait in vain takes all of BRIEF, and one that ends for a reason almost nothing of LONG. */
enum { BRIEF = 100, LONG = 20000 };

/* Whether the time that has passed fits the timeout: durations would differ from run to run. */
static const char *took(int timeout)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long ms = (now.tv_sec - started.tv_sec) * 1000 + (now.tv_nsec - started.tv_nsec) / 1000000;
    return ms >= LONG / 2 ? "late" : timeout == BRIEF && ms < BRIEF - 1 ? "early" : "in time";
}

static void say_poll(const char *what, struct pollfd *fds, int n, int timeout)
{
    start();
    errno = 0;
    int result = poll(fds, n, timeout);
    int error = errno;
    printf("%s: %d %s %s", what, result, result < 0 ? strerrorname_np(error) : "", took(timeout));
    for (int i = 0; i < n; i++)
        printf(" %x", fds[i].revents & 0xffff);
    puts("");
}

static void say_select(const char *what, int count, fd_set *in, fd_set *out, fd_set *except, int timeout)
{
    struct timeval t = { timeout / 1000, timeout % 1000 * 1000 };
    start();
    errno = 0;
    int result = select(count, in, out, except, timeout < 0 ? NULL : &t);
    int error = errno;
    printf("%s: %d %s %s", what, result, result < 0 ? strerrorname_np(error) : "", took(timeout));
    for (int fd = 0; result >= 0 && fd < count; fd++)
        if ((in && FD_ISSET(fd, in)) || (out && FD_ISSET(fd, out)) || (except && FD_ISSET(fd, except)))
            printf(" %c%c%c", in && FD_ISSET(fd, in) ? 'r' : '-', out && FD_ISSET(fd, out) ? 'w' : '-',
                   except && FD_ISSET(fd, except) ? 'x' : '-');
    /* Linux writes back the remaining time. */
    printf(" left %s\n", timeout < 0 ? "nothing" : t.tv_sec || t.tv_usec ? "some" : "none");
}

static void handler(int signal) { (void)signal; }

/* Repeated, as the first may come before the call that it should interrupt; 0 ends it. */
static void alarm_every(int ms)
{
    struct itimerval t = { { 0, ms * 1000 }, { 0, ms * 1000 } };
    setitimer(ITIMER_REAL, &t, NULL);
}

static int pair(int port, int *to)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = udp(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *to = socket(AF_INET, SOCK_DGRAM, 0);
    connect(*to, (void *)&address, sizeof address);
    return fd;
}

static void tcp_pair(int fds[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener, (void *)&address, sizeof address);
    listen(listener, 1);
    getsockname(listener, (void *)&address, &len);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    connect(fds[0], (void *)&address, sizeof address);
    fds[1] = accept(listener, NULL, NULL);
    close(listener);
}


static void transcript(void)
{
    int to, fd = pair(7301, &to), pipes[2], tcp[2], file = open("/etc/passwd", O_RDONLY);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    fd_set in, out, except;

    pipe(pipes);
    tcp_pair(tcp);

    struct pollfd one[] = { { fd, POLLIN, 0x55 } };
    /* No signal has a handler: the wait continues. */
    pid_t self = getpid();
    if (fork() == 0) {
        usleep(5000);
        kill(self, SIGSTOP);
        usleep(5000);
        kill(self, SIGCONT);
        _exit(0);
    }
    say_poll("stopped and continued", one, 1, BRIEF);
    wait(NULL);

    sigaction(SIGALRM, &action, NULL);
    say_poll("nothing there, timeout", one, 1, BRIEF);
    say_poll("nothing there, no timeout", one, 1, 0);
    send(to, "x", 1, 0);
    say_poll("one there", one, 1, LONG);
    struct pollfd without[] = { { fd, 0, 0x55 } };
    say_poll("no event asked for", without, 1, BRIEF);
    struct pollfd twice[] = { { fd, POLLIN, 0 }, { fd, POLLIN | POLLOUT, 0 }, { -1, POLLIN, 9 }, { to, POLLIN, 9 } };
    say_poll("twice, and a hole", twice, 4, LONG);
    char c;
    recv(fd, &c, 1, 0);
    struct pollfd mixed[] = { { fd, POLLIN, 0 }, { file, POLLIN | POLLOUT, 0 }, { pipes[0], POLLIN, 0 } };
    say_poll("with a regular file", mixed, 3, LONG);
    struct pollfd closed[] = { { fd, POLLIN, 0 }, { 999, POLLIN, 0 } };
    say_poll("with a closed one", closed, 2, LONG);
    struct pollfd pair_of[] = { { fd, POLLIN, 0 }, { pipes[0], POLLIN, 0 } };
    say_poll("with a pipe", pair_of, 2, BRIEF);
    write(pipes[1], "x", 1);
    say_poll("the pipe has data", pair_of, 2, LONG);
    read(pipes[0], &c, 1);
    close(pipes[1]);
    say_poll("the pipe hangs up", pair_of, 2, LONG);
    struct pollfd stream[] = { { fd, POLLIN, 0 }, { tcp[0], POLLIN | POLLPRI | POLLRDHUP, 0 } };
    say_poll("a connection, quiet", stream, 2, BRIEF);
    send(tcp[1], "!", 1, MSG_OOB);
    say_poll("urgent data", stream, 2, LONG);
    shutdown(tcp[1], SHUT_WR);
    say_poll("the peer has shut down", stream, 2, LONG);
    shutdown(tcp[0], SHUT_WR);
    say_poll("both have", stream, 2, LONG);

    alarm_every(100);
    say_poll("a signal, with SA_RESTART", one, 1, LONG);
    say_poll("a signal, for ever", one, 1, -1);
    alarm_every(0);
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGALRM);
    say_poll("a signal, blocked", one, 1, BRIEF);
    struct timespec long_time = { LONG / 1000, 0 };
    start();
    int result = ppoll(one, 1, &long_time, &none);
    printf("ppoll lets it through: %d %s %s\n", result, strerrorname_np(errno), took(LONG));
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);

    struct pollfd many[1100];
    for (int i = 0; i < 1100; i++)
        many[i] = (struct pollfd){ i == 700 ? fd : -1, POLLIN, 0 };
    say_poll("in a long array", many, 0, BRIEF);
    send(to, "x", 1, 0);
    start();
    result = poll(many, 1100, LONG);
    printf("long array: %d %s %x\n", result, took(LONG), many[700].revents);
    recv(fd, &c, 1, 0);

    /* A number gets another socket: once after close(2), once after fclose(3). */
    for (int by_stdio = 0; by_stdio < 2; by_stdio++) {
        int old = pair(7302 + by_stdio, &to), again;
        struct pollfd p[] = { { old, POLLIN, 0 } };
        say_poll("a new one", p, 1, BRIEF);
        if (by_stdio)
            fclose(fdopen(old, "r+"));
        else
            close(old);
        say_poll("closed", p, 1, LONG);
        close(to);
        again = pair(7304 + by_stdio, &to);
        printf("same number: %d\n", again == old);
        say_poll("another by its number", p, 1, BRIEF);
        send(to, "x", 1, 0);
        say_poll("and it has data", p, 1, LONG);
        dup2(fd, again);
        say_poll("a third, by dup2", p, 1, BRIEF);
        close(again);
        close(to);
    }
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    close(fd);
    fd = pair(7306, &to);

    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    say_select("select, nothing there", fd + 1, &in, NULL, NULL, BRIEF);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &except);
    say_select("select, can write", fd + 1, &in, &out, &except, LONG);
    send(to, "x", 1, 0);
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(tcp[0], &in);
    say_select("select, both can read", 64, &in, &out, NULL, LONG);
    recv(fd, &c, 1, 0);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    FD_SET(file, &in);
    say_select("select, a file", 64, &in, NULL, NULL, LONG);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    FD_SET(50, &in);
    say_select("select, a closed one", 64, &in, NULL, NULL, LONG);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    say_select("select, negative count", -1, &in, NULL, NULL, LONG);
    alarm_every(100);
    say_select("select, a signal", fd + 1, &in, NULL, NULL, -1);
    alarm_every(0);
    struct timeval bad = { -1, 0 };
    errno = 0;
    result = select(fd + 1, &in, NULL, NULL, &bad);
    printf("select, a bad time: %d %s\n", result, strerrorname_np(errno));
    start();
    result = pselect(fd + 1, &in, NULL, NULL, &(struct timespec){ 0, BRIEF * 1000000 }, NULL);
    printf("pselect, nothing there: %d %s\n", result, took(BRIEF));

    /* The program's own descriptor numbers. */
    struct pollfd before[] = { { fd, POLLIN, 0 } };
    poll(before, 1, 1);
    int lowest = dup(0);
    close(lowest);
    printf("lowest free number: %d\n", lowest);
    int open_numbers = 0;
    for (int i = 3; i < 2000; i++)
        open_numbers += close(i) == 0;
    printf("closed by a loop: %d\n", open_numbers);
    fd = pair(7307, &to);
    struct pollfd after[] = { { fd, POLLIN, 0 } };
    say_poll("after closing all", after, 1, BRIEF);
    fflush(stdout);
    if (fork() == 0) {
        close_range(3, ~0U, 0);
        fd = pair(7308, &to);
        after[0].fd = fd;
        say_poll("in a child", after, 1, BRIEF);
        send(to, "x", 1, 0);
        say_poll("in a child, one there", after, 1, LONG);
        exit(0);
    }
    wait(NULL);
    send(to, "x", 1, 0);
    say_poll("in the parent, one there", after, 1, LONG);
    closefrom(3);
    fd = pair(7309, &to);
    after[0].fd = fd;
    say_poll("after closefrom", after, 1, BRIEF);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "transcript"))
        transcript();
    else if (argc == 3 || argc == 4)
        serve(atoi(argv[1]), argv[2], argv[3]);
    else
        return 2;
    return 0;
}
