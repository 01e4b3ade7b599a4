//go:build !linux || (!amd64 && !arm64) || noverbs

package verbs

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce"
)

// New says that this program was built without the binding.
func New(channel.Config, Config) (*roce.Driver, error) { return nil, errLeftOut() }

func errLeftOut() error {
	return fmt.Errorf("%w: this program was built without libibverbs: for another system than linux/amd64 and linux/arm64, or with the tag noverbs", kolo.ErrUnsupported)
}

// bound says that there is no library.
func (r *Report) bound(Config) { r.Err = errLeftOut() }
