//! Facts about the machine: hypervisor, isolated CPUs, SMT, IOMMU. Reads
//! only.
//!
//! Kernel source: `drivers/base/cpu.c`, `Documentation/ABI/testing/sysfs-kernel-iommu_groups`.

use std::fs;

use crate::sysfs::Sysfs;
use crate::topology::CpuList;

/// The name of the hypervisor below this kernel (`KVM`, `VMware`, a product name); none on
/// bare metal. A hypervisor that hides itself is not found.
pub fn hypervisor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flagged = info.lines().any(|line| {
        line.starts_with("flags") && line.split_ascii_whitespace().any(|f| f == "hypervisor")
    });
    let kind = line("/sys/hypervisor/type");
    let product = line("/sys/class/dmi/id/sys_vendor").filter(|vendor| {
        ["QEMU", "VMware", "Microsoft", "Amazon", "Google", "Xen", "innotek", "OpenStack"]
            .iter()
            .any(|known| vendor.contains(known))
    });
    match (flagged, kind.or(product)) {
        (true, name) => Some(name.unwrap_or_else(|| "a hypervisor".into())),
        // Arm has no such CPU flag.
        (false, Some(name)) if !info.contains("flags") => Some(name),
        _ => None,
    }
}

/// CPUs on which ordinary threads do not run (`isolcpus=`, isolated cpusets).
pub fn isolated() -> CpuList {
    list("/sys/devices/system/cpu/isolated")
}

/// CPUs without a periodic tick while one thread runs (`nohz_full=`).
pub fn nohz_full() -> CpuList {
    list("/sys/devices/system/cpu/nohz_full")
}

/// Whether SMT is active.
pub fn smt_active() -> bool {
    line("/sys/devices/system/cpu/smt/active").is_some_and(|active| active == "1")
}

/// The translation of a device's DMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuGroup {
    /// The group's number.
    pub id: u32,
    /// `DMA` (strict), `DMA-FQ` (lazy), `identity` (not translated).
    pub mode: String,
}

/// The IOMMU group of a network device; none without an IOMMU.
pub fn iommu_group(sysfs: &Sysfs, device: &str) -> Option<IommuGroup> {
    let link = ["device/iommu_group", "device/../iommu_group"]
        .iter()
        .find_map(|name| fs::read_link(sysfs.path(device, name)).ok())?;
    let id: u32 = link.file_name()?.to_str()?.parse().ok()?;
    Some(IommuGroup { id, mode: line(&format!("/sys/kernel/iommu_groups/{id}/type"))? })
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn list(path: &str) -> CpuList {
    // Older kernels write "(null)" for none.
    line(path).and_then(|text| text.parse().ok()).unwrap_or_default()
}
