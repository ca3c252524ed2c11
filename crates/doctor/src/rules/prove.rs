//! Rules of `--prove`: what was counted while packets arrived.

super::rules! { PROVE;
PROVE_WORKING "BP-PROVE-WORKING" Working,
    "packets were found by busy polling",
    "each such packet reached its thread without an interrupt and without a wake-up",
    "LINUX_MIB_BUSYPOLLRXPACKETS and tracepoint napi:napi_poll, net/core/dev.c";

PROVE_OFF "BP-PROVE-OFF" Off,
    "packets came, and nothing busy polled",
    "every packet waited for an interrupt, and most for a thread to wake",
    "LINUX_MIB_BUSYPOLLRXPACKETS and tracepoint napi:napi_poll, net/core/dev.c";

PROVE_NO_EFFECT "BP-PROVE-NO-EFFECT" NoEffect,
    "busy polling is on, and almost no packet was found by it",
    "the CPU time of the empty passes is wasted, and packets still wait for interrupts",
    "tracepoint napi:napi_poll, net/core/dev.c";

PROVE_HARMFUL "BP-PROVE-HARMFUL" Harmful,
    "busy polling is on, finds little, and keeps others from running",
    "a spinner holds the CPU that the thread it waits for needs: packets take longer than without busy polling",
    "tracepoint napi:napi_poll, net/core/dev.c; nonvoluntary_ctxt_switches, proc(5)";

PROVE_QUIET "BP-PROVE-QUIET" NotSeen,
    "too few packets came to tell",
    "only packets can prove it: run it again under traffic",
    "tracepoint napi:napi_poll, net/core/dev.c";

PROVE_STACK_PLANE "BP-PROVE-STACK-PLANE" NotSeen,
    "the packets of a stack-plane process pass the kernel's counters by",
    "the stack plane counts by itself how each packet was found",
    "docs/stack-plane.md";
}
