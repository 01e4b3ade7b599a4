package ascend

import "github.com/kolo-ccl/kolo/npu"

func init() { npu.Register("ascend", open) }
