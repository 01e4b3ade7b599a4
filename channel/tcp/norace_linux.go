//go:build !race

package tcp

import "golang.org/x/sys/unix"

func toWrite(int, []unix.Iovec)       {}
func haveRead(int, []unix.Iovec, int) {}
