package ascend

import "fmt"

// Condition is a device's health as DCMI gives it.
type Condition uint32

// The conditions.
const (
	Normal   Condition = 0
	Minor    Condition = 1 // works; look at it
	Major    Condition = 2 // works, perhaps not for long
	Critical Condition = 3 // must not be used
	Absent   Condition = 0xFFFFFFFF
)

// Gone says whether nothing on the device can be relied on.
func (c Condition) Gone() bool { return c == Critical || c == Absent }

// String is the condition in lower case.
func (c Condition) String() string {
	switch c {
	case Normal:
		return "normal"
	case Minor:
		return "minor fault"
	case Major:
		return "major fault"
	case Critical:
		return "critical fault"
	case Absent:
		return "absent, or not started"
	}
	return fmt.Sprintf("Condition(%d)", uint32(c))
}
