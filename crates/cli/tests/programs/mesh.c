/*
 * Processes of one machine that connect to each other at random.
 *
 * mesh COUNT SELF BASE_PORT CONNECTIONS SHARED_FILE
 *
 * Process SELF of COUNT echoes at port BASE_PORT + SELF, and makes connections to the others. Each carries some bytes that
 * follow from its seed, all or in part, and is closed in one of several ways. Every byte that comes back is compared. A
 * connection may fail only if the other process was killed meanwhile: SHARED_FILE has a word for each process, which
 * the test increments before it kills it, and again when it is ready anew. Prints "done" and the number of connections.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static _Atomic uint32_t *kills;
static int count, self, base;

static void die(const char *what)
{
	fprintf(stderr, "process %d: %s: %s\n", self, what, strerror(errno));
	_exit(1);
}

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static struct sockaddr_in address(int process)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(base + process) };
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return at;
}

/* Echoes one connection to its end. */
static void *echo(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char buffer[8192];
	ssize_t got, sent, n;

	while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0)
		for (sent = 0; sent < got; sent += n)
			if ((n = send(fd, buffer + sent, got - sent, MSG_NOSIGNAL)) < 0)
				goto out;
out:
	close(fd);
	return NULL;
}

static void *serve(void *arg)
{
	int listener = (int)(intptr_t)arg;
	pthread_attr_t detached;
	pthread_t thread;

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&detached, 128 << 10);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			die("accept");
		if (pthread_create(&thread, &detached, echo, (void *)(intptr_t)fd))
			die("pthread_create");
	}
	return NULL;
}

/* An error is right only if the other process was killed since. */
static int failed(int process, uint32_t before, const char *what)
{
	if (before % 2 == 0 && atomic_load(&kills[process]) == before)
		die(what);
	return 0;
}

/* One connection to `process`; returns whether it went to its end. */
static int call(int process, uint64_t seed)
{
	static char out[20000], in[20000];
	uint32_t before = atomic_load(&kills[process]);
	uint64_t state = seed;
	struct sockaddr_in at = address(process);
	size_t len = 1 + next(&state) % (next(&state) % 8 ? 300 : sizeof out);
	int how = next(&state) % 4, one = 1;
	struct timeval patience = { .tv_sec = 60 };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	if (connect(fd, (struct sockaddr *)&at, sizeof at)) {
		close(fd);
		return failed(process, before, "connect");
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	for (size_t i = 0; i < len; i++)
		out[i] = (char)(next(&state) >> 32);
	for (size_t sent = 0, came = 0; came < len;) {
		ssize_t n;
		if (sent < len) {
			n = send(fd, out + sent, len - sent, MSG_NOSIGNAL);
			if (n < 0) {
				close(fd);
				return failed(process, before, "send");
			}
			sent += n;
		}
		/* It closes with data unread. */
		if (how == 0 && came)
			break;
		n = recv(fd, in + came, len - came, 0);
		if (n <= 0) {
			close(fd);
			return failed(process, before, n ? "recv" : "the end comes too early");
		}
		if (memcmp(in + came, out + came, n)) {
			errno = 0;
			die("other bytes came back");
		}
		came += n;
	}
	if (how == 1) {
		shutdown(fd, SHUT_WR);
		if (recv(fd, in, 1, 0) != 0) {
			close(fd);
			return failed(process, before, "no end after shutdown");
		}
	} else if (how == 2) {
		struct linger linger = { 1, 0 };
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
	}
	close(fd);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	count = atoi(argv[1]), self = atoi(argv[2]), base = atoi(argv[3]);
	long connections = atol(argv[4]), whole = 0;
	int shared = open(argv[5], O_RDWR), one = 1;
	uint64_t state = 88172645463325252ull ^ ((uint64_t)getpid() << 20);
	struct sockaddr_in at = address(self);
	pthread_t thread;

	kills = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (shared < 0 || kills == MAP_FAILED || listener < 0)
		die("start");
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 512))
		die("listen");
	if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)listener))
		die("pthread_create");
	printf("ready %d\n", getpid());
	fflush(stdout);
	/* All listen. */
	getchar();
	for (long made = 0; made < connections; made++) {
		int process = next(&state) % (count - 1);
		whole += call(process + (process >= self), next(&state));
	}
	printf("done %ld of %ld\n", whole, connections);
	fflush(stdout);
	pthread_join(thread, NULL);
}
