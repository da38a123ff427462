# Boots a systemd of its own over the files of this host: boot.sh ROOT SCRATCH SHARED [SEEN...]
# An overlay shows one file system: what may be on another, or below a mount, is named by SEEN.
# Run in new namespaces (mount, pid, uts, ipc, net, cgroup): with them everything here is gone.
set -e
root=$1 scratch=$2 shared=$3
shift 3
mount --make-rprivate /
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mkdir -p "$root/shared"
mount --bind "$shared" "$root/shared"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/opt/supervise"
mount -t tmpfs tmpfs "$root/opt/supervise"  # hides what is installed on this host
for seen in "$@"; do
  mkdir -p "$root$seen"
  mount --bind "$seen" "$root$seen"
done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if [ -d /sys/fs/cgroup/systemd ]; then
  mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/systemd"
  mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
else
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
fi
mount --rbind /dev "$root/dev"
rm -rf "$root"/etc/systemd/system/*.wants "$root/var/log/journal"
cd "$root"
mkdir -p .host
pivot_root . .host
umount -l .host
exec env -i container=test PATH="$PATH" /lib/systemd/systemd \
  --unit=basic.target --log-target=journal --show-status=0
