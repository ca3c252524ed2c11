/* An IFUNC resolver of the program makes and closes a socket, before any library is initialised. */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static int chosen(void)
{
    return 42;
}

static void *choose(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0)
        close(fd);
    return chosen;
}

int answer(void) __attribute__((ifunc("choose")));

int main(void)
{
    printf("%d\n", answer());
}
