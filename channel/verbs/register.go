package verbs

import "github.com/kolo-ccl/kolo/channel"

// The name "verbs" stands for what the environment says, where that may be read.
func init() {
	channel.Register("verbs", func(c channel.Config) (channel.Driver, error) {
		var cfg Config
		if c.Getenv != nil {
			var err error
			if cfg, err = ConfigFromEnv(c.Getenv); err != nil {
				return nil, err
			}
		}
		d, err := New(c, cfg)
		if err != nil {
			return nil, err
		}
		return d, nil
	})
}
