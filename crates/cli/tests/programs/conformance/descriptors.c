/* Descriptors: duplicates, flags, sockets as files, children. */
#include "conformance.h"

#include <linux/sockios.h>
#include <sys/mman.h>

static void copies(void)
{
    struct stat status;
    int s = connected('e'), copy, other = open("/proc/self/exe", O_RDONLY), at;

    begin("duplicates share status flags but not close-on-exec");
    copy = FD(dup(s));
    SAY(copy > s);
    DO(fcntl(copy, F_SETFL, O_NONBLOCK));
    SAY(!!(fcntl(s, F_GETFL) & O_NONBLOCK));
    DO(fcntl(copy, F_SETFD, FD_CLOEXEC));
    SAY(fcntl(s, F_GETFD));
    DO(fcntl(copy, F_SETFL, 0));
    DO(close(s));
    DO(write(copy, "abc", 3));
    SAY(drain(copy, 3));
    at = dup2(copy, other);
    SAY(at == other);
    DO(fstat(other, &status));
    SAY(!!S_ISSOCK(status.st_mode));
    SAY(fcntl(other, F_GETFD));
    DO(close(copy));
    DO(write(other, "abc", 3));
    SAY(drain(other, 3));
    DO(dup2(other, other) == other);
    DO(dup3(other, other, 0));
    DO(dup2(99999, other));
    DO(dup2(other, -1));
    copy = FD(fcntl(other, F_DUPFD, 500));
    SAY(copy);
    copy = FD(fcntl(other, F_DUPFD_CLOEXEC, 500));
    SAY(copy);
    SAY(fcntl(copy, F_GETFD));
    copy = FD(dup3(other, 600, O_CLOEXEC));
    SAY(fcntl(copy, F_GETFD));
    DO(dup(99999));
    DO(fcntl(99999, F_GETFL));
    DO(fcntl(other, 9999, 0));
    DO(close_range(500, 700, 0));
    DO(close(500));
    DO(write(other, "abc", 3));
    SAY(drain(other, 3));
    DO(close(other));
    DO(close(other));
    DO(read(other, &status, 1));

    begin("the lowest free number");
    s = tcp();
    copy = tcp();
    close(s);
    other = tcp();
    SAY(other == s);
    close(other);
    other = connected('e');
    SAY(other == s);
    close(other);
    close(copy);
}

static void files(void)
{
    struct stat status;
    char data[4];
    int s = connected('e'), pipes[2], file = open("/proc/self/exe", O_RDONLY);
    off_t from = 0;

    if (pipe(pipes))
        return;
    begin("a socket as a file");
    DO(fstat(s, &status));
    SAY(!!S_ISSOCK(status.st_mode));
    DO(lseek(s, 1, SEEK_SET));
    DO(ftruncate(s, 1));
    DO(fsync(s));
    DO(isatty(s));
    DO(fcntl(s, F_GETOWN));
    DO(fcntl(s, F_GETFL) & O_ACCMODE);
    begin("sendfile and splice");
    DO(sendfile(s, file, &from, 3));
    SAY(from);
    DO(recv(s, data, 3, MSG_WAITALL));
    SAY(data[1] == 'E');
    DO(sendfile(s, 99999, &from, 3));
    DO(sendfile(s, pipes[0], &from, 3));
    DO(sendfile(s, pipes[0], NULL, 3));
    DO(write(pipes[1], "abcd", 4));
    DO(splice(pipes[0], NULL, s, NULL, 4, 0));
    await(s, POLLIN);
    DO(splice(s, NULL, pipes[1], NULL, 4, 0));
    SAY(drain(pipes[0], 4));
    fcntl(s, F_SETFL, O_NONBLOCK);
    DO(splice(s, NULL, pipes[1], NULL, 4, 0));
    DO(splice(s, NULL, s, NULL, 4, 0));
    close(s);
    close(file);
    close(pipes[0]);
    close(pipes[1]);
}

