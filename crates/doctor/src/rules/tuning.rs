//! Rules about the tuning of the machine: coalescing, interrupts, CPUs, power, memory, clock.

super::rules! { TUNING;
COALESCE_ADAPTIVE "BP-COALESCE-ADAPTIVE" Harmful,
    "adaptive interrupt coalescing is on",
    "the driver lengthens the interrupt delay with load, so a packet that busy polling misses waits for an unknown time",
    "ethtool(8), adaptive-rx; drivers/net/ethernet, net_dim";

COALESCE_LONG "BP-COALESCE-LONG" Harmful,
    "the interrupt may wait more than 100 us for more packets",
    "a sleeping receiver is woken that much later; 100 us is what the authors of busy polling recommend beside pollers, 0 without",
    "Intel white paper on busy poll sockets, 2013; ethtool(8), rx-usecs";

COALESCE_FRAMES_ONLY "BP-COALESCE-FRAMES-ONLY" Harmful,
    "interrupts wait for a number of packets and have no time limit",
    "a single packet raises an interrupt only when others have followed it",
    "include/uapi/linux/ethtool.h, struct ethtool_coalesce: rx_coalesce_usecs 0";

COALESCE_UNPOLLED "BP-COALESCE-UNPOLLED" Fine,
    "interrupts are coalesced, and nothing is seen to busy poll",
    "coalescing is for throughput and costs latency: it becomes a fault when a thread polls, or when the device is asked about by name",
    "ethtool(8), -C";

LRO_ON "BP-LRO-ON" Harmful,
    "the device gathers packets before it hands them up (LRO)",
    "a packet of a latency-bound connection waits for more packets in the device, where no busy poll sees it",
    "Documentation/networking/netdev-features.rst, NETIF_F_LRO";

IRQ_FAR_NODE "BP-IRQ-FAR-NODE" Harmful,
    "an interrupt of the device goes to a CPU of another NUMA node",
    "descriptors and packets cross the interconnect before any thread has read them",
    "Documentation/core-api/irq/irq-affinity.rst; /sys/class/net/IF/device/numa_node";

IRQ_ISOLATED "BP-IRQ-ISOLATED" Harmful,
    "an interrupt of the device goes to an isolated CPU",
    "the CPU was isolated for a spinning thread, and the interrupt takes CPU time from it",
    "Documentation/admin-guide/kernel-parameters.txt, isolcpus";

IRQ_APP_CPU "BP-IRQ-APP-CPU" Harmful,
    "the device's interrupt goes to the only CPU the process may run on, or to that core's other thread",
    "interrupt work and the polling thread take the CPU from each other: one of them always waits",
    "Intel white paper on busy poll sockets, 2013: interrupts and application on separate cores of the NIC's node";

APP_FAR_NODE "BP-APP-FAR-NODE" Harmful,
    "the process may run only on CPUs of another NUMA node than the device's",
    "every poll of the queue reads memory and registers across the interconnect",
    "Intel white paper on busy poll sockets, 2013; /sys/class/net/IF/device/numa_node";

IRQBALANCE "BP-IRQBALANCE" Harmful,
    "irqbalance is running and not configured to leave the devices' interrupts alone",
    "every ten seconds it may move the device's interrupts, also onto the CPUs of spinning threads; `busypoll tune` makes it leave alone those that tune moves",
    "irqbalance(1)";

GOVERNOR "BP-GOVERNOR" Harmful,
    "CPUs run under a frequency governor other than performance",
    "a CPU that was idle starts slow and takes milliseconds to reach its full frequency",
    "Documentation/admin-guide/pm/cpufreq.rst";

DEEP_IDLE "BP-DEEP-IDLE" Harmful,
    "CPUs may fall into deep idle states",
    "a thread that sleeps longer than it polls pays the wake-up from that state, tens to hundreds of microseconds, on top of the interrupt",
    "Documentation/admin-guide/pm/cpuidle.rst; lkml 27 Feb 2013, busy polling with C-states on and off";

STEAL "BP-STEAL" Limited,
    "the hypervisor takes CPU time away",
    "a spinning virtual CPU that is not running polls nothing, and the spinning may be why the hypervisor takes it off the CPU",
    "proc_stat(5), steal";

VIRTUAL "BP-VIRTUAL" Fine,
    "this is a virtual machine",
    "idle states, frequencies, interrupts' true cost and neighbours are the host's: they cannot be seen or set from here",
    "/proc/cpuinfo, flag hypervisor";

MEMORY_SLOW "BP-MEMORY-SLOW" Limited,
    "memory of a CPU's own NUMA node is copied at less than 8 GB/s",
    "every packet is copied at least once; below that rate memory and not the network sets the latency",
    "numademo 128m memcpy, as the authors of busy polling advise: local above 8 GB/s";

MEMORY_OK "BP-MEMORY-OK" Fine,
    "memory is copied fast enough",
    "every packet is copied at least once",
    "measured: the fastest quarter of up to 96 copies of 1 MiB per node";

CLOCKSOURCE "BP-CLOCKSOURCE" Harmful,
    "reading the clock is slow",
    "programs that poll read the clock at every turn, and each read goes to a device or to the hypervisor",
    "Documentation/timers/timekeeping.rst";

IOMMU_STRICT "BP-IOMMU-STRICT" Harmful,
    "the IOMMU invalidates every mapping at once",
    "each packet's buffer costs the driver a synchronous command to the IOMMU",
    "Documentation/ABI/testing/sysfs-kernel-iommu_groups; iommu.strict";

FIT_OK "BP-FIT-OK" Fine,
    "no fault in CPUs, power and clock",
    "busy polling trades CPU time for latency, so the CPU must be there at full speed",
    "/sys/devices/system/cpu, /proc/stat";

ONE_CPU "BP-ONE-CPU" Harmful,
    "there is one CPU only",
    "a thread that polls keeps all others from running, including a sender on the same machine that it waits for",
    "net/core/dev.c, busy_loop: need_resched";
}
