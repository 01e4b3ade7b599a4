package tcp

import "github.com/kolo-ccl/kolo/channel"

// The name "tcp" stands for what the environment says, where that may be read.
func init() {
	channel.Register("tcp", func(c channel.Config) (channel.Driver, error) {
		if c.Getenv == nil {
			return Config{}.New(c)
		}
		cfg, err := ConfigFromEnv(c.Getenv)
		if err != nil {
			return nil, err
		}
		return cfg.New(c)
	})
}
