/* What the cases share: printing the result of a call, and the peer they talk to. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* An address of either family. */
struct address {
    struct sockaddr_storage at;
    socklen_t len;
};
#define SA(a) ((struct sockaddr *)&(a).at)

extern int family;          /* AF_INET or AF_INET6 */
extern struct address own;  /* of this host, port 0 */
extern struct address peer; /* the peer's address and port */
extern int sigpipes;        /* how many SIGPIPE there were */
extern int alarms;          /* how many SIGALRM there were */
extern int alarms_to;       /* a pipe that is written at each SIGALRM, if not below zero */
extern volatile char alarms_say;

extern sigjmp_buf next_case;
/* Runs a function of cases; a call that was made to fail ends it. */
#define CASE(call) do { if (!sigsetjmp(next_case, 1)) call; no_alarm(); } while (0)
/* Begins a case. */
void begin(const char *name);
/* Prints the result of a call: its value, or the name of the error. */
long outcome(const char *call, long value, int error);
/* The same, for a call that makes a descriptor: its number is not printed. */
int made(const char *call, int fd, int error);

#define DO(call) ({ errno = 0; long v_ = (long)(call); outcome(#call, v_, errno); })
#define FD(call) ({ errno = 0; int v_ = (call); made(#call, v_, errno); })
/* Prints a value. */
#define SAY(expression) say_value(#expression, (long)(expression))
void say_value(const char *what, long value);
/* Prints the events of poll(2) or epoll, by name. */
void say_events(const char *what, unsigned events);
/* Prints whether two addresses are equal, including the port. */
void say_same(const char *what, const struct address *one, const struct address *other);

/* The same address with another port. */
struct address with_port(struct address address, int port);
int port_of(const struct address *address);
struct address name_of(int fd);

/* Prints what failed, and ends the program; where calls are made to fail, the case. */
void fail(const char *what);

/* Make the objects that a case starts from; end the program if they cannot. */
int tcp(void);
int udp(void);
int bound(int type);
int listening(struct address *at);
/* A connection to the peer, which does there what `command` says; see peer.c. */
int connected(char command);
/* Makes the peer connect to `at` and send "hi" there; with 'R' it resets at once, with 'u' it sends a datagram.
 * Returns the connection that keeps the peer doing so. */
int called(char command, const struct address *at);
/* Waits up to 3 s for the events; says so if they do not come. */
void await(int fd, short events);
/* Reads until n bytes or the end; returns how many. */
long drain(int fd, long n);
/* fork(2); ends the program if it fails. */
pid_t child_process(void);
/* sigaction(2); ends the program if it fails. */
void handle(int signal, struct sigaction action);
/* A SIGALRM every 50 ms, with SA_RESTART or without. */
void alarm_soon(int restart);
void no_alarm(void);

int serve_peer(int port);

void cases_names(void);
void cases_options(void);
void cases_tcp(void);
void cases_udp(void);
void cases_flags(void);
void cases_wait(void);
void cases_epoll(void);
void cases_descriptors(void);
void cases_signals(void);
void cases_limits(void);
void cases_urgent(void);

#endif
