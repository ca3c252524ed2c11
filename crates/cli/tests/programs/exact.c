/* Waits that must end as the kernel's own, though the library may make several system calls for one. Takes the name
 * of a case; prints "as it should", or the check that failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: not %s; errno %d\n", __LINE__, #condition, errno); \
            exit(1); \
        } \
    } while (0)

static int quiet(void)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int s = socket(AF_INET, SOCK_DGRAM, 0);

    CHECK(bind(s, (void *)&any, sizeof any) == 0);
    return s;
}

static volatile sig_atomic_t handled;

static void count(int signal)
{
    (void)signal;
    handled++;
}

static void every(int microseconds, int again)
{
    struct itimerval timer = { { 0, again ? microseconds : 0 }, { 0, microseconds } };

    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* A handler that is removed when it has run (SA_RESETHAND). */
static void once(void)
{
    struct sigaction action = { .sa_handler = count, .sa_flags = SA_RESETHAND };
    struct pollfd fd = { quiet(), POLLIN, 0 };

    sigaction(SIGALRM, &action, NULL);
    every(50000, 0);
    CHECK(poll(&fd, 1, 30000) == -1 && errno == EINTR && handled == 1);
    sigaction(SIGALRM, NULL, &action);
    CHECK(action.sa_handler == SIG_DFL);
}

/* select writes back the remaining time, also when a signal ends the wait. */
static void left(void)
{
    struct timeval time = { 0, 300000 };
    int s = quiet(), result;
    fd_set set;

    signal(SIGALRM, count);
    every(10000, 1);
    do {
        FD_ZERO(&set);
        FD_SET(s, &set);
        result = select(s + 1, &set, NULL, NULL, &time);
    } while (result < 0 && errno == EINTR);
    /* Each interrupted wait takes ten milliseconds at least. */
    CHECK(result == 0 && handled <= 31);
    CHECK(time.tv_sec == 0 && time.tv_usec == 0);
}

static void wrong(void)
{
    struct timespec time = { 0, 1500000000 };
    struct pollfd fd = { quiet(), POLLIN, 0 };
    fd_set set;

    CHECK(ppoll(&fd, 1, &time, NULL) == -1 && errno == EINVAL);
    FD_ZERO(&set);
    CHECK(pselect(0, &set, NULL, NULL, &time, NULL) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(signal(SIGUSR1, SIG_ERR) == SIG_ERR && errno == EINVAL);
}

/* Some events are reported only to the first poll: a change of the mount table. */
static void news(void)
{
    struct pollfd fds[2] = { { quiet(), POLLIN, 0 }, { open("/proc/self/mountinfo", O_RDONLY), POLLPRI, 0 } };
    char text[4096];

    CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    close(fds[1].fd);
    fds[1].fd = open("/proc/self/mountinfo", O_RDONLY);
    while (read(fds[1].fd, text, sizeof text) > 0)
        ;
    CHECK(poll(fds, 2, 1) == 0);
    CHECK(mount("none", "/tmp", "tmpfs", 0, NULL) == 0);
    CHECK(poll(fds, 2, 30000) == 1 && fds[1].revents & POLLPRI);
}

/* In a process with a seccomp filter the library must not make calls that the program does not make. */
static void confined(void)
{
    struct pollfd fd = { quiet(), POLLIN, 0 };
    int calls[] = {
#ifdef SYS_poll
        SYS_poll,
#endif
        SYS_ppoll, SYS_recvfrom, SYS_write, SYS_newfstatat, SYS_exit_group
    };
    struct sock_filter filter[32] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
    struct sock_fprog program = { 1, filter };
    char byte;

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        filter[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    setvbuf(stdout, NULL, _IONBF, 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    /* A filter that the kernel refuses confines nothing. */
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    for (int i = 0; i < 3000; i++) {
        CHECK(poll(&fd, 1, i % 100 == 0) == 0);
        CHECK(recv(fd.fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    write(1, "as it should\n", 13);
    _exit(0);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    { "once", once }, { "left", left }, { "wrong", wrong }, { "news", news }, { "confined", confined },
};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (argc > 1 && strcmp(argv[1], CASES[i].name) == 0) {
            CASES[i].run();
            puts("as it should");
            return 0;
        }
    }
    return 2;
}
