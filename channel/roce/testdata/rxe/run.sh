#!/bin/bash
# Boots Debian's kernel with its RoCE driver (rdma_rxe) in an emulated machine: our
# endpoint talks with it, the verbs driver runs on it, and programs of rdma-core and
# perftest are peers. Needs root, apt-get, gcc and Go; takes some minutes the first time.
# Called by make rxe-vm. STEPS, such as verbs,interop, runs only some steps of init.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?usage: run.sh DIRECTORY, for the kernel and the image}
mkdir -p "$work"
cd "$work"
for c in qemu-system-x86_64 busybox cpio modprobe rdma ip gcc ib_write_bw ibv_rc_pingpong; do
	command -v $c >/dev/null || missing=1
done
if [ -n "${missing:-}" ] || [ ! -e /usr/include/infiniband/verbs.h ]; then
	apt-get -qq update
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends qemu-system-x86 busybox-static cpio kmod iproute2 \
		rdma-core ibverbs-providers ibverbs-utils libibverbs-dev perftest gcc libc6-dev
fi
if [ ! -d k/boot ]; then
	image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
	apt-get -qq download "$image"
	mkdir k
	dpkg -x linux-image-*.deb k
	depmod -b k "$(ls k/lib/modules)"
fi
rm -rf r
mkdir -p r/bin r/mods r/proc r/sys r/dev r/tmp r/run r/etc r/var r/verbs
cp "$here/init" r/init
chmod +x r/init
gcc -O1 -o r/bin/peer "$here/peer.c" -libverbs
module=$here/../../../..
for p in channel/roce channel/verbs rank; do
	(cd "$module/$p" && CGO_ENABLED=0 go test -c -ldflags='-s -w' -o "$work/r/bin/$(basename $p).test" .)
done
(cd "$module" && CGO_ENABLED=0 go build -ldflags='-s -w' -o "$work/r/bin/kolo" ./cmd/kolo)
cp "$(command -v busybox)" r/bin/busybox
for c in sh mount insmod sleep cat uname poweroff sed; do ln -s busybox r/bin/$c; done
cp "$(command -v ip)" r/bin/xip
for c in rdma ibv_rc_pingpong ib_write_bw ib_read_bw ib_send_bw; do cp "$(command -v $c)" r/bin/; done
lib=/usr/lib/$(gcc -print-multiarch)
mkdir -p "r$lib/libibverbs" r/etc/libibverbs.d r/lib64
cp "$lib"/libibverbs/librxe-rdmav*.so "r$lib/libibverbs/"
cp /etc/libibverbs.d/rxe.driver r/etc/libibverbs.d/
for f in r/bin/* "r$lib"/libibverbs/*.so; do
	{ ldd "$f" 2>/dev/null || true; } | awk '/=> \// {print $3} /^\t\// {print $1}' # nothing of those that need none
done | sort -u | while read -r so; do
	mkdir -p "r$(dirname "$so")"
	cp -L "$so" "r$so"
done
version=$(ls k/lib/modules)
for m in crc32_generic rdma_rxe ib_uverbs rdma_ucm veth; do
	modprobe -d "$PWD/k" -S "$version" --show-depends $m
done | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r ko; do
	cp "$ko" r/mods/
	basename "$ko" >>r/mods/order
done
(cd r && find . | cpio -o -H newc --quiet | gzip -1) >initrd.gz
timeout 1500 qemu-system-x86_64 -m 1536 -smp 1 -nodefaults -no-reboot -display none -serial stdio \
	-kernel k/boot/vmlinuz-* -initrd initrd.gz -append "console=ttyS0 quiet panic=-1 mitigations=off ${STEPS:+kolo.steps=$STEPS}" </dev/null | tr -d '\r' | tee out.txt
grep -q '^exit status 0$' out.txt