/* sendfile of more than the file holds: it ends at the end of the file, and all of it is sent. */
static void past_the_end(void)
{
    static char page[65536];
    int s = connected('e'), file = memfd_create("file", 0), unsent, on = 1;
    off_t from = sizeof page - 100;

    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    begin("sendfile past the end of a file");
    DO(write(file, page, sizeof page));
    /* Nothing is in flight whose acknowledgment would cause the rest to be sent. */
    DO(write(s, "abc", 3));
    SAY(drain(s, 3));
    DO(sendfile(s, file, &from, 1000));
    SAY(from);
    DO(ioctl(s, SIOCOUTQNSD, &unsent));
    SAY(unsent);
    SAY(drain(s, 100));
    /* A multiple of the page size and of the pipe's capacity. */
    lseek(file, 0, SEEK_SET);
    DO(sendfile(s, file, NULL, 1 << 20));
    SAY(drain(s, sizeof page));
    DO(sendfile(s, file, NULL, 1 << 20));
    close(s);
    close(file);
}

/* sendfile from a socket: only a pipe accepts it. */
static void sendfile_from(void)
{
    int s = connected('e'), other = connected('e'), u = udp(), file = memfd_create("file", 0), pipes[2], pair[2];
    off_t at = 0;
    char data[8];

    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return;
    int outs[] = { pipes[0], file, other, u, pair[0], s, 99999 };

    begin("sendfile from a socket");
    DO(write(s, "abcdefgh", 8));
    SAY(recv(s, data, 8, MSG_PEEK | MSG_WAITALL));
    for (unsigned i = 0; i < sizeof outs / sizeof *outs; i++) {
        DO(sendfile(outs[i], s, NULL, 3));
        DO(sendfile(outs[i], s, NULL, 0));
        DO(sendfile(outs[i], s, &at, 3));
    }
    DO(sendfile(pipes[1], s, &at, 3));
    DO(sendfile(pipes[1], s, NULL, 0));
    DO(sendfile(pipes[1], s, NULL, -1));
    DO(sendfile(pipes[1], s, NULL, 3));
    DO(sendfile(pipes[1], s, NULL, 100));
    SAY(drain(pipes[0], 8));
    alarm_soon(0);
    DO(sendfile(pipes[1], s, NULL, 3));
    no_alarm();
    fcntl(s, F_SETFL, O_NONBLOCK);
    DO(sendfile(pipes[1], s, NULL, 3));
    DO(write(s, "abc", 3));
    await(s, POLLIN);
    fcntl(pipes[1], F_SETFL, O_NONBLOCK);
    while (write(pipes[1], "full", 4) > 0)
        ;
    DO(sendfile(pipes[1], s, NULL, 3));
    close(pipes[0]);
    DO(sendfile(pipes[1], s, NULL, 3));
    SAY(sigpipes);
    DO(recv(s, data, 8, 0));
    close(pipes[1]);
    close(pair[0]);
    close(pair[1]);
    close(file);
    close(u);
    close(other);
    close(s);
}

