/* A connection whose peer echoes lines, used by functions of the C library that make their own system calls.
 *   stdio client|server|datagrams|nobody ADDRESS PORT HOW    connects, accepts one connection, or uses UDP; "nobody" does
 *                                                            not answer the connect. Exit status 0: every line came back.
 *   stdio continue FD                                        a program that inherits the connection */
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAIL(status) _exit((fprintf(stderr, "line %d: %m\n", __LINE__), status))
#define CHECK(that) do { if (!(that)) FAIL(3); } while (0)

static const char *this_program;
static int datagrams;

/* Reads a line byte by byte, so that the rest stays in the socket. */
static void expect(int fd, const char *line)
{
    char came[256] = "";
    if (datagrams) {
        CHECK(read(fd, came, sizeof came) == (ssize_t)strlen(line));
        CHECK(!strcmp(came, line));
        return;
    }
    for (; *line; line++) {
        char byte;
        CHECK(read(fd, &byte, 1) == 1);
        CHECK(byte == *line);
    }
}

static void expect_by(FILE *in, const char *line)
{
    char came[256];
    CHECK(fgets(came, sizeof came, in));
    CHECK(!strcmp(came, line));
}

static void by_streams(FILE *in, FILE *out)
{
    char line[64];
    if (!datagrams)
        expect_by(in, "unread\n");
    for (int i = 0; i < 20; i++) {
        snprintf(line, sizeof line, "line %d of %s\n", i, "stdio");
        CHECK(fputs(line, out) >= 0 && !fflush(out));
        expect_by(in, line);
    }
}

static void by_va_list(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    CHECK(vdprintf(fd, format, arguments) > 0);
    va_end(arguments);
}

static void by_aio(int fd)
{
    char line[] = "by aio\n", came[sizeof line] = "";
    struct aiocb request = {.aio_fildes = fd, .aio_buf = line, .aio_nbytes = strlen(line)};
    const struct aiocb *one = &request;
    CHECK(!aio_write(&request) && !aio_suspend(&one, 1, NULL));
    CHECK(aio_return(&request) == (ssize_t)strlen(line));
    expect(fd, "unread\n");
    request.aio_buf = came;
    CHECK(!aio_read(&request) && !aio_suspend(&one, 1, NULL));
    CHECK(aio_return(&request) == (ssize_t)strlen(line) && !strcmp(came, line));
}

static void spawn(int fd)
{
    posix_spawn_file_actions_t actions;
    char *command[] = {"sh", "-c", "read line; [ \"$line\" = unread ]; echo hello; read line; [ \"$line\" = hello ]", NULL};
    int status;
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    CHECK(!posix_spawnp(&child, "sh", &actions, NULL, command, environ));
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(!status);
}

static void use(int fd, const char *how)
{
    char number[16];
    if (!strcmp(how, "fdopen")) {
        FILE *both = fdopen(fd, "r+");
        CHECK(both && fileno(both) == fd);
        by_streams(both, both);
        CHECK(!fclose(both));
    } else if (!strcmp(how, "two")) {
        FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
        CHECK(in && out);
        by_streams(in, out);
        CHECK(!fclose(in) && !fclose(out));
    } else if (!strcmp(how, "dprintf")) {
        CHECK(dprintf(fd, "%d %s %.2f %d %d %d %d %d %.1f %c\n", 1, "two", 3.25, 4, 5, 6, 7, 8, 9.5, 'x') > 0);
        expect(fd, "unread\n1 two 3.25 4 5 6 7 8 9.5 x\n");
        by_va_list(fd, "%.1f %s\n", 1.5, "two");
        expect(fd, "1.5 two\n");
    } else if (!strcmp(how, "aio")) {
        by_aio(fd);
    } else if (!strcmp(how, "dup2")) {
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1 && !close(fd));
        by_streams(stdin, stdout);
    } else if (!strcmp(how, "dup")) {
        CHECK(!close(0) && dup(fd) == 0);
        CHECK(write(fd, "more\n", 5) == 5);
        expect_by(stdin, "unread\n");
        expect_by(stdin, "more\n");
    } else if (!strcmp(how, "spawn")) {
        spawn(fd);
    } else if (!strcmp(how, "exec")) {
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1 && !close(fd));
        execlp("sh", "sh", "-c", "read a; echo hello; read b; [ \"$a $b\" = 'unread hello' ]", NULL);
        FAIL(4);
    } else if (!strcmp(how, "inherit")) {
        snprintf(number, sizeof number, "%d", fd);
        char *arguments[] = {"stdio", "continue", number, NULL};
        execv(this_program, arguments);
        FAIL(4);
    } else {
        FAIL(5);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        int fd = atoi(argv[2]);
        CHECK(write(fd, "inherited\n", 10) == 10);
        expect(fd, "unread\ninherited\n");
        return 0;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    int one = 1, fd;
    const char *how = argv[4];
    this_program = argv[0];
    datagrams = !strcmp(argv[1], "datagrams");
    CHECK(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
    if (!strcmp(how, "closed"))
        CHECK(!close(0) && !close(1));
    fd = socket(AF_INET, datagrams ? SOCK_DGRAM : SOCK_STREAM, 0);
    if (!strcmp(argv[1], "server")) {
        int listener = fd;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        CHECK(!bind(listener, (void *)&address, sizeof address) && !listen(listener, 5));
        /* The listener is in use before it is connected to. */
        poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0);
        fputs("ready\n", stderr);
        fd = accept(listener, NULL, NULL);
    } else if (!strcmp(argv[1], "nobody")) {
        int bound = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(connect(bound, (void *)&address, sizeof address) == -1 && errno == EINPROGRESS);
        FILE *stream = fdopen(bound, "r+");
        CHECK(stream && fputs("hello\n", stream) >= 0);
        CHECK(fflush(stream) == EOF && errno == EAGAIN);
        return 0;
    } else {
        CHECK(!connect(fd, (void *)&address, sizeof address));
    }
    CHECK(fd >= 0);
    if (!strcmp(how, "closed")) {
        /* The connection is standard input or standard output. */
        CHECK(fd == (strcmp(argv[1], "server") ? 0 : 1));
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
        CHECK(puts("hello") >= 0 && !fflush(stdout));
        expect_by(stdin, "hello\n");
        return 0;
    }
    CHECK(write(fd, "first\n", 6) == 6);
    expect(fd, "first\n");
    /* A datagram that has arrived does not move to the kernel. */
    CHECK(datagrams || write(fd, "unread\n", 7) == 7);
    use(fd, how);
    return 0;
}
