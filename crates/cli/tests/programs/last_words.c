/* Connects, sends more than its slow peer has read, and ends: `last_words ADDRESS PORT HOW`. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int s;

static void *receives(void *nothing)
{
    char byte;

    (void)nothing;
    if (recv(s, &byte, 1, 0) <= 0)
        _exit(8); /* The program saw its own end. */
    return NULL;
}

/* The last of the program's own code: the timer ends the program, unless that ends before. */
static void begin_timer(void)
{
    struct itimerval soon = { .it_value = { .tv_usec = 10000 } };
    setitimer(ITIMER_REAL, &soon, NULL);
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    struct rlimit no_core = { 0, 0 };
    struct sigaction is;
    static char zeros[150000];
    char byte;
    const char *how = argv[3];
    pthread_t thread;

    (void)argc;
    setrlimit(RLIMIT_CORE, &no_core);
    to.sin_port = htons(atoi(argv[2]));
    inet_pton(AF_INET, argv[1], &to.sin_addr);
    s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (void *)&to, sizeof to) || send(s, zeros, sizeof zeros, 0) != sizeof zeros)
        return 7;
    /* The peer has sent a byte. */
    if (recv(s, &byte, 1, strcmp(how, "unread") ? 0 : MSG_PEEK) != 1)
        return 6;
    if (sigaction(SIGTERM, NULL, &is) || is.sa_handler != SIG_DFL || is.sa_flags)
        return 9;
    if (signal(SIGTERM, SIG_DFL) != SIG_DFL)
        return 9;
    if (!strcmp(how, "timer"))
        atexit(begin_timer);
    if (!strcmp(how, "timer") || !strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "unread"))
        exit(0);
    if (!strncmp(how, "close", 5))
        close(s);
    if (!strcmp(how, "close"))
        exit(0);
    if (strstr(how, "exec")) {
        fcntl(s, F_SETFD, FD_CLOEXEC);
        execl("/bin/true", "true", (char *)NULL);
        return 4;
    }
    if (!strcmp(how, "receiving")) {
        pthread_create(&thread, NULL, receives, NULL);
        usleep(50000);
    }
    if (!strcmp(how, "quit"))
        raise(SIGQUIT);
    kill(getpid(), SIGTERM);
    pause();
    return 5;
}
