/* Socket calls, errno by errno, on sockets that talk to another host. The transcript on standard output contains no
 * number that may differ from run to run.
 *
 *   conformance OWN PEER PORT          the cases, from OWN to the peer at PEER
 *   conformance OWN PEER PORT limits   the cases of exhausted resources, on a host with few ports
 *   conformance peer PORT              the peer */
#include "conformance.h"

#include <arpa/inet.h>
#include <sys/prctl.h>

int family;
struct address own, peer;
int sigpipes, alarms;
int alarms_to = -1;
volatile char alarms_say;

static const char *current = "";

sigjmp_buf next_case;
/* Calls are made to fail (`short.rs`). */
static int faults;
static pid_t main_process;
static pthread_t main_thread;

/* What a failed call has not sent does not come back, and the rest of a case may wait for it: with the next case the
 * program goes on. */
static void skip_after(int error)
{
    if (!faults || (error != EIO && error != ENOMEM && error != ENOBUFS))
        return;
    if (getpid() != main_process)
        _exit(1);
    if (pthread_equal(pthread_self(), main_thread))
        siglongjmp(next_case, 1);
}

void begin(const char *name)
{
    current = name;
    printf("%s\n", name);
    fflush(stdout);
    /* A case that hangs is named. */
    alarms = sigpipes = 0;
}

long outcome(const char *call, long value, int error)
{
    if (value == -1)
        printf("    %s = -1 %s\n", call, strerrorname_np(error));
    else
        printf("    %s = %ld%s\n", call, value, error ? ", and errno is changed" : "");
    fflush(stdout);
    if (value == -1)
        skip_after(error);
    errno = error;
    return value;
}

int made(const char *call, int fd, int error)
{
    if (fd >= 0)
        printf("    %s = fd%s\n", call, error ? ", and errno is changed" : "");
    else
        printf("    %s = %s\n", call, strerrorname_np(error));
    fflush(stdout);
    if (fd < 0)
        skip_after(error);
    errno = error;
    return fd;
}

void say_value(const char *what, long value)
{
    printf("    %s: %ld\n", what, value);
    fflush(stdout);
}

void say_events(const char *what, unsigned events)
{
    static const struct { unsigned bit; const char *name; } names[] = {
        { POLLIN, "IN" }, { POLLPRI, "PRI" }, { POLLOUT, "OUT" }, { POLLERR, "ERR" }, { POLLHUP, "HUP" },
        { POLLNVAL, "NVAL" }, { POLLRDNORM, "RDNORM" }, { POLLWRNORM, "WRNORM" }, { POLLRDHUP, "RDHUP" },
    };
    printf("    %s:", what);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (events & names[i].bit)
            printf(" %s", names[i].name);
    printf("\n");
}

int port_of(const struct address *address)
{
    return ntohs(((const struct sockaddr_in *)&address->at)->sin_port);
}

struct address with_port(struct address address, int port)
{
    /* sin_port and sin6_port are at the same place. */
    ((struct sockaddr_in *)&address.at)->sin_port = htons(port);
    return address;
}

struct address name_of(int fd)
{
    struct address name = { .len = sizeof name.at };

    getsockname(fd, SA(name), &name.len);
    return name;
}

void say_same(const char *what, const struct address *one, const struct address *other)
{
    char a[INET6_ADDRSTRLEN] = "?", b[INET6_ADDRSTRLEN] = "?";
    int same = one->at.ss_family == other->at.ss_family && port_of(one) == port_of(other);

    if (one->at.ss_family == AF_INET) {
        inet_ntop(AF_INET, &((struct sockaddr_in *)&one->at)->sin_addr, a, sizeof a);
        inet_ntop(AF_INET, &((struct sockaddr_in *)&other->at)->sin_addr, b, sizeof b);
    } else {
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&one->at)->sin6_addr, a, sizeof a);
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&other->at)->sin6_addr, b, sizeof b);
    }
    printf("    %s: %s\n", what, same && !strcmp(a, b) ? "the same" : "different");
}

void fail(const char *what)
{
    int error = errno;

    printf("    FAILED: %s in \"%s\": %s\n", what, current, strerrorname_np(error));
    skip_after(error);
    exit(1);
}

