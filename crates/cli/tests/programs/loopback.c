/* Loopback over a wire: what a program sends to 127.0.0.1 or ::1 goes to a mirror, which sends it back to the program's
 * own address. The program sees only loopback addresses.
 *
 *   bind, and local ends:          127.0.0.1 <-> LOOPBACK_OWN4      ::1 <-> LOOPBACK_OWN6
 *   connect, sends, remote ends:   127.0.0.1 <-> LOOPBACK_MIRROR4   ::1 <-> LOOPBACK_MIRROR6
 *
 * It comes before busypoll's library in LD_PRELOAD. Calls that the library itself makes are not mapped, and of the
 * program's sockets only TCP and UDP. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static struct { in_addr_t loopback, own, mirror; } v4;
static struct { struct in6_addr loopback, own, mirror, own4, mirror4, loopback4; int on; } v6;

/* The addresses at which busypoll's library is mapped. */
static struct { unsigned long begin, end; } library;

static int look_for_library(struct dl_phdr_info *info, size_t size, void *nothing)
{
	(void)size, (void)nothing;
	if (!strstr(info->dlpi_name, "libbusypoll_preload"))
		return 0;
	library.begin = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		unsigned long end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;

		if (info->dlpi_phdr[i].p_type == PT_LOAD && end > library.end)
			library.end = end;
	}
	return 1;
}

/* Whether busypoll's library called the function that uses this macro. */
#define FROM_LIBRARY ({ \
	unsigned long from = (unsigned long)__builtin_return_address(0); \
	from >= library.begin && from < library.end; })

static struct in6_addr mapped(in_addr_t address)
{
	struct in6_addr result = { .s6_addr = { [10] = 0xff, [11] = 0xff } };

	memcpy(result.s6_addr + 12, &address, 4);
	return result;
}

__attribute__((constructor)) static void read_environment(void)
{
	const char *own4 = getenv("LOOPBACK_OWN4"), *mirror4 = getenv("LOOPBACK_MIRROR4");
	const char *own6 = getenv("LOOPBACK_OWN6"), *mirror6 = getenv("LOOPBACK_MIRROR6");

	dl_iterate_phdr(look_for_library, NULL);
	v4.loopback = htonl(INADDR_LOOPBACK);
	/* In a program that was given another environment, loopback stays unmapped. */
	v4.own = own4 ? inet_addr(own4) : v4.loopback;
	v4.mirror = mirror4 ? inet_addr(mirror4) : v4.loopback;
	v6.loopback = in6addr_loopback;
	v6.on = own6 && mirror6 && inet_pton(AF_INET6, own6, &v6.own) == 1 &&
		inet_pton(AF_INET6, mirror6, &v6.mirror) == 1;
	v6.own4 = mapped(v4.own);
	v6.mirror4 = mapped(v4.mirror);
	v6.loopback4 = mapped(v4.loopback);
}

#define NEXT(name) ({ \
	static __typeof__(&name) found; \
	if (!found) \
		found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
	found; })

static int same(const void *a, const struct in6_addr *b)
{
	return !memcmp(a, b, sizeof *b);
}

/* An address, and room for the mapped address. */
union place {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static int is_ip(int fd)
{
	int protocol = 0;
	socklen_t len = sizeof protocol;
	int before = errno;
	int ok = !NEXT(getsockopt)(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) &&
		 (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP);

