/* Calls on sockets whose instructions are counted (.ci/instructions): `calls ROUNDS`. A datagram over loopback is sent and
 * received; then an epoll instance with a readable socket is waited for. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static int from, to, set;

__attribute__((noinline)) void exchanges(int rounds)
{
    char byte = 0;
    for (int i = 0; i < rounds; i++)
        if (send(from, &byte, 1, 0) != 1 || recv(to, &byte, 1, 0) != 1)
            exit(1);
}

__attribute__((noinline)) void waits(int rounds)
{
    struct epoll_event event;
    for (int i = 0; i < rounds; i++)
        if (epoll_wait(set, &event, 1, 0) != 1)
            exit(1);
}

int main(int count, char **words)
{
    int rounds = count == 2 ? atoi(words[1]) : 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN};
    socklen_t len = sizeof at;
    from = socket(AF_INET, SOCK_DGRAM, 0);
    to = socket(AF_INET, SOCK_DGRAM, 0);
    set = epoll_create1(0);
    if (bind(to, (struct sockaddr *)&at, len) || getsockname(to, (struct sockaddr *)&at, &len) ||
        connect(from, (struct sockaddr *)&at, len) || epoll_ctl(set, EPOLL_CTL_ADD, to, &event))
        return 1;
    exchanges(rounds);
    send(from, "x", 1, 0);
    waits(rounds);
    return 0;
}
