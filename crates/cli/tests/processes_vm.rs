//! Before Linux 6.4 one process has the interface, in the virtual machine: a second one says why, and uses the kernel.

mod support;

use std::net::UdpSocket;
use std::path::Path;

use busypoll_lab::{needs, needs_vm};
use support::BUSYPOLL;
use support::vm_machine::{Vm, builder, exchange_at};

waiter_test!();

#[test]
#[ignore = "a minute of emulation: cargo test -p busypoll-cli --test processes_vm -- --ignored"]
fn before_linux_6_4_a_second_process_uses_the_kernel_and_says_why() {
    needs_vm!();
    needs!(program "ip", program "ethtool", program "setpriv", program "strace");
    let library = Path::new(BUSYPOLL).with_file_name("deps/libbusypoll_preload.so");
    let vm = Vm::of(builder().program("libbusypoll_preload.so", library));
    let outside = vm.machine.outside();
    let socket = outside.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for (at, port) in [7300, 7301].into_iter().enumerate() {
        vm.output_of(&format!(
            "WAITER='recv port={port}' BUSYPOLL_PRELOAD_LIBRARY=/programs/libbusypoll_preload.so \
             busypoll run --plane stack --dev virtio0 -- waiter {} >/tmp/out{at} 2>/tmp/err{at} & \
             until grep -q ready /tmp/out{at}; do sleep 0.1; done",
            support::waiter::ARGUMENTS
        ));
        exchange_at(&socket, ("10.78.1.2", port));
    }
    let said = |at| vm.output_of(&format!("cat /tmp/err{at}"));
    assert_eq!(said(0), "");
    assert!(said(1).contains("need Linux 6.4"), "{}", said(1));
    assert_eq!(said(1).lines().count(), 1, "{}", said(1));
    // The first still has it.
    exchange_at(&socket, ("10.78.1.2", 7300));
    assert!(vm.output_of("busypoll ss").contains(":7300 "));
}
