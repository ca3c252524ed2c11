/* Becomes a daemon that lives for a while, and prints its process number. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    pid_t child = fork();

    if (child > 0) {
        printf("%d\n", child);
        return 0;
    }
    setsid();
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    sleep(60);
    return 0;
}
