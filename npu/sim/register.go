package sim

import "github.com/kolo-ccl/kolo/npu"

func init() { npu.Register("sim", open) }
