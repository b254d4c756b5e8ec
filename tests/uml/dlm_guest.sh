#!/bin/sh
# First process of a guest of dlm.py: DLM and sbd above zenjun's stand-in for corosync, on node $node, with what is in $shared (both
# from the kernel's command line). Then runs $shared/do$node.*.sh, one after the other, each into a file .out.
export PATH=/usr/sbin:/sbin:/usr/bin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
for folder in /tmp /run /dev/shm; do
    mkdir -p $folder
    mount -t tmpfs -o mode=1777 tmp $folder
done
ln -sfn /proc/self/fd /dev/fd
for folder in "$tree" "$shared"; do
    mkdir -p "$folder"
    mount -t hostfs -o "$folder" host "$folder"
done
exec >"$shared/guest$node.log" 2>&1
for module in llc stp crc-ccitt ipv6 configfs dlm softdog; do
    file=$(find "/usr/lib/uml/modules/$(uname -r)" -name "$module.ko*" | head -n 1)
    [ -z "$file" ] || insmod "$file"
done
mkdir -p /sys/kernel/config
mount -t configfs none /sys/kernel/config
ip link set lo up
ip link set vec0 name eth0
ip address add "10.77.0.$node/24" dev eth0
ip link set eth0 up
hostname "node$node"
mkdir -p /dev/misc # udev would do that
for device in dlm-control dlm-monitor dlm_plock; do
    mknod "/dev/misc/$device" c 10 "$(awk -v name=$device '$2 == name { print $1 }' /proc/misc)"
done
mount -t tmpfs tmp /var/log
mkdir -p /run/z /run/dlm /run/dlm_controld /run/sbd
cp "$shared/corosync.conf" /run/z/corosync.conf
sed "s/@node@/$node/" "$shared/zenjund.toml" >/run/z/zenjund.toml
. "$shared/environment"
cd "$tree" || exit 1
python -m zenjun.daemon --config /run/z/zenjund.toml >"$shared/zenjund$node.log" 2>&1 &
export LD_LIBRARY_PATH="$libraries" COROSYNC_MAIN_CONFIG_FILE=/run/z/corosync.conf
python -m zenjun.daemon.corosync --config /run/z/zenjund.toml --corosync-conf /run/z/corosync.conf >"$shared/corosync$node.log" 2>&1 &
until corosync-quorumtool 2>/dev/null | grep -q "Nodes:            2"; do sleep 0.5; done
dlm_controld -D -s 0 >"$shared/dlm_controld$node.log" 2>&1 &
until dlm_tool status >/dev/null 2>&1; do sleep 0.5; done
touch "$shared/ready$node"
while :; do
    for command in "$shared/do$node".*.sh; do
        if [ -e "$command" ] && [ ! -e "${command%.sh}.done" ]; then
            timeout 100 sh "$command" >"${command%.sh}.out" 2>&1
            touch "${command%.sh}.done"
        fi
    done
    sleep 0.2
done
