package roce

import "github.com/kolo-ccl/kolo/channel"

// The name "roce" stands for what the environment says, where that may be read.
func init() {
	channel.Register("roce", func(c channel.Config) (channel.Driver, error) {
		if c.Getenv == nil {
			return New(c, Config{})
		}
		cfg, err := ConfigFromEnv(c.Getenv)
		if err != nil {
			return nil, err
		}
		return New(c, cfg)
	})
}
