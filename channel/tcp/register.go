package tcp

import "github.com/kolo-ccl/kolo/channel"

func init() { channel.Register("tcp", Config{}.New) }
