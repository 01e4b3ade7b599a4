package verbs

import (
	"os"

	"github.com/kolo-ccl/kolo/channel"
)

func init() {
	channel.Register("verbs", func(c channel.Config) (channel.Driver, error) {
		cfg, err := ConfigFromEnv(os.Getenv)
		if err != nil {
			return nil, err
		}
		d, err := New(c, cfg)
		if err != nil {
			return nil, err
		}
		return d, nil
	})
}
