/* Makes calls that never end with EINTR, under a timer whose handler has no SA_RESTART; prints how many of a
 * thousand did. */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void handler(int signal) { (void)signal; }

int main(void)
{
    struct sigaction action = { .sa_handler = handler };
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
    struct sockaddr_in any = { .sin_family = AF_INET };
    int interrupted = 0, calls = 0;

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (; calls < 3000; calls += 3) {
        int instance = epoll_create1(0), fd = socket(AF_INET, SOCK_STREAM, 0);

        interrupted += instance < 0 && errno == EINTR;
        interrupted += bind(fd, (void *)&any, sizeof any) && errno == EINTR;
        interrupted += listen(fd, 1) && errno == EINTR;
        close(instance);
        close(fd);
    }
    printf("%d\n", interrupted * 1000 / calls);
    return 0;
}