	errno = before;
	return ok;
}

static int is_loopback(const struct sockaddr *a, socklen_t len)
{
	if (!a)
		return 0;
	if (len >= sizeof(struct sockaddr_in) && a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr == v4.loopback;
	if (len >= sizeof(struct sockaddr_in6) && a->sa_family == AF_INET6) {
		const void *at = &((const struct sockaddr_in6 *)a)->sin6_addr;

		return same(at, &v6.loopback4) || (v6.on && same(at, &v6.loopback));
	}
	return 0;
}

/* For a destination the unspecified address means loopback. */
static int is_unspecified(const struct sockaddr *a, socklen_t len)
{
	if (!a)
		return 0;
	if (len >= sizeof(struct sockaddr_in) && a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr == INADDR_ANY;
	return len >= sizeof(struct sockaddr_in6) && a->sa_family == AF_INET6 && v6.on &&
	       same(&((const struct sockaddr_in6 *)a)->sin6_addr, &in6addr_any);
}

/* The same address on the wire: our own end, or the far one. */
static const struct sockaddr *out(int fd, const struct sockaddr *a, socklen_t len, int far, union place *to)
{
	if (!(is_loopback(a, len) || (far && is_unspecified(a, len))) || !is_ip(fd))
		return a;
	if (a->sa_family == AF_INET) {
		memcpy(&to->in, a, sizeof to->in);
		to->in.sin_addr.s_addr = far ? v4.mirror : v4.own;
	} else {
		memcpy(&to->in6, a, sizeof to->in6);
		if (same(&to->in6.sin6_addr, &v6.loopback4))
			to->in6.sin6_addr = far ? v6.mirror4 : v6.own4;
		else
			to->in6.sin6_addr = far ? v6.mirror : v6.own;
	}
	return &to->any;
}

static void in4(in_addr_t *a)
{
	if (*a == v4.own || *a == v4.mirror)
		*a = v4.loopback;
}

static void in6(struct in6_addr *a)
{
	if (same(a, &v6.own4) || same(a, &v6.mirror4))
		*a = v6.loopback4;
	else if (v6.on && (same(a, &v6.own) || same(a, &v6.mirror)))
		*a = v6.loopback;
}

/* A wire address as the program knows it. The address may be cut off. */
static void in(struct sockaddr *a, socklen_t room, socklen_t len)
{
	union place place;

	if (!a)
		return;
	if (len > room)
		len = room;
	if (len < offsetof(struct sockaddr_in, sin_addr) || len > sizeof place)
		return;
	memcpy(&place, a, len);
	if (a->sa_family == AF_INET && len >= 8)
		in4(&place.in.sin_addr.s_addr);
	else if (a->sa_family == AF_INET6 && len >= 24)
		in6(&place.in6.sin6_addr);
	memcpy(a, &place, len);
}

int bind(int fd, const struct sockaddr *a, socklen_t len)
{
	union place to;

	if (FROM_LIBRARY)
		return NEXT(bind)(fd, a, len);
	return NEXT(bind)(fd, out(fd, a, len, 0, &to), len);
}

int connect(int fd, const struct sockaddr *a, socklen_t len)
{
	union place to;

	if (FROM_LIBRARY)
		return NEXT(connect)(fd, a, len);
	return NEXT(connect)(fd, out(fd, a, len, 1, &to), len);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *a, socklen_t len)
{
	union place to;

	if (FROM_LIBRARY)
		return NEXT(sendto)(fd, data, size, flags, a, len);
	return NEXT(sendto)(fd, data, size, flags, out(fd, a, len, 1, &to), len);
}

#define NAMED(name) \
	int name(int fd, struct sockaddr *a, socklen_t *len) \
	{ \
		socklen_t room = len ? *len : 0; \
		int result = NEXT(name)(fd, a, len); \
\
		if (result >= 0 && len && !FROM_LIBRARY) \
			in(a, room, *len); \
		return result; \
	}

NAMED(getsockname)
NAMED(getpeername)
NAMED(accept)

int accept4(int fd, struct sockaddr *a, socklen_t *len, int flags)
{
	socklen_t room = len ? *len : 0;
	int result = NEXT(accept4)(fd, a, len, flags);

	if (result >= 0 && len && !FROM_LIBRARY)
		in(a, room, *len);
	return result;
}

ssize_t recvfrom(int fd, void *data, size_t size, int flags, struct sockaddr *a, socklen_t *len)
{
	socklen_t room = len ? *len : 0;
	ssize_t result = NEXT(recvfrom)(fd, data, size, flags, a, len);

	if (result >= 0 && len && !FROM_LIBRARY)
		in(a, room, *len);
	return result;
}

ssize_t __recvfrom_chk(int fd, void *data, size_t size, size_t most, int flags, struct sockaddr *a, socklen_t *len)
{
	if (size > most)
		abort();
	return recvfrom(fd, data, size, flags, a, len);
}

/* The addresses in the control messages: IP_PKTINFO, IPV6_PKTINFO. The destination is our own. */
static void controls(struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO &&
		    c->cmsg_len >= CMSG_LEN(sizeof(struct in_pktinfo))) {
			struct in_pktinfo *info = (void *)CMSG_DATA(c);

			in4(&info->ipi_addr.s_addr);
			in4(&info->ipi_spec_dst.s_addr);
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO &&
			   c->cmsg_len >= CMSG_LEN(sizeof(struct in6_pktinfo))) {
			in6(&((struct in6_pktinfo *)CMSG_DATA(c))->ipi6_addr);
		}
	}
}

static void message_in(struct msghdr *m, socklen_t room)
{
	in(m->msg_name, room, m->msg_namelen);
	if (m->msg_control)
		controls(m);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct msghdr copy;
	union place to;

	if (!m || !m->msg_name || FROM_LIBRARY)
		return NEXT(sendmsg)(fd, m, flags);
	copy = *m;
	copy.msg_name = (void *)out(fd, m->msg_name, m->msg_namelen, 1, &to);
	return NEXT(sendmsg)(fd, &copy, flags);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	socklen_t room = m ? m->msg_namelen : 0;
	ssize_t result = NEXT(recvmsg)(fd, m, flags);

	if (result >= 0 && m && !FROM_LIBRARY)
		message_in(m, room);
	return result;
}

enum { MANY = 64 };

int sendmmsg(int fd, struct mmsghdr *m, unsigned int count, int flags)
{
	struct mmsghdr copies[MANY];
	union place to[MANY];
	int sent;

	if (!m || FROM_LIBRARY)
		return NEXT(sendmmsg)(fd, m, count, flags);
	/* Callers continue after a result below `count`. */
	if (count > MANY)
		count = MANY;
	for (unsigned int i = 0; i < count; i++) {
		struct msghdr *h = &copies[i].msg_hdr;

		copies[i] = m[i];
		h->msg_name = (void *)out(fd, h->msg_name, h->msg_namelen, 1, &to[i]);
	}
	sent = NEXT(sendmmsg)(fd, copies, count, flags);
	for (int i = 0; i < sent; i++)
		m[i].msg_len = copies[i].msg_len;
	return sent;
}

int recvmmsg(int fd, struct mmsghdr *m, unsigned int count, int flags, struct timespec *limit)
{
	socklen_t room[MANY];
	int came;

	if (!m || FROM_LIBRARY)
		return NEXT(recvmmsg)(fd, m, count, flags, limit);
	if (count > MANY)
		count = MANY;
	for (unsigned int i = 0; i < count; i++)
		room[i] = m[i].msg_hdr.msg_namelen;
	came = NEXT(recvmmsg)(fd, m, count, flags, limit);
	for (int i = 0; i < came; i++)
		message_in(&m[i].msg_hdr, room[i]);
	return came;
}

/* Groups joined on the interface of 127.0.0.1 are joined on the wire's interface; so are sends to groups. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct ip_mreqn group;
	struct ip_mreq_source source;
	in_addr_t interface;

	if (level == IPPROTO_IP && value && !FROM_LIBRARY && is_ip(fd)) {
		if ((name == IP_ADD_MEMBERSHIP || name == IP_DROP_MEMBERSHIP) &&
		    (len == sizeof(struct ip_mreq) || len == sizeof group)) {
			memcpy(&group, value, len);
			if (group.imr_address.s_addr == v4.loopback)
				group.imr_address.s_addr = v4.own;
			return NEXT(setsockopt)(fd, level, name, &group, len);
		}
		if (name == IP_MULTICAST_IF && len == sizeof interface) {
			memcpy(&interface, value, len);
			if (interface == v4.loopback)
				interface = v4.own;
			return NEXT(setsockopt)(fd, level, name, &interface, len);
		}
		if ((name == IP_ADD_SOURCE_MEMBERSHIP || name == IP_DROP_SOURCE_MEMBERSHIP) && len == sizeof source) {
			memcpy(&source, value, len);
			if (source.imr_interface.s_addr == v4.loopback)
				source.imr_interface.s_addr = v4.own;
			if (source.imr_sourceaddr.s_addr == v4.loopback)
				source.imr_sourceaddr.s_addr = v4.own;
			return NEXT(setsockopt)(fd, level, name, &source, len);
		}
	}
	return NEXT(setsockopt)(fd, level, name, value, len);
}
