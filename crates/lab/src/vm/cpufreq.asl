// Two P-states for each of the test machine's CPUs, so that the kernel's acpi-cpufreq and its governors
// run there. Both registers are the APM status port of the ICH9, a byte that keeps the value written to it.
// Compiled beside this file: iasl cpufreq.asl
DefinitionBlock ("cpufreq.aml", "SSDT", 2, "BUSYPL", "CPUFREQ", 1)
{
    External (\_SB.CPUS.C000, DeviceObj)
    External (\_SB.CPUS.C001, DeviceObj)
    External (\_SB.CPUS.C002, DeviceObj)
    External (\_SB.CPUS.C003, DeviceObj)

    Name (\BPCT, Package ()
    {
        ResourceTemplate () { Register (SystemIO, 8, 0, 0xB3) },
        ResourceTemplate () { Register (SystemIO, 8, 0, 0xB3) }
    })
    // MHz, mW, two latencies in microseconds, the value to write and the value to read.
    Name (\BPSS, Package ()
    {
        Package () { 2000, 20000, 10, 10, 0, 0 },
        Package () { 1000, 10000, 10, 10, 1, 1 }
    })

    Scope (\_SB.CPUS.C000) { Method (_PCT) { Return (BPCT) } Method (_PSS) { Return (BPSS) } Name (_PPC, 0) }
    Scope (\_SB.CPUS.C001) { Method (_PCT) { Return (BPCT) } Method (_PSS) { Return (BPSS) } Name (_PPC, 0) }
    Scope (\_SB.CPUS.C002) { Method (_PCT) { Return (BPCT) } Method (_PSS) { Return (BPSS) } Name (_PPC, 0) }
    Scope (\_SB.CPUS.C003) { Method (_PCT) { Return (BPCT) } Method (_PSS) { Return (BPSS) } Name (_PPC, 0) }
}
