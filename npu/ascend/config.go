package ascend

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Config says how the driver is made. The zero value looks for the library where CANN
// installs it.
type Config struct {
	// Library is the path of libascendcl.so. "" means the places of CANN, then the
	// loader's.
	Library string
	// DCMI is the path of libdcmi.so. "" means the places of the kernel driver's tools;
	// "none" means that devices are not asked for their health there.
	DCMI string
	// Getenv, such as os.Getenv, is asked for ASCEND_LIB (a library) and ASCEND_HOME_PATH
	// (where CANN is). nil: the environment is not read.
	Getenv func(string) string
	// Patience is the longest that a call of a library may take before who waits for it
	// gets kolo.ErrDeadline. 0 means a minute.
	Patience time.Duration
	// Run runs npu-smi and hccn_tool for Inspect and gives what they print. nil: they
	// are run as programs.
	Run func(ctx context.Context, name string, arg ...string) ([]byte, error)
}

// libraryName is what AscendCL's library is called.
const libraryName = "libascendcl.so"

// patience is the default of Config.Patience: the first call sets a device up, which
// takes seconds.
const patience = time.Minute

// places are where the library may be, in order.
func (c Config) places() []string {
	if c.Library != "" {
		return []string{c.Library}
	}
	var list []string
	if c.Getenv != nil {
		if v := c.Getenv("ASCEND_LIB"); v != "" {
			list = append(list, v)
		}
		if v := c.Getenv("ASCEND_HOME_PATH"); v != "" {
			list = append(list, path.Join(v, "lib64", libraryName))
		}
	}
	return append(list,
		"/usr/local/Ascend/ascend-toolkit/latest/lib64/"+libraryName,
		"/usr/local/Ascend/cann/lib64/"+libraryName,
		libraryName, // LD_LIBRARY_PATH, which CANN's set_env.sh sets, and ld.so.cache
	)
}

// dcmiPlaces are where libdcmi.so may be, in order.
func (c Config) dcmiPlaces() []string {
	switch c.DCMI {
	case "none":
		return nil
	case "":
		const name = "libdcmi.so"
		return []string{"/usr/local/dcmi/" + name, "/usr/local/Ascend/driver/lib64/" + name,
			"/usr/local/Ascend/driver/lib64/driver/" + name, "/usr/local/Ascend/driver/lib64/common/" + name, name}
	}
	return []string{c.DCMI}
}

// parse reads the options of the registered driver: words as "lib=/path",
// "dcmi=/path" or "dcmi=none", and "patience=10s".
func parse(options string) (c Config, err error) {
	for _, word := range strings.Fields(options) {
		name, value, _ := strings.Cut(word, "=")
		if value == "" {
			return c, fmt.Errorf("%w: ascend: the option %q has no value", kolo.ErrArgument, word)
		}
		switch name {
		case "lib":
			c.Library = value
		case "dcmi":
			c.DCMI = value
		case "patience":
			if c.Patience, err = time.ParseDuration(value); err != nil || c.Patience <= 0 {
				return c, fmt.Errorf("%w: ascend: %q is no time in the option %q", kolo.ErrArgument, value, word)
			}
		default:
			return c, fmt.Errorf("%w: ascend: no option %q; known: lib, dcmi, patience", kolo.ErrArgument, name)
		}
	}
	return c, nil
}

// open makes the registered driver.
func open(c npu.Config) (npu.Driver, error) {
	cfg, err := parse(c.Options)
	if err != nil {
		return nil, err
	}
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}
