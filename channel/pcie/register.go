package pcie

import "github.com/kolo-ccl/kolo/channel"

func init() { channel.Register("pcie", New) }
