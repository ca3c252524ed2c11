/* Prints how long a datagram socket polls once it is bound; with `sets N` it sets the option itself. With `hides` it
 * is not dumpable, so that no other process can inspect it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

int main(int count, char **arguments)
{
    struct sockaddr_in any = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), micros = -1;
    socklen_t len = sizeof micros;

    if (count == 2 && !strcmp(arguments[1], "hides"))
        prctl(PR_SET_DUMPABLE, 0);
    if (count == 3 && !strcmp(arguments[1], "sets")) {
        micros = atoi(arguments[2]);
        setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &micros, len);
    }
    if (bind(fd, (void *)&any, sizeof any) || getsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &micros, &len))
        return 1;
    printf("%d\n", micros);
    return 0;
}
