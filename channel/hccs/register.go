package hccs

import "github.com/kolo-ccl/kolo/channel"

func init() { channel.Register("hccs", New) }
