package plan

import (
	"testing"

	files "github.com/kolo-ccl/kolo/internal/golden"
)

// golden compares got with testdata/name, or writes it there under -rewrite.
func golden(t *testing.T, name, got string) {
	t.Helper()
	files.Equal(t, name, got)
}
