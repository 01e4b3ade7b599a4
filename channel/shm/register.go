package shm

import "github.com/kolo-ccl/kolo/channel"

func init() { channel.Register("shm", New) }
