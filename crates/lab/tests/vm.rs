//! The test machine has what its documentation says: real drivers, two nodes, commands, power cuts.

use busypoll_lab::{needs, needs_vm, vm::Machine};

#[test]
#[ignore = "long: virtual machines"]
fn it_has_its_drivers_nodes_and_wires_and_keeps_its_state_over_a_power_cut() {
    needs_vm!();
    needs!(program "ip", program "ping");
    let machine = Machine::builder().boot().unwrap();
    let says = |script: &str| {
        let ran = machine.run(script).unwrap();
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{script}: {ran:?}");
        ran.stdout
    };
    let drivers = says(
        "cd /sys/class/net; for device in intel0 virtio0 vmxnet30; do \
         basename $(readlink $device/device/driver); done; cat intel0/device/numa_node",
    );
    assert_eq!(drivers, "e1000e\nvirtio_net\nvmxnet3\n1\n");
    assert_eq!(says("cat /sys/devices/system/node/online"), "0-1\n");
    assert_eq!(says("ls -d /sys/class/net/virtio0/queues/rx-*").lines().count(), 2);
    assert!(says("uname -r").starts_with("6.1."));

    says("ip address add 10.78.0.2/24 dev intel0; ip link set intel0 up");
    says("ip address add 10.78.1.2/24 dev virtio0; ip link set virtio0 up");
    says("until [ $(cat /sys/class/net/intel0/carrier) = 1 ]; do sleep 0.1; done");
    for wire in ["10.78.0.2", "10.78.1.2"] {
        let ping = ["-c", "3", "-i", "0.2", "-W", "10", wire];
        let ping = machine.outside().command("ping").args(ping).output().unwrap();
        assert!(ping.status.success(), "{ping:?}");
    }

    let ran = machine.run("echo good; echo bad >&2; exit 7").unwrap();
    assert_eq!((ran.status, ran.stdout.as_str(), ran.stderr.as_str()), (7, "good\n", "bad\n"));
    assert_eq!(machine.run("kill -9 $$").unwrap().status, 137);

    says("echo kept > /var/lib/busypoll/note");
    let state = machine.power_cut();
    let machine = Machine::builder().state(state).boot().unwrap();
    assert_eq!(machine.run("cat /var/lib/busypoll/note").unwrap().stdout, "kept\n");
}