int tcp(void)
{
    int fd = socket(family, SOCK_STREAM, 0);

    if (fd < 0)
        fail("socket");
    return fd;
}

int udp(void)
{
    int fd = socket(family, SOCK_DGRAM, 0);

    if (fd < 0)
        fail("socket");
    return fd;
}

int bound(int type)
{
    int fd = socket(family, type, 0);

    if (fd < 0 || bind(fd, SA(own), own.len))
        fail("bind");
    return fd;
}

pid_t child_process(void)
{
    pid_t child = fork();

    /* As a process number, -1 means all processes. */
    if (child < 0)
        fail("fork");
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

void handle(int signal, struct sigaction action)
{
    /* Without its handler the signal would end the program. */
    if (sigaction(signal, &action, NULL))
        fail("sigaction");
}

int listening(struct address *at)
{
    int fd = bound(SOCK_STREAM);

    if (listen(fd, 8))
        fail("listen");
    *at = name_of(fd);
    return fd;
}

int connected(char command)
{
    int fd = tcp();

    if (connect(fd, SA(peer), peer.len) || write(fd, &command, 1) != 1)
        fail("connect to the peer");
    return fd;
}

int called(char command, const struct address *at)
{
    int fd = connected(command);
    unsigned char port[2] = { port_of(at) >> 8, port_of(at) & 255 };

    if (write(fd, port, 2) != 2)
        fail("ask the peer");
    return fd;
}

void await(int fd, short events)
{
    struct pollfd p = { fd, events, 0 };
    int ready;

    /* SIGURG is sent before the urgent byte can be read, and may interrupt. */
    do
        ready = poll(&p, 1, 3000);
    while (ready < 0 && errno == EINTR);
    if (ready != 1)
        say_events("these events did not come", events);
}

long drain(int fd, long n)
{
    static char data[1 << 16];
    long got = 0, now;

    while (got < n && (now = read(fd, data, n - got < (long)sizeof data ? n - got : (long)sizeof data)) > 0)
        got += now;
    return got;
}

static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
    if (alarms_to >= 0)
        write(alarms_to, (char *)&alarms_say, 1);
}

static void on_pipe(int signal)
{
    (void)signal;
    sigpipes++;
}

void alarm_soon(int restart)
{
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = restart ? SA_RESTART : 0 };
    /* Repeated, as the first may come before the call that it should interrupt. */
    struct itimerval soon = { { .tv_usec = 50000 }, { .tv_usec = 50000 } };

    alarms = 0;
    handle(SIGALRM, action);
    setitimer(ITIMER_REAL, &soon, NULL);
}

void no_alarm(void)
{
    struct itimerval never = { 0 };

    setitimer(ITIMER_REAL, &never, NULL);
}

static struct address parse(const char *text, int port)
{
    struct address address = { 0 };
    struct sockaddr_in *four = (void *)&address.at;
    struct sockaddr_in6 *six = (void *)&address.at;

    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        address.at.ss_family = AF_INET;
        address.len = sizeof *four;
    } else if (inet_pton(AF_INET6, text, &six->sin6_addr) == 1) {
        address.at.ss_family = AF_INET6;
        address.len = sizeof *six;
    }
    return with_port(address, port);
}

int main(int argc, char **argv)
{
    struct sigaction on = { .sa_handler = on_pipe };

    if (argc == 3 && !strcmp(argv[1], "peer"))
        return serve_peer(atoi(argv[2]));
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "conformance OWN PEER PORT [limits] | conformance peer PORT\n");
        return 2;
    }
    faults = getenv("BUSYPOLL_TEST_PANIC") || getenv("BUSYPOLL_TEST_SHORT");
    main_process = getpid();
    main_thread = pthread_self();
    if (sigsetjmp(next_case, 1) == 0)
        handle(SIGPIPE, on);
    own = parse(argv[1], 0);
    peer = parse(argv[2], atoi(argv[3]));
    family = own.at.ss_family;
    if (argc == 5) {
        cases_limits();
        printf("end\n");
        return 0;
    }
    cases_names();
    cases_options();
    cases_tcp();
    cases_udp();
    cases_flags();
    cases_wait();
    cases_epoll();
    cases_descriptors();
    cases_signals();
    cases_urgent();
    printf("end\n");
    return 0;
}