static void full_pipe(void)
{
    static char page[4096];
    int s = connected('e'), file = open("/proc/self/exe", O_RDONLY), pipes[2], left;
    off_t at = 0;

    if (pipe(pipes))
        return;
    begin("what splice refuses");
    DO(splice(s, NULL, pipes[1], NULL, 0, 0));
    DO(splice(s, &at, pipes[1], NULL, 4, 0));
    DO(splice(s, NULL, pipes[1], &at, 4, 0));
    DO(splice(s, NULL, pipes[0], NULL, 4, 0));
    DO(splice(s, NULL, file, NULL, 4, 0));
    DO(splice(s, NULL, 99999, NULL, 4, 0));
    DO(splice(s, NULL, pipes[1], NULL, 4, 0x100));
    DO(splice(file, NULL, s, NULL, 4, 0));
    DO(splice(file, &at, s, NULL, 4, 0));
    DO(splice(pipes[0], &at, s, NULL, 4, 0));
    DO(splice(pipes[0], NULL, s, &at, 4, 0));
    DO(splice(pipes[1], NULL, s, NULL, 4, 0));
    DO(splice(pipes[0], NULL, s, NULL, 0, 0));
    DO(splice(pipes[0], NULL, s, NULL, 4, SPLICE_F_NONBLOCK));

    begin("splice to a full pipe");
    fcntl(pipes[1], F_SETFL, O_NONBLOCK);
    while (write(pipes[1], page, sizeof page) > 0)
        ;
    DO(write(s, "abcd", 4));
    await(s, POLLIN);
    DO(splice(s, NULL, pipes[1], NULL, 4, 0));
    fcntl(pipes[1], F_SETFL, 0);
    DO(splice(s, NULL, pipes[1], NULL, 4, SPLICE_F_NONBLOCK));
    alarm_soon(0);
    DO(splice(s, NULL, pipes[1], NULL, 4, 0));
    no_alarm();
    DO(read(pipes[0], page, sizeof page));
    DO(splice(s, NULL, pipes[1], NULL, 4, 0));
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    while (read(pipes[0], page, sizeof page) > 0)
        ;
    SAY(page[3] == 'd');
    /* SPLICE_F_NONBLOCK applies to the pipe only. */
    alarm_soon(0);
    DO(splice(s, NULL, pipes[1], NULL, 4, SPLICE_F_NONBLOCK));
    no_alarm();
    DO(write(s, "abcd", 4));
    await(s, POLLIN);
    close(pipes[0]);
    DO(splice(s, NULL, pipes[1], NULL, 4, 0));
    SAY(sigpipes);
    DO(recv(s, page, sizeof page, MSG_DONTWAIT));
    close(pipes[1]);
    if (pipe(pipes))
        return;
    close(pipes[1]);
    DO(splice(pipes[0], NULL, s, NULL, 4, SPLICE_F_NONBLOCK));
    close(pipes[0]);
    close(s);
    close(file);

    begin("splice to a socket without room");
    if (pipe(pipes))
        return;
    s = connected('n');
    fcntl(s, F_SETFL, O_NONBLOCK);
    fcntl(pipes[1], F_SETFL, O_NONBLOCK);
    errno = 0;
    for (left = 1 << 16; left > 0; left--) {
        while (write(pipes[1], page, sizeof page) > 0)
            ;
        if (splice(pipes[0], NULL, s, NULL, sizeof page, 0) < 0 && errno == EAGAIN)
            break;
    }
    SAY(left > 0);
    SAY(errno == EAGAIN);
    DO(ioctl(pipes[0], FIONREAD, &left));
    SAY(left >= (int)sizeof page);
    close(pipes[0]);
    close(pipes[1]);
    close(s);
}

static void children(void)
{
    struct address at;
    int l, c, status, s;
    pid_t child;

    begin("a child that uses no socket");
    s = connected('e');
    fflush(stdout);
    child = child_process();
    if (child == 0)
        _exit(7);
    DO(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    DO(write(s, "abc", 3));
    SAY(drain(s, 3));
    close(s);

    begin("a child that accepts on an inherited listener");
    l = listening(&at);
    fflush(stdout);
    child = child_process();
    if (child == 0) {
        char data[2];

        s = FD(accept(l, NULL, NULL));
        DO(recv(s, data, 2, MSG_WAITALL));
        close(s);
        fflush(stdout);
        _exit(8);
    }
    c = called('b', &at);
    DO(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    close(c);
    close(l);

    begin("a child that makes sockets");
    fflush(stdout);
    child = child_process();
    if (child == 0) {
        s = connected('e');
        DO(write(s, "abc", 3));
        SAY(drain(s, 3));
        close(s);
        fflush(stdout);
        _exit(9);
    }
    DO(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));

    /* The child runs no pthread_atfork handlers and has companions only: it does its parent no harm. */
    begin("a child of _Fork");
    s = connected('e');
    l = listening(&at);
    fflush(stdout);
    child = _Fork();
    if (child == 0) {
        close(s);
        close(l);
        _exit(socket(family, SOCK_DGRAM, 0) == s ? 10 : 11);
    }
    DO(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    DO(write(s, "abc", 3));
    SAY(drain(s, 3));
    close(s);
    close(l);

    begin("a child that calls exec");
    s = connected('e');
    fcntl(s, F_SETFD, FD_CLOEXEC);
    fflush(stdout);
    child = child_process();
    if (child == 0) {
        char command[64];

        snprintf(command, sizeof command, "test -e /proc/self/fd/%d", s);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    DO(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    DO(write(s, "abc", 3));
    SAY(drain(s, 3));
    close(s);
}

void cases_descriptors(void)
{
    CASE(copies());
    CASE(files());
    CASE(past_the_end());
    CASE(sendfile_from());
    CASE(full_pipe());
    CASE(children());
}
