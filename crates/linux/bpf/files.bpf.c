/* Every socket, epoll instance and io_uring that any process has open, as records (iter/task_file).
 *
 * A file's kind is recognised by its f_op, whose addresses are not exported: the reader first runs the program over
 * its own files, whose kinds it knows, and fills the map `kinds` with their f_op.
 */
#include "kernel.h"

enum { KIND_SOCKET = 1, KIND_EPOLL = 2, KIND_URING = 3, KIND_UNKNOWN = 4 };
enum { AF_INET = 2, AF_INET6 = 10, AF_PACKET = 17, AF_XDP = 44, SOCK_STREAM = 1 };

struct record {
    u32 kind, pid, fd, netns;
    u64 object; /* the same for all descriptors of one open file; KIND_UNKNOWN: its operations */
    u64 inode;
    u64 cookie; /* 0 until a program has asked for SO_COOKIE */
    u32 usecs, napi_id, budget, prefer;
    u32 family, type, protocol, state;
    u32 bound_ifindex, local_port, peer_port, incoming_cpu;
    u8 local[16], peer[16];
    char ulp[16]; /* what is stacked on TCP: "tls" */
    char proto[32];
    u64 uring_timeout_ns;
    u32 uring_flags, uring_tracking;
};

struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 8);
    MAP_TYPE(key, u64);
    MAP_TYPE(value, u32);
} kinds SEC(".maps");

struct wish {
    u32 only_pid; /* unless 0 */
    u32 learn;    /* the reader learns the kinds: tell every file's operations */
};

struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, struct wish);
} wishes SEC(".maps");

INLINE int socket_record(struct record *r, struct sock *sk) {
    r->family = sk->__sk_common.skc_family;
    if (r->family != AF_INET && r->family != AF_INET6 && r->family != AF_PACKET && r->family != AF_XDP)
        return 0;
    r->kind = KIND_SOCKET;
    r->netns = sk->__sk_common.skc_net.net->ns.inum;
    r->cookie = sk->__sk_common.skc_cookie.counter;
    r->state = sk->__sk_common.skc_state;
    r->bound_ifindex = sk->__sk_common.skc_bound_dev_if;
    r->incoming_cpu = sk->__sk_common.skc_incoming_cpu;
    r->type = sk->sk_type;
    r->protocol = sk->sk_protocol;
    if (PRESENT(sk->sk_ll_usec)) {
        r->usecs = sk->sk_ll_usec;
        r->napi_id = sk->sk_napi_id;
    }
    if (PRESENT(sk->sk_prefer_busy_poll)) {
        r->prefer = sk->sk_prefer_busy_poll;
        r->budget = sk->sk_busy_poll_budget;
    }
    READ_STRING(r->proto, sk->__sk_common.skc_prot->name);
    if (r->family == AF_INET || r->family == AF_INET6) {
        r->local_port = sk->__sk_common.skc_num;
        r->peer_port = __builtin_bswap16(sk->__sk_common.skc_dport);
        if (r->family == AF_INET) {
            READ(*(u32 *)r->local, sk->__sk_common.skc_rcv_saddr);
            READ(*(u32 *)r->peer, sk->__sk_common.skc_daddr);
        } else {
            READ(r->local, sk->__sk_common.skc_v6_rcv_saddr);
            READ(r->peer, sk->__sk_common.skc_v6_daddr);
        }
        if (r->type == SOCK_STREAM && r->protocol == IPPROTO_TCP) {
            const struct tcp_ulp_ops *ulp = 0;
            READ(ulp, ((struct inet_connection_sock *)sk)->icsk_ulp_ops);
            if (ulp)
                READ_STRING(r->ulp, ulp->name);
        }
    }
    return 1;
}

INLINE void epoll_record(struct record *r, struct eventpoll *ep) {
    if (PRESENT(ep->napi_id))
        READ(r->napi_id, ep->napi_id);
    if (PRESENT(ep->busy_poll_usecs)) {
        u16 budget = 0;
        u8 prefer = 0;
        READ(r->usecs, ep->busy_poll_usecs);
        READ(budget, ep->busy_poll_budget);
        READ(prefer, ep->prefer_busy_poll);
        r->budget = budget;
        r->prefer = prefer;
    }
}

INLINE void uring_record(struct record *r, struct io_ring_ctx *ring) {
    READ(r->uring_flags, ring->flags);
    if (PRESENT(ring->napi_busy_poll_dt)) {
        u8 prefer = 0;
        READ(r->uring_timeout_ns, ring->napi_busy_poll_dt);
        READ(prefer, ring->napi_prefer_busy_poll);
        r->prefer = prefer;
    }
    if (PRESENT(ring->napi_track_mode)) {
        u8 mode = 0;
        READ(mode, ring->napi_track_mode);
        r->uring_tracking = mode;
    }
}

SEC("iter/task_file")
int files(struct bpf_iter__task_file *ctx) {
    struct task_struct *task = ctx->task;
    struct file *file = ctx->file;
    u32 zero = 0;
    struct wish *wish = map_lookup(&wishes, &zero);
    if (!task || !file || !wish)
        return 0;
    struct record r = {};
    r.pid = task->tgid;
    if (wish->only_pid && r.pid != wish->only_pid)
        return 0;
    r.fd = ctx->fd;
    r.inode = file->f_inode->i_ino;
    struct socket *socket = sock_from_file(file);
    if (socket) {
        struct sock *sk = socket->sk;
        r.object = r.inode;
        if (wish->learn || !sk || !socket_record(&r, sk))
            return 0;
    } else {
        u64 ops = (u64)file->f_op;
        u32 *kind = map_lookup(&kinds, &ops);
        r.object = (u64)file;
        if (wish->learn) {
            r.kind = KIND_UNKNOWN;
            r.object = ops;
        } else if (!kind) {
            return 0;
        } else {
            r.kind = *kind;
            if (r.kind == KIND_EPOLL)
                epoll_record(&r, file->private_data);
            else
                uring_record(&r, file->private_data);
        }
    }
    seq_write(ctx->meta->seq, &r, sizeof(r));
    return 0;
}
