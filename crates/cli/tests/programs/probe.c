/* Says how long a datagram socket polls once it is bound. */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>

int main(void)
{
    struct sockaddr_in any = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), micros = -1;
    socklen_t len = sizeof micros;

    if (bind(fd, (void *)&any, sizeof any) || getsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &micros, &len))
        return 1;
    printf("%d\n", micros);
    return 0;
}
