#!/bin/busybox sh
# The only program of the test machine at boot: mounts, modules, then one command after another.
# A command is a script in the shared folder; the second serial line carries its number and its exit code.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /usr/bin /usr/sbin /sbin /share /etc
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
export PATH=/programs:/bin:/sbin:/usr/bin:/usr/sbin HOME=/tmp
while read -r module; do
    insmod "/modules/$module" || echo "cannot load $module"
done < /modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share || poweroff -f
mkdir -p /share/state /var/lib
ln -s /share/state /var/lib/busypoll
ip link set lo up
for device in /sys/class/net/eth*; do
    name=$(basename "$device")
    driver=$(basename "$(readlink "$device/device/driver")")
    case $driver in
        e1000e) new=intel0 ;;
        virtio_net) new=virtio0 ;;
        *) new="${driver}0" ;;
    esac
    ip link set "$name" name "$new"
done
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo
echo ready >&3
while read -r number <&3; do
    setsid sh "/share/$number.sh" >"/share/$number.out" 2>"/share/$number.err" </dev/null 3>&-
    echo "$number $?" >&3
done
poweroff -f
