//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"sync"

	"github.com/ebitengine/purego"
)

// switchboard holds what is to be called back. A function that C calls can never be
// given back to purego, so there is one for the process; streams hand it a token.
type switchboard struct {
	entry uintptr // the C function

	mu     sync.Mutex
	last   uintptr
	tokens map[uintptr]func()
}

var reports = sync.OnceValue(func() *switchboard {
	s := &switchboard{tokens: map[uintptr]func(){}}
	s.entry = purego.NewCallback(s.fire)
	return s
})

// expect has f called when C calls back with the token, once, on a report thread.
func (s *switchboard) expect(f func()) (token uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.tokens[s.last] = f
	return s.last
}

// forget takes a token back: a late call finds nothing.
func (s *switchboard) forget(token uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, token)
}

// fire is called by C.
func (s *switchboard) fire(token uintptr) {
	s.mu.Lock()
	f := s.tokens[token]
	delete(s.tokens, token)
	s.mu.Unlock()
	if f != nil {
		f()
	}
}
