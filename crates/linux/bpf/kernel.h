/* The members of the kernel's types that the programs here read, and the helpers they call.
 *
 * The members are found by name in the running kernel's BTF (CO-RE), so an object built once fits every
 * kernel; before it reads a member that some kernels lack, a program tests PRESENT. Members keep the kernel's names
 * and sizes; their order and the gaps between them do not matter.
 *
 * Kernel source: include/net/sock.h, include/linux/netdevice.h, fs/eventpoll.c,
 * include/linux/io_uring_types.h, include/linux/sched.h, include/uapi/linux/bpf.h.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* The definition of a map, which the loader reads from the type of a variable in ".maps". */
#define MAP_NUMBER(name, value) int(*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name
enum { ARRAY = 2, HASH = 1, PERCPU_HASH = 5, PERCPU_ARRAY = 6, LRU_HASH = 9, RINGBUF = 27 };
enum { ANY = 0, NOEXIST = 1, NO_PREALLOC = 1 };

enum { NET_RX_SOFTIRQ = 3, PF_KTHREAD = 0x00200000, IPPROTO_TCP = 6, IPPROTO_UDP = 17 };

struct task_struct;
struct pt_regs;
struct socket;
struct file;
struct __sk_buff;

/* Helpers by number (enum bpf_func_id). */
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const clock_ns)(void) = (void *)5;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static u32 (*const current_cpu)(void) = (void *)8;
static long (*const skb_load_bytes)(const void *skb, u32 offset, void *to, u32 len) = (void *)26;
static struct task_struct *(*const current_task)(void) = (void *)35;
static u64 (*const socket_cookie)(void *ctx) = (void *)46;
static long (*const current_comm)(void *to, u32 size) = (void *)16;
static long (*const probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static long (*const seq_write)(void *seq, const void *data, u32 size) = (void *)127;
static void *(*const ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *data, u64 flags) = (void *)132;
static struct pt_regs *(*const task_pt_regs)(struct task_struct *task) = (void *)175;
static struct socket *(*const sock_from_file)(struct file *file) = (void *)162;

/* Whether the running kernel has a member. */
#define PRESENT(member) __builtin_preserve_field_info(member, 2)
/* Reads a member through a pointer whose type the verifier does not know. */
#define READ(to, member) probe_read_kernel(&(to), sizeof(to), __builtin_preserve_access_index(&(member)))
#define READ_STRING(to, member) \
    probe_read_kernel_str(&(to), sizeof(to), __builtin_preserve_access_index(&(member)))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
    unsigned int inum;
};
struct net {
    struct ns_common ns;
};
typedef struct {
    struct net *net;
} possible_net_t;

struct rtnl_link_ops {
    const char *kind;
};
struct net_device {
    unsigned int flags;
    const struct rtnl_link_ops *rtnl_link_ops;
    int ifindex;
    char name[16];
    possible_net_t nd_net;
};

struct napi_struct {
    unsigned long state;
    struct net_device *dev;
    unsigned int napi_id;
};

struct inode {
    unsigned long i_ino;
};
struct file_operations;
struct file {
    const struct file_operations *f_op;
    void *private_data;
    struct inode *f_inode;
};

struct in6_addr {
    union {
        u8 u6_addr8[16];
    } in6_u;
};
struct proto {
    char name[32];
};
typedef struct {
    s64 counter;
} atomic64_t;
struct sock_common {
    u32 skc_daddr;
    u32 skc_rcv_saddr;
    u16 skc_dport;
    u16 skc_num;
    unsigned short skc_family;
    volatile unsigned char skc_state;
    int skc_bound_dev_if;
    struct proto *skc_prot;
    possible_net_t skc_net;
    struct in6_addr skc_v6_daddr;
    struct in6_addr skc_v6_rcv_saddr;
    atomic64_t skc_cookie;
    int skc_incoming_cpu;
};
struct sk_buff_head {
    u32 qlen;
};
struct sock {
    struct sock_common __sk_common;
    struct sk_buff_head sk_receive_queue;
    unsigned int sk_ll_usec;
    unsigned int sk_napi_id;
    u16 sk_busy_poll_budget;
    u8 sk_prefer_busy_poll;
    u16 sk_protocol;
    u16 sk_type;
};
struct udp_sock {
    struct sk_buff_head reader_queue;
};
struct tcp_sock {
    u32 copied_seq;
};
struct sk_buff {
    struct sock *sk;
    struct net_device *dev;
    unsigned int len;
    unsigned int napi_id;
    u16 transport_header;
    unsigned char *head, *data;
};
struct socket {
    struct sock *sk;
};
struct tcp_ulp_ops {
    char name[16];
};
struct inet_connection_sock {
    const struct tcp_ulp_ops *icsk_ulp_ops;
};

struct eventpoll {
    unsigned int napi_id;
    u32 busy_poll_usecs;
    u16 busy_poll_budget;
    _Bool prefer_busy_poll;
};

struct io_ring_ctx {
    unsigned int flags;
    s64 napi_busy_poll_dt;
    _Bool napi_prefer_busy_poll;
    u8 napi_track_mode;
};

struct task_struct {
    unsigned int __state;
    unsigned int flags;
    int pid;
    int tgid;
    char comm[16];
    unsigned long nvcsw;
    unsigned long nivcsw;
    int recent_used_cpu;
    int wake_cpu;
};

struct seq_file;
struct bpf_iter_meta {
    struct seq_file *seq;
};
struct bpf_iter__task_file {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
    u32 fd;
    struct file *file;
};
struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};

/* x86-64. On other processors the members are missing and a thread's system call is not reported. */
struct pt_regs {
    unsigned long r10, r9, r8, dx, si, di, orig_ax;
};

#pragma clang attribute pop

char LICENSE[] SEC("license") = "GPL";
