package drivers

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
)

// Table holds drivers of one kind, or what makes them, by name. Its methods may be called by any goroutine.
type Table[T any] struct {
	kind string
	mu   sync.Mutex
	by   map[string]T
}

// New makes an empty table of a kind, as "channel driver", for errors.
func New[T any](kind string) *Table[T] { return &Table[T]{kind: kind, by: map[string]T{}} }

// Add makes a value known. It is called by init functions, and panics if the name is
// taken.
func (t *Table[T]) Add(name string, v T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.by[name]; ok {
		panic(fmt.Sprintf("drivers: %s %q registered twice", t.kind, name))
	}
	t.by[name] = v
}

// Get is the value of a name, or kolo.ErrUnsupported with the names that there are.
func (t *Table[T]) Get(name string) (T, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.by[name]
	if !ok {
		return v, fmt.Errorf("%w: no %s %q; linked in: %v", kolo.ErrUnsupported, t.kind, name, t.names())
	}
	return v, nil
}

// Names lists the names in order.
func (t *Table[T]) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names()
}

func (t *Table[T]) names() []string { return slices.Sorted(maps.Keys(t.by)) }

// Drop forgets a name, for tests.
func (t *Table[T]) Drop(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.by, name)
}
