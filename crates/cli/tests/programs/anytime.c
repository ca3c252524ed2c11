// Calls the C library's socket functions at every moment at which a program may: from a handler that has interrupted
// malloc, from constructors and destructors, from a child of vfork, from a thread made by clone. Prints `ok`, or what
// went wrong. Built as a program, and with -DLIBRARY as a library that the program loads and unloads.
//     anytime PEER-ADDRESS CASE [SECONDS]; the peer echoes at port 7, by TCP and UDP
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in peer = {.sin_family = AF_INET};

static void fail(const char *what) {
    char line[200];
    int len = snprintf(line, sizeof line, "%s: %s\n", what, strerror(errno));
    if (syscall(SYS_write, 1, line, len)) {}
    syscall(SYS_exit_group, 1);
}
#define MUST(call) ({ long r_ = (call); if (r_ < 0) fail(#call); r_; })

static int connected(void) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0)), one = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    MUST(connect(fd, (void *)&peer, sizeof peer));
    return fd;
}

static void echo(int fd) {
    char bytes[64] = "anytime", back[64];
    size_t got = 0;
    MUST(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL));
    while (got < sizeof back) {
        long n = read(fd, back + got, sizeof back - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("read");
        got += n;
    }
    if (memcmp(bytes, back, sizeof back)) errno = 0, fail("other bytes");
}

static void datagram(void) {
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct timeval limit = {2, 0};
    char back[16] = "";
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    MUST(sendto(fd, "datagram", 8, 0, (void *)&peer, sizeof peer));
    while (recv(fd, back, sizeof back, 0) < 0)
        if (errno != EINTR) fail("recv");
    if (strcmp(back, "datagram")) errno = 0, fail("another datagram");
    MUST(close(fd));
}

// Uses each kind of socket call once.
static void use(void) {
    int fd = connected();
    echo(fd);
    MUST(close(fd));
    datagram();
}

#ifdef LIBRARY
__attribute__((destructor)) static void unloaded(void) {
    if (peer.sin_port) use();
}
void use_from(struct sockaddr_in to) { peer = to, use(); }
#else

static volatile int handled, steps, wanted = 1 << 30;
// Used only by the handler.
static int stream, udp, pipes[2];
static char big[20000];

static void child(void) {
    int status, pid = MUST(fork());
    if (!pid) _exit(3);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) errno = 0, fail("a child's end");
}

// Calls one of the functions of signal-safety(7); `turn` selects which.
static void step(int turn) {
    struct sockaddr_in name;
    socklen_t len = sizeof name, four = sizeof(int);
    struct iovec piece = {big, 100};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    struct pollfd polled = {stream, POLLIN | POLLOUT};
    struct timeval now = {0};
    struct timespec zero = {0};
    struct sigaction action;
    int fd, value = 1;
    fd_set set;
    switch (turn % 22) {
    case 0: fd = MUST(socket(AF_INET, SOCK_DGRAM, 0)); MUST(close(fd)); break;
    case 1: send(stream, big, sizeof big, MSG_DONTWAIT | MSG_NOSIGNAL); break;
    case 2: MUST(poll(&polled, 1, 0)); break;
    case 3: child(); break;
    case 4: FD_ZERO(&set); FD_SET(stream, &set); MUST(select(stream + 1, &set, 0, 0, &now)); break;
    case 5: FD_ZERO(&set); FD_SET(stream, &set); MUST(pselect(stream + 1, &set, 0, 0, &zero, 0)); break;
    case 6: MUST(getsockname(stream, (void *)&name, &len)); break;
    case 7: MUST(getpeername(stream, (void *)&name, &len)); break;
    case 8: MUST(getsockopt(stream, SOL_SOCKET, SO_TYPE, &value, &four)); break;
    case 9: MUST(setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value)); break;
    case 10: recv(stream, big, sizeof big, MSG_DONTWAIT); break;
    case 11: sendto(udp, big, 100, MSG_DONTWAIT, (void *)&peer, sizeof peer); break;
    case 12: recvfrom(udp, big, sizeof big, MSG_DONTWAIT, (void *)&name, &len); break;
    case 13: sendmsg(stream, &message, MSG_DONTWAIT | MSG_NOSIGNAL); break;
    case 14: recvmsg(stream, &message, MSG_DONTWAIT); break;
    case 15: fd = MUST(dup(stream)); MUST(dup2(udp, fd)); MUST(close(fd)); break;
    case 16: MUST(fcntl(stream, F_GETFL)); break;
    case 17: MUST(write(pipes[1], "x", 1)); MUST(read(pipes[0], big, 1)); break;
    case 18:
        fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        if (!connect(fd, (void *)&peer, sizeof peer) || errno != EINPROGRESS) fail("connect in a handler");
        shutdown(fd, SHUT_RDWR);
        MUST(close(fd));
        break;
    case 19:
        fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        name = (struct sockaddr_in){.sin_family = AF_INET};
        MUST(bind(fd, (void *)&name, sizeof name));
        MUST(listen(fd, 5));
        if (accept(fd, 0, 0) >= 0 || errno != EAGAIN) fail("accept in a handler");
        MUST(close(fd));
        break;
    case 20: MUST(sigaction(SIGUSR1, 0, &action)); if (signal(SIGUSR2, SIG_IGN) == SIG_ERR) fail("signal"); break;
    case 21: writev(stream, &piece, 1), readv(udp, &piece, 1); break;
    }
}

