package roce

import "github.com/kolo-ccl/kolo/channel"

func init() {
	channel.Register("roce", func(c channel.Config) (channel.Driver, error) { return New(c, Config{}) })
}
