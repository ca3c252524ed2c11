/* Flags of sends and receives, and transfers in parts. */
#include "conformance.h"

#include <limits.h>

static void on_streams(void)
{
    char data[64];
    struct iovec parts[3] = { { data, 3 }, { data + 20, 0 }, { data + 30, 4 } };
    struct msghdr m = { .msg_iov = parts, .msg_iovlen = 3 };
    struct address name = { .len = sizeof name.at };
    int s = connected('e');

    begin("flags on a stream");
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(send(s, "0123456789", 10, MSG_MORE));
    DO(send(s, "", 0, 0));
    DO(send(s, "abc", 3, 0));
    SAY(recv(s, data, 13, MSG_PEEK | MSG_WAITALL));
    DO(recv(s, data, 4, MSG_PEEK));
    DO(recv(s, data, 4, 0));
    SAY(data[0] - '0');
    DO(recv(s, data, 2, MSG_TRUNC));
    DO(recvmsg(s, &m, 0));
    SAY(m.msg_flags);
    SAY(m.msg_namelen);
    SAY(data[30] - '0');
    DO(recv(s, data, sizeof data, MSG_DONTWAIT));
    DO(recv(s, data, sizeof data, MSG_OOB));
    DO(recv(s, data, sizeof data, MSG_ERRQUEUE));
    DO(recv(s, data, 0, MSG_DONTWAIT));
    DO(send(s, "x", 1, MSG_DONTWAIT));
    DO(recvfrom(s, data, sizeof data, 0, SA(name), &name.len));
    SAY(name.len == sizeof name.at || name.len == 0);
    DO(sendto(s, "x", 1, 0, SA(peer), peer.len));
    drain(s, 1);
    DO(recv(s, NULL, 0, MSG_DONTWAIT));
    close(s);
}

static void in_parts(void)
{
    char a[4] = "", b[8] = "";
    struct iovec out[3] = { { "ab", 2 }, { "", 0 }, { "cde", 3 } };
    struct iovec in[2] = { { a, 2 }, { b, 8 } };
    static struct iovec many[IOV_MAX + 1];
    struct msghdr m = { .msg_iov = many, .msg_iovlen = IOV_MAX + 1 };
    int s = connected('e');

    begin("readv, writev and the like");
    DO(writev(s, out, 3));
    SAY(recv(s, a, 1, MSG_PEEK) == 1);
    for (int got = 0; got < 5 && ioctl(s, FIONREAD, &got) == 0;)
        usleep(1000);
    DO(readv(s, in, 2));
    SAY(a[1] - 'a');
    SAY(b[2] - 'a');
    DO(writev(s, out, 0));
    DO(writev(s, out, -1));
    DO(writev(s, many, IOV_MAX + 1));
    DO(readv(s, many, IOV_MAX + 1));
    DO(sendmsg(s, &m, 0));
    DO(recvmsg(s, &m, MSG_DONTWAIT));
    DO(preadv2(s, in, 2, -1, RWF_NOWAIT));
    DO(pwritev2(s, out, 1, -1, 0));
    await(s, POLLIN);
    DO(preadv2(s, in, 2, -1, 0));
    DO(preadv2(s, in, 2, 5, 0));
    DO(pread(s, a, 1, 0));
    DO(pwrite(s, a, 1, 0));
    DO(lseek(s, 0, SEEK_CUR));
    DO(sendmsg(s, NULL, 0));
    DO(readv(s, NULL, 1));
    DO(writev(s, NULL, 1));
    DO(close_range(s, s, 0x100));
    DO(send(s, "x", 1, 0));
    close(s);
    DO(readv(s, in, 2));
    DO(writev(s, out, 3));
    DO(recv(s, a, 1, 0));
    DO(send(s, a, 1, 0));
    DO(recv(STDERR_FILENO, a, 1, 0));
    DO(send(STDERR_FILENO, a, 1, 0));
}

static void in_time(void)
{
    struct timeval soon = { 0, 30000 }, never = { 0 };
    struct address at;
    char data[4];
    int s = connected('e'), l = listening(&at), u = bound(SOCK_DGRAM);

    begin("SO_RCVTIMEO");
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    setsockopt(u, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    DO(recv(s, data, 1, 0));
    DO(read(s, data, 1));
    DO(accept(l, NULL, NULL));
    DO(recv(u, data, 1, 0));
    DO(write(s, "abc", 3));
    /* On a busy machine the echo may take longer than the timeout. */
    for (int got = 0; got < 3 && ioctl(s, FIONREAD, &got) == 0;)
        usleep(1000);
    DO(recv(s, data, 4, MSG_WAITALL));
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never);
    DO(write(s, "d", 1));
    DO(recv(s, data, 1, 0));
    close(s);
    close(l);
    close(u);
}

void cases_flags(void)
{
    CASE(on_streams());
    CASE(in_parts());
    CASE(in_time());
}
