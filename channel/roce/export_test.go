package roce

// WithWire is c with a wire between the driver and its sockets: what deliver gets goes
// on. Packets that a test keeps it must copy.
func (c Config) WithWire(wire func(packet []byte, deliver func([]byte))) Config {
	c.wire = wire
	return c
}