static void on_alarm(int signal) {
    int before = errno;
    step(steps++);
    if (++handled >= wanted) alarm(0);
    errno = before;
}

// Allocates blocks filled with a byte each, and checks that they are unchanged.
static void churn(unsigned turn) {
    static struct { unsigned char *at, mark; size_t len; } blocks[64];
    unsigned k = turn * 7 % 64;
    for (size_t i = 0; i < blocks[k].len; i += 97)
        if (blocks[k].at[i] != blocks[k].mark) errno = 0, fail("the heap is spoilt");
    free(blocks[k].at);
    blocks[k].len = 100 + turn * 977 % 60000;
    blocks[k].mark = turn;
    blocks[k].at = malloc(blocks[k].len);
    if (!blocks[k].at) fail("malloc");
    memset(blocks[k].at, blocks[k].mark, blocks[k].len);
}

static void handlers(int seconds, int on_other_stack) {
    static char other[1 << 16];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | (on_other_stack ? SA_ONSTACK : 0)};
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0}};
    struct timespec begun, now;
    int mine = connected();
    MUST(sigaltstack(&stack, 0));
    stream = connected();
    udp = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    MUST(pipe(pipes));
    echo(mine);
    MUST(sigaction(SIGALRM, &action, 0));
    MUST(setitimer(ITIMER_REAL, &every, 0));
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (unsigned turn = 0;; turn++) {
        churn(turn);
        if (turn % 64 == 0) echo(mine);
        if (turn % 1024 == 0) datagram();
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begun.tv_sec > seconds && handled >= 44) break;
    }
    MUST(setitimer(ITIMER_REAL, &never, 0));
    for (int turn = 0; turn < 64; turn++) churn(turn);
}

static volatile int done;
static int thread(void *unused) {
    use();
    done = 1;
    syscall(SYS_exit, 0);
    return 0;
}

static void cloned(void) {
    static char stack[1 << 18] __attribute__((aligned(16)));
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    MUST(clone(thread, stack + sizeof stack, flags, 0));
    while (!done) usleep(1000);
    use();
}

static void vforked(void) {
    int fd = connected(), status;
    echo(fd);
    int pid = vfork();
    if (!pid) {
        int copy = dup(fd);
        close(copy);
        _exit(copy < 0 ? 4 : 5);
    }
    while (waitpid(MUST(pid), &status, 0) < 0) {}
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 5) errno = 0, fail("the child of vfork");
    use();
}

// The first socket of the process is used in a handler: later sockets must be as ever.
static void first(int signal) { use(); }
static void in_first(void) {
    signal(SIGUSR1, first);
    raise(SIGUSR1);
    use();
}

static int kept = -1;
static void bye(void) {
    // It was connected before.
    echo(kept);
    MUST(close(kept));
    use();
}

static const char *the_case = "";
__attribute__((constructor)) static void before_main(int count, char **words) {
    if (count < 3) return;
    peer.sin_port = htons(7);
    inet_pton(AF_INET, words[1], &peer.sin_addr);
    the_case = words[2];
    if (!strcmp(the_case, "constructor")) use();
}
__attribute__((destructor)) static void after_main(void) {
    if (!strcmp(the_case, "destructor")) use(), bye();
}

int main(int count, char **words) {
    if (count < 3) return 2;
    if (!strcmp(the_case, "handlers")) handlers(atoi(words[3]), 0);
    else if (!strcmp(the_case, "other-stack")) handlers(atoi(words[3]), 1);
    else if (!strcmp(the_case, "clone")) cloned();
    else if (!strcmp(the_case, "vfork")) vforked();
    else if (!strcmp(the_case, "first")) in_first();
    else if (!strcmp(the_case, "constructor")) use();
    else if (!strcmp(the_case, "destructor")) kept = connected(), echo(kept);
    else if (!strcmp(the_case, "atexit")) kept = connected(), echo(kept), atexit(bye);
    else if (!strcmp(the_case, "connecting")) {
        // No socket is bound to that port.
        struct sockaddr_in unreachable = peer;
        unreachable.sin_addr.s_addr ^= htonl(0x70);
        int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        connect(fd, (void *)&unreachable, sizeof unreachable);
    } else if (!strcmp(the_case, "dlclose")) {
        void *library = dlopen(words[3], RTLD_NOW);
        void (*use_from)(struct sockaddr_in) = library ? dlsym(library, "use_from") : 0;
        if (!use_from) fail("dlopen");
        use_from(peer);
        dlclose(library);
        use();
    } else return 2;
    puts("ok");
    return 0;
}
#endif
