//go:build linux && (amd64 || arm64)

package dynlib

import (
	"fmt"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
)

// Shelf holds the libraries of one kind that this process has bound. They stay loaded until
// the process ends.
type Shelf[L any] struct {
	mu   sync.Mutex
	libs map[string]*L // by the place where they were found
}

// Load is the first library of the places that there is. One that was not loaded before is
// bound, from its handle; an error of that ends the search, and the library is unloaded.
// Without a library and an error, none is there, and tried says why of each place.
func (s *Shelf[L]) Load(places []string, bind func(place string, handle uintptr) (*L, error)) (l *L, tried []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range places {
		if l := s.libs[p]; l != nil {
			return l, nil, nil
		}
		h, err := purego.Dlopen(p, purego.RTLD_NOW|purego.RTLD_GLOBAL) // what it loads itself looks for its symbols
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s: %s", p, strings.TrimPrefix(err.Error(), p+": ")))
			continue
		}
		if l, err = bind(p, h); err != nil {
			_ = purego.Dlclose(h) // there is nothing to be done about it
			return nil, nil, err
		}
		if s.libs == nil {
			s.libs = map[string]*L{}
		}
		s.libs[p] = l
		return l, nil, nil
	}
	return nil, tried, nil
}

// Bind finds the functions of a library by their names; those that it lacks are 0 in at, and
// their indexes are returned.
func Bind(handle uintptr, names []string, at []uintptr) (missing []int) {
	for i, name := range names {
		p, err := purego.Dlsym(handle, name)
		if err != nil {
			missing = append(missing, i)
			continue
		}
		at[i] = p
	}
	return missing
}

// LibC is a function of the C library.
func LibC(name string) (uintptr, error) {
	h, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return 0, err
	}
	return purego.Dlsym(h, name)
}
