//go:build !linux || (!amd64 && !arm64) || noacl

package ascend

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// New says that this program was built without the binding.
func New(Config) (npu.Driver, error) { return nil, errLeftOut() }

func errLeftOut() error {
	return fmt.Errorf("%w: this program was built without AscendCL: for another system than linux/amd64 and linux/arm64, or with the tag noacl", kolo.ErrUnsupported)
}

// bound says that there are none.
func (r *Report) bound(Config) {
	r.Library = Part{Name: libraryName, Err: errLeftOut()}
	r.DCMI = Part{Name: "libdcmi.so", Err: errLeftOut()}
}
